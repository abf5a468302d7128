"""An environment of two parts that a user has anyway: a file of tasks, and a function that judges an answer.

    {"id": "q1", "prompt": "What is 2+3? Reply with the number.", "answer": "5"}      a line of tasks.jsonl

    def reward(task, messages):                                                        rewards.py
        return float(messages[-1]["content"].strip() == task["data"]["answer"])

A line has `prompt` (a text) or `messages`, and may have `id`, `kind` and `split`; all else is the task's data. The
function returns a reward from 0 to 1, or (reward, whether the task is solved); without the latter a reward of 1 is.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from swarm.environments.base import Environment, Game, Message, Outcome, Split, Task
from swarm.environments.playing.code import call, load
from swarm.errors import InvalidRequest

PROMPT: Final = "messages"
ADD_PACKAGE: Final = "name it in a requirements.txt beside that file"
"""How the user of an environment's code has a package that is missing."""
_OWN = ("id", "kind", "split")
_EXPECTED = 'a line like {"prompt": "What is 2+3?", "answer": "5"}'


class JudgedGame(Game):
    """One question and one answer, judged by the user's function."""

    def __init__(self, task: Task, reward: Callable[..., Any]) -> None:
        self._task, self._reward = task, reward
        self._messages: list[Message] = list(copy.deepcopy(task.data[PROMPT]))

    def opening(self) -> list[Message]:
        """Return the task's prompt."""
        return list(self._messages)

    def answer(self, message: Message) -> list[Message]:
        """Take the answer; the play is over."""
        self._messages.append(message)
        return []

    async def outcome(self) -> Outcome:
        """Return what the function says of the conversation."""
        data = {name: value for name, value in self._task.data.items() if name != PROMPT}
        found = await call(self._reward, {"id": self._task.id, "data": copy.deepcopy(data)}, list(self._messages))
        if isinstance(found, tuple) and len(found) == 2:
            solved: Any = found[1] if isinstance(found[1], str) else bool(found[1])  # a text is refused with the rest
            return Outcome(found[0], solved)
        return Outcome(float(found) if isinstance(found, bool) else found)


class JudgedTasks(Environment):
    """Tasks of a file, judged by a function."""

    solved_at: ClassVar[float] = 1.0
    measures: ClassVar[str] = "its reward function gives 1"

    def __init__(self, reward: Path | None, function: str = "") -> None:
        """Load the reward function; raises InvalidRequest."""
        assert reward is not None
        place = f"{reward}:{function}" if function else str(reward)
        self._reward = load(place, "reward", takes="task, messages", add_package=ADD_PACKAGE)

    def game(self, task: Task) -> Game:
        """Return a fresh play of a task."""
        return JudgedGame(task, self._reward)


def read_lines(path: Path) -> tuple[tuple[Task, Split | None], ...]:
    """Return the tasks of a file of JSON lines, each with the split that it names; raises InvalidRequest."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidRequest(f"expected a file of tasks, could not read {path}: {error.strerror}") from error
    found = tuple(_task(line, place, path) for place, line in enumerate(lines, start=1) if line.strip())
    if not found:
        raise InvalidRequest(f"expected {_EXPECTED} for each task in {path}; found an empty file")
    _check_once(lines, found, path)
    return found


def _check_once(lines: Sequence[bytes], found: Sequence[tuple[Task, Split | None]], path: Path) -> None:
    name, times = Counter(task.id for task, _ in found).most_common(1)[0]
    if times > 1:
        ids = (task.id for task, _ in found)
        full = (place for place, line in enumerate(lines, start=1) if line.strip())
        one, other = [place for place, each in zip(full, ids, strict=True) if each == name][:2]
        raise InvalidRequest(
            f"expected each task once in {path}; found the id {name!r:.80} {times} times, in lines {one} and {other}"
            f"{' and others' if times > 2 else ''}"
        )


def _task(line: bytes, place: int, path: Path) -> tuple[Task, Split | None]:
    where = f"{path.name}, line {place}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"expected {_EXPECTED} in {where}; found no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"expected {_EXPECTED} in {where}; found {type(value).__name__}")
    split = value.get("split")
    if split not in (None, "train", "search", "hidden"):
        raise InvalidRequest(f"expected the split train, search or hidden in {where}; found {split!r}")
    data = {name: item for name, item in value.items() if name not in _OWN and name != "prompt"}
    data[PROMPT] = _messages(value, where)
    key = value.get("id", "task-" + hashlib.sha256(line).hexdigest()[:12])
    return Task(str(key), data, str(value.get("kind") or "")), split


def _messages(value: dict[str, Any], where: str) -> list[Message]:
    prompt, messages = value.get("prompt"), value.get(PROMPT)
    if isinstance(prompt, str) and messages is None:
        return [{"role": "user", "content": prompt}]
    if prompt is None and isinstance(messages, list) and messages and all(map(_is_message, messages)):
        return messages
    raise InvalidRequest(f"expected a text as `prompt`, or a list of chat messages as `messages`, in {where}")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def names_splits(lines: Sequence[tuple[Task, Split | None]]) -> bool:
    """Return whether all lines name their split; raise InvalidRequest where only some do."""
    named = sum(split is not None for _, split in lines)
    if named not in (0, len(lines)):
        raise InvalidRequest(f"expected a split in each line, or in none; found it in {named} of {len(lines)}")
    return named > 0
