"""What an evaluator plays is chosen by a seed, and what it writes is bounded, and whole or not there."""

from __future__ import annotations

import errno
import json
from collections import Counter
from pathlib import Path

import pytest

from swarm.environments import Task, calling, get_environment, said
from swarm.environments.play import MOST_CHARACTERS, MOST_MESSAGES, Transcripts, rounds, write_json


def test_a_play_is_kept_once_within_bounds() -> None:
    plays = Transcripts(["t", "never played"])
    parts = [{"type": "text", "text": "How much?"}]
    long = [{"role": "user", "content": "x" * 9000}] * 50
    plays.record(Task("t"), [{"role": "user", "content": parts}, calling("price", item="tea"), *long])
    plays.record(Task("t"), [said("a second play")])
    (kept,) = plays.kept()
    assert len(kept["messages"]) == MOST_MESSAGES
    question, call, answer, *_ = (message["content"] for message in kept["messages"])
    assert (question, call) == (json.dumps(parts), 'price({"item": "tea"})')
    assert len(answer) == MOST_CHARACTERS


def test_the_seed_alone_decides_what_is_evaluated_and_tasks_are_equally_often_give_or_take_one() -> None:
    tasks = get_environment("arith").tasks("hidden")
    assert rounds(tasks, 500, 1) == rounds(tasks, 500, 1)
    assert rounds(tasks, 500, 1) != rounds(tasks, 500, 2)
    played = Counter(task.id for part in rounds(tasks, 2 * len(tasks) + 3, 0) for task in part)
    assert sorted(played.values()) == [2] * (len(tasks) - 3) + [3] * 3


def test_what_cannot_be_written_leaves_what_was_there_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "during.json"
    write_json(path, {"evaluations": []})

    def full(self: Path, text: str) -> int:
        with self.open("w") as file:
            file.write(text[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"evaluations": [1]})
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == '{"evaluations": []}'
