"""Tests of loading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Outcome, Task, calling, calls_of, get_environment, said, text_of, tool
from swarm.environments.custom import check_tasks, read_tasks, to_json
from swarm.environments.loading import RewardTasks, names_splits, read_lines
from swarm.environments.play import judge_outcome
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


def test_a_line_may_say_its_id_its_kind_its_split_and_its_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
    line = {"id": 7, "kind": None, "split": "hidden", "messages": messages, "data": {"x": 1}}
    ((task, split),) = read_lines(lines_file(tmp_path, line))
    assert (task, split) == (Task("7", {"messages": messages, "data": {"x": 1}}), "hidden")


@pytest.mark.parametrize(("lines", "expected"), [
    ([], "empty file"), (["{"], "questions.jsonl, line 1; found no JSON"),
    ([{"prompt": "a"}, "[1]"], "questions.jsonl, line 2; found list"),
    ([{"answer": "5"}], "a text as `prompt`"),
    ([{"prompt": 5}], "a text as `prompt`"),
    ([{"prompt": "a", "messages": []}], "a text as `prompt`"),
    ([{"messages": [{"role": "user"}]}], "a text as `prompt`"),
    ([{"prompt": "a", "split": "test"}], "hidden in questions.jsonl, line 1"),
    ([{"prompt": "a"}, {"prompt": "a"}], "task once in"),
    ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], "found the id 'x' 2 times, in lines 1 and 2"),
    ([{"prompt": "a", "id": n} for n in (1, 2, 3, 2, 2)], "found the id '2' 3 times, in lines 2 and 4 and others"),
    (["[" * 100_000], "found no JSON"),
])  # fmt: skip
def test_lines_that_are_no_tasks_are_refused_by_their_number(lines: list[Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_lines(lines_file(tmp_path, *lines))
    assert expected in str(refused.value)


def test_all_lines_name_their_split_or_none_does() -> None:
    one, two = Task("1"), Task("2")
    assert names_splits([(one, "train"), (two, "hidden")])
    assert not names_splits([(one, None), (two, None)])
    with pytest.raises(InvalidRequest, match="found it in 1 of 2"):
        names_splits([(one, "train"), (two, None)])


async def worth(folder: Path, body: str, messages: Sequence[str] = ("5",)) -> Outcome:
    (folder / "judge.py").write_text(body)
    environment = RewardTasks(folder / "judge.py")
    game = environment.game(Task("q", {"messages": [{"role": "user", "content": "2+3?"}], "answer": "5"}))
    assert game.opening() == [{"role": "user", "content": "2+3?"}]
    for text in messages:
        assert game.answer(said(text)) == []
    found: Any = game.outcome()
    return judge_outcome(environment, await found)


@pytest.mark.parametrize(("body", "reward", "success"), [
    ("def reward(task, messages):\n    return messages[-1]['content'] == task['data']['answer']", 1.0, True),
    ("async def reward(task, messages):\n    return 0.5", 0.5, False),
    ("def reward(task, messages):\n    return 0.5, True", 0.5, True),
    ("def reward(task, messages):\n    return len(task['data']) + len(messages) - 2", 1.0, True),
])  # fmt: skip
async def test_the_function_judges_the_conversation(body: str, reward: float, success: bool, tmp_path: Path) -> None:
    found = await worth(tmp_path, body)
    assert (found.reward, found.success) == (reward, success)


async def test_a_function_of_other_arguments_is_refused_and_changes_no_later_play(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("def reward(answer):\n    return 1")
    with pytest.raises(InvalidRequest, match=r"reward\(task, messages\)"):
        RewardTasks(tmp_path / "judge.py")
    body = "def reward(task, messages):\n    task['data'].clear()\n    messages.clear()\n    return 1"
    (tmp_path / "judge.py").write_text(body)
    tasks = [Task("q", {"messages": [{"role": "user", "content": "?"}], "answer": "5"}) for _ in range(2)]
    found: Any = RewardTasks(tmp_path / "judge.py").game(tasks[0]).outcome()
    await found
    assert tasks[0] == tasks[1]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda own: st.lists(own, max_size=3), max_leaves=5
)


def written(arguments: Any) -> dict[str, Any]:
    """A policy's message with one call whose arguments are as given."""
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@given(st.dictionaries(st.text().filter(lambda name: name not in ("name", "call_id")), VALUES))
def test_a_call_is_read_back_as_it_was_written(arguments: dict[str, Any]) -> None:
    (call,) = calls_of(calling("price", "c7", **arguments))
    assert (call.id, call.name, call.arguments, call.error) == ("c7", "price", arguments, "")


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "null", '{"a": 1} {', "9" * 5000, "[" * 100_000])
def test_arguments_that_are_no_json_object_are_an_error_with_the_call_still_named(text: str) -> None:
    (call,) = calls_of(written(text))
    assert (call.id, call.name, call.arguments) == ("c1", "price", {})
    assert call.error


def test_a_tool_is_what_chat_completions_take() -> None:
    made = tool("price", "A price.", item="string", unit={"type": "string", "enum": ["cent"]})
    unit = {"type": "string", "enum": ["cent"]}
    parameters = {
        "type": "object", "properties": {"item": {"type": "string"}, "unit": unit}, "required": ["item", "unit"]
    }  # fmt: skip
    function = {"name": "price", "description": "A price.", "parameters": parameters}
    assert json.loads(json.dumps(made)) == {"type": "function", "function": function}


def test_the_text_of_a_message_is_that_of_all_its_parts() -> None:
    assert text_of(calling("price")) == ""
    assert text_of({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "ab"


ids = st.text(min_size=1).filter(lambda text: text.isprintable())
values = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans()), max_size=3)


@given(st.dictionaries(ids, values, min_size=1, max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    tasks = tuple(Task(name, value) for name, value in data.items())
    path = tmp_path_factory.getbasetemp() / "tasks.json"
    path.write_text(to_json(tasks))
    assert read_tasks(path) == tasks


@pytest.mark.parametrize(("text", "expected"), [
    (None, "could not read"), ("nonsense", "no JSON"), ("[" * 100_000, "no JSON"), ("[]", "[]"),
    ('{"id": "a"}', '{"id": "a"}'), ('[{"id": "a"}, 7]', "task 2 is 7"), ('[{"id": ""}]', "task 1"),
    ('[{"id": 3}]', "task 1"), ('[{"id": "a", "data": [1]}]', "task 1"), ('[{"id": "a", "date": {}}]', "task 1"),
    ('[{"id": "a"}, {"id": "b"}, {"id": "a"}]', "'a' 2 times"),
    ('[{"id": "a"}, {"id": "b\\ud800"}]', "whole characters"),
    (json.dumps([{"id": "a" * 513}]), "at most 512"),
])  # fmt: skip
def test_what_is_no_list_of_tasks_is_refused(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "tasks.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_tasks(path)
    assert expected in str(refused.value)
    assert str(path) in str(refused.value)


def test_tasks_an_environment_cannot_pose_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"id": "sum", "data": {"left": 1, "right": 2}}]))
    tasks = read_tasks(path)
    assert check_tasks(tasks, get_environment("arith")) == tasks
    with pytest.raises(InvalidRequest, match=r"guess.*'sum'.*KeyError"):
        check_tasks(tasks, get_environment("guess"))
