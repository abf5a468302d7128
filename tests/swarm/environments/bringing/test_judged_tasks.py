"""A file of tasks and a function that judges: each line is a task or refused by its number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Outcome, Task, said
from swarm.environments.loading import JudgedTasks, names_splits, read_lines
from swarm.environments.play import judged
from swarm.environments.user_code import RewardFailed
from swarm.errors import InvalidRequest


def lines_file(folder: Path, *lines: Any) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@given(prompts=st.lists(st.text(min_size=1), unique=True, min_size=1, max_size=20))
def test_each_line_is_a_task_with_its_prompt(prompts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = lines_file(tmp_path_factory.mktemp("lines"), *({"prompt": text, "answer": "5"} for text in prompts))
    tasks = [task for task, _ in read_lines(path)]
    assert [task.data["messages"] for task in tasks] == [[{"role": "user", "content": text}] for text in prompts]
    assert all(task.data["answer"] == "5" for task in tasks)
    assert len({task.id for task in tasks}) == len(tasks)
    assert [task for task, _ in read_lines(path)] == tasks, "the same twice"


def test_line_endings_and_empty_lines_change_no_task(tmp_path: Path) -> None:
    path = lines_file(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    found = read_lines(path)
    path.write_bytes(b"\r\n" + path.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert read_lines(path) == found


def test_a_line_may_say_its_id_its_kind_its_split_and_its_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
    line = {"id": 7, "kind": None, "split": "hidden", "messages": messages, "data": {"x": 1}}
    ((task, split),) = read_lines(lines_file(tmp_path, line))
    assert (task, split) == (Task("7", {"messages": messages, "data": {"x": 1}}), "hidden")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "found an empty file"),
        (["{"], "questions.jsonl, line 1; found no JSON"),
        ([{"prompt": "a"}, "[1]"], "questions.jsonl, line 2; found list"),
        ([{"answer": "5"}], "expected a text as `prompt`, or a list of chat messages"),
        ([{"prompt": 5}], "expected a text as `prompt`"),
        ([{"prompt": "a", "messages": []}], "expected a text as `prompt`"),
        ([{"messages": [{"role": "user"}]}], "expected a text as `prompt`"),
        ([{"prompt": "a", "split": "test"}], "expected the split train, search or hidden in questions.jsonl, line 1"),
        ([{"prompt": "a"}, {"prompt": "a"}], "expected each task once in"),
        ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], "found the id 'x' 2 times, in lines 1 and 2"),
        ([{"prompt": "a", "id": n} for n in (1, 2, 3, 2, 2)], "found the id '2' 3 times, in lines 2 and 4 and others"),
        (["[" * 100_000], "found no JSON"),
    ],
)
def test_lines_that_are_no_tasks_are_refused_by_their_number(lines: list[Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_lines(lines_file(tmp_path, *lines))
    assert expected in str(refused.value)


@pytest.mark.full
def test_a_task_that_stands_twice_among_a_hundred_thousand_is_found_in_seconds(tmp_path: Path) -> None:
    lines = [{"prompt": str(n)} for n in range(100_000)]
    with pytest.raises(InvalidRequest, match="2 times"):
        read_lines(lines_file(tmp_path, *lines, {"prompt": "99999"}))


def test_all_lines_name_their_split_or_none_does() -> None:
    one, two = Task("1"), Task("2")
    assert names_splits([(one, "train"), (two, "hidden")])
    assert not names_splits([(one, None), (two, None)])
    with pytest.raises(InvalidRequest, match="found it in 1 of 2"):
        names_splits([(one, "train"), (two, None)])


async def worth(folder: Path, body: str, messages: Sequence[str] = ("5",)) -> Outcome:
    (folder / "judge.py").write_text(body)
    environment = JudgedTasks(folder / "judge.py")
    game = environment.game(Task("q", {"messages": [{"role": "user", "content": "2+3?"}], "answer": "5"}))
    assert game.opening() == [{"role": "user", "content": "2+3?"}]
    for text in messages:
        assert game.answer(said(text)) == []
    found: Any = game.outcome()
    return judged(environment, await found)


@pytest.mark.parametrize(
    ("body", "reward", "success"),
    [
        ("def reward(task, messages):\n    return messages[-1]['content'] == task['data']['answer']", 1.0, True),
        ("async def reward(task, messages):\n    return 0.5", 0.5, False),
        ("def reward(task, messages):\n    return 0.5, True", 0.5, True),
        ("def reward(task, messages):\n    return len(task['data']) + len(messages) - 2", 1.0, True),
    ],
)
async def test_the_function_judges_the_conversation(body: str, reward: float, success: bool, tmp_path: Path) -> None:
    found = await worth(tmp_path, body)
    assert (found.reward, found.success) == (reward, success)


@pytest.mark.parametrize("value", ["None", "'1'", "2", "float('nan')", "(1, 2, 3)", "(1, 'no')"])
async def test_a_function_that_gives_no_reward_fails_the_play(value: str, tmp_path: Path) -> None:
    with pytest.raises(RewardFailed):
        await worth(tmp_path, f"def reward(task, messages):\n    return {value}")


async def test_a_function_that_changes_what_it_is_shown_changes_no_later_play(tmp_path: Path) -> None:
    body = "def reward(task, messages):\n    task['data'].clear()\n    messages.clear()\n    return 1"
    (tmp_path / "judge.py").write_text(body)
    task = Task("q", {"messages": [{"role": "user", "content": "?"}], "answer": "5"})
    game = JudgedTasks(tmp_path / "judge.py").game(task)
    found: Any = game.outcome()
    await found
    assert task == Task("q", {"messages": [{"role": "user", "content": "?"}], "answer": "5"})


def test_a_function_of_other_arguments_is_refused(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("def reward(answer):\n    return 1")
    with pytest.raises(InvalidRequest, match=r"reward\(task, messages\)"):
        JudgedTasks(tmp_path / "judge.py")
