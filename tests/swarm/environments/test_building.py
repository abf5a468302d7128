"""What an environment is, is written down once, and its words are words; memory that grows by each play is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import Environment, Game, Message, Outcome, Split, Task, said
from swarm.environments.building import PLAYS, SPLITS, probe, write_lines, write_tasks
from swarm.environments.custom import DEMONSTRATIONS, data_hash, from_json
from swarm.environments.loading import RewardTasks
from swarm.environments.measuring import require_declared
from swarm.environments.user_code import RewardFailed
from swarm.errors import InvalidRequest
from tests.golden import refused


class Echo(Environment):
    name, title, measures = "echo", "an echo", "it is the same"

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}-{n}", {"word": f"{split}{n}"}) for n in range(8)]

    def game(self, task: Task) -> Game:
        return EchoGame(task.data["word"])


class EchoGame(Game):
    def __init__(self, word: str) -> None:
        self._word = word

    def opening(self) -> Any:
        return [{"role": "user", "content": self._word}]

    def outcome(self) -> Outcome:
        return Outcome(0.0, False)


class Shown(Echo):
    def imitate(self, task: Task, rng: Any) -> list[Message]:
        return [{"role": "user", "content": task.data["word"]}, said(f"{task.data['word']} {rng.random()}")]


def test_tasks_and_demonstrations_are_written_down_the_same_twice(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    known = [write_tasks(Shown(), b"", folder) for folder in folders]
    assert known[0] == known[1]
    assert data_hash(folders[0]) == data_hash(folders[1])
    assert known[0]["splits"] == dict.fromkeys(SPLITS, 8)
    assert (known[0]["demonstrations"], known[0]["oracle"], known[0]["own_agent"]) == (PLAYS, False, False)
    assert from_json((folders[0] / "tasks" / "hidden.json").read_bytes()) == tuple(Shown().tasks("hidden"))
    plays = json.loads((folders[0] / DEMONSTRATIONS).read_bytes())
    assert {play[0]["content"] for play in plays} <= {task.data["word"] for task in Shown().tasks("train")}


def test_the_same_lines_are_split_the_same_whatever_their_file_is_called_and_too_few_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("def reward(task, messages):\n    return 1.0\n")
    judged = RewardTasks(tmp_path / "judge.py")
    for name, count in (("one", 80), ("other", 80), ("few", 12)):
        lines = "".join(json.dumps({"prompt": f"say word{n}"}) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    for name in ("one", "other"):
        write_lines(judged, name, str(tmp_path / f"{name}.jsonl"), tmp_path / name)
    for split in SPLITS:
        one, other = ((tmp_path / name / "tasks" / f"{split}.json").read_text() for name in ("one", "other"))
        assert one == other
    with refused(InvalidRequest, "12 records", "in each line"):
        write_lines(judged, "few", str(tmp_path / "few.jsonl"), tmp_path / "out")


@pytest.mark.parametrize(("own", "expected"), [
    ({"name": "Echo"}, "a name of 1 to 64"), ({"name": "e" * 65}, "a name of 1 to 64"),
    ({"name": "a/b"}, "a name of 1 to 64"), ({"name": "echo@1"}, "a name of 1 to 64"),
    *(({"name": name}, f"'{name}', which is") for name in ("guess", "arith", "market")),
    ({"name": 3}, "`name` of Own"),
    ({"title": None}, "`title` of Own"),
    ({"measures": ["x"]}, "`measures` of Own"),
    ({"reward_range": (1, 0)}, "expected reward_range as (least, largest) of Own"),
    ({"reward_range": (0, 0)}, "reward_range as"), ({"reward_range": 1}, "reward_range as"),
    ({"reward_range": (0, 1, 2)}, "reward_range as"),
    ({"reward_range": (0, float("nan"))}, "reward_range as"),
    ({"reward_range": (0, float("inf"))}, "reward_range as"),
    ({"reward_range": ("0", "1")}, "reward_range as"),
    ({"solved_at": 2.0}, "solved_at of Own"),
    ({"solved_at": float("nan")}, "solved_at of Own"),
    ({"solved_at": "1"}, "solved_at of Own"),
    ({"synonyms": "echo"}, "synonyms as"),
    ({"synonyms": ("echo", 3)}, "synonyms as"),
    ({"synonyms": (" ",)}, "synonyms as"),
    ({"imitate": lambda *_: "hello"}, "of imitate()"),
    ({"imitate": lambda *_: [{"role": "user", "content": "?"}]}, "whole plays"),
])  # fmt: skip
def test_words_and_numbers_that_are_none_are_refused(own: dict[str, Any], expected: str, tmp_path: Path) -> None:
    environment = type("Own", (Echo,), own)()
    with pytest.raises((InvalidRequest, TypeError)) as caught:
        write_tasks(environment, b"", tmp_path)
    assert expected in str(caught.value)


def drawn() -> dict[Split, tuple[Task, ...]]:
    return {split: tuple(Echo().tasks(split)) for split in SPLITS}


async def test_code_that_makes_the_hidden_tasks_by_itself_is_found_out() -> None:
    class Apart(Echo):
        def tasks(self, split: Split) -> Sequence[Task]:
            raise FileNotFoundError("tasks.json")

    class Other(Echo):
        def tasks(self, split: Split) -> Sequence[Task]:
            return [Task("x", {"word": "x"})]

    class OneOfThem(Apart):
        def tasks(self, split: Split) -> Sequence[Task]:
            return Echo().tasks("hidden")[:1]

    found = [await probe(environment, drawn()) for environment in (Echo(), Apart(), Other(), OneOfThem())]
    assert found == [True, False, False, True]


@pytest.mark.parametrize("opening", [None, [], "word", [3], {"role": "user"}])
async def test_tasks_that_cannot_be_posed_are_refused_by_their_id(opening: Any) -> None:
    class Odd(Echo):
        def game(self, task: Task) -> Game:
            game = EchoGame("x")
            game.opening = lambda: opening  # type: ignore[method-assign]
            return game

    with pytest.raises(InvalidRequest, match="'train-0'"):
        await probe(Odd(), drawn())


@pytest.mark.parametrize(
    ("said", "fault"),
    [({}, "'calls' of every play, found none"), ({"calls": 5.0}, "declared range, 4 to 0, found 5; widen the range")],
)
def test_a_declared_fact_that_a_play_lacks_or_has_beyond_range_is_a_fault(said: dict[str, float], fault: str) -> None:
    with pytest.raises(RewardFailed, match=fault):
        require_declared({"calls": (4.0, 0.0)}, said)
    require_declared({"calls": (4.0, 0.0)}, {"calls": 4.0, "more": 9.0})
