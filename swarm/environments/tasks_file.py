"""Tasks in a file, so that whoever plays them need not know how they were chosen.

A JSON list of {"id", "data"}; `kind` may stand beside them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swarm.environments.base import Environment, Task
from swarm.errors import InvalidRequest

LONGEST_ID = 512
"""Characters, as `swarm.wire.TaskId` has it."""
_EXPECTED = 'a JSON list of tasks like {"id": "sum-1", "data": {"left": 1, "right": 2}}'


def to_json(tasks: Iterable[Task]) -> str:
    """Return the file's text for tasks."""
    return json.dumps(
        [{"id": task.id, "data": dict(task.data)} | ({"kind": task.kind} if task.kind else {}) for task in tasks]
    )


def from_json(text: bytes | str) -> tuple[Task, ...]:
    """Return the tasks of a text that `to_json` wrote."""
    return tuple(Task(value["id"], value["data"], value.get("kind", "")) for value in json.loads(text))


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Return the tasks of a file in their order; raises InvalidRequest."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"expected a file of tasks, could not read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"expected {_EXPECTED} in {path}; found no JSON: {error}") from error
    if not isinstance(values, list) or not values:
        raise InvalidRequest(f"expected {_EXPECTED} in {path}; found {_shown(values)}")
    tasks = tuple(_task(value, place, path) for place, value in enumerate(values, start=1))
    twice, times = Counter(task.id for task in tasks).most_common(1)[0]
    if times > 1:
        raise InvalidRequest(f"expected each task once in {path}; found the id {twice!r} {times} times")
    return tasks


def fitting(tasks: tuple[Task, ...], environment: Environment) -> tuple[Task, ...]:
    """Return the tasks if an environment can pose each; raises InvalidRequest, which names the first that it cannot."""
    for task in tasks:
        try:
            environment.game(task).opening()
        except Exception as error:  # whatever foreign data does to a game
            said = f"{type(error).__name__}: {error}"
            raise InvalidRequest(
                f"expected tasks of the environment {environment.name}; it cannot pose {task.id!r} ({said})"
            ) from error
    return tasks


def _task(value: Any, place: int, path: Path) -> Task:
    if not _fits(value):
        raise InvalidRequest(f"expected {_EXPECTED} in {path}; task {place} is {_shown(value)}")
    if len(value["id"]) > LONGEST_ID or not is_whole(value["id"]):
        raise InvalidRequest(
            f"expected ids of at most {LONGEST_ID} whole characters in {path}; task {place} is {_shown(value)}"
        )
    return Task(value["id"], value.get("data", {}), value.get("kind", ""))


def _fits(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {"id", "data", "kind"}:
        return False
    texts = isinstance(value.get("id"), str) and isinstance(value.get("kind", ""), str)
    return texts and value["id"] != "" and isinstance(value.get("data", {}), dict)


def is_whole(text: str) -> bool:
    """Say whether a text has no half of a character, which JSON may escape and no server can be sent."""
    return text.encode(errors="ignore").decode() == text


def _shown(value: Any) -> str:
    return json.dumps(value)[:80]
