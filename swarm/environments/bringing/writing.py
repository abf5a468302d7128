"""Writes down what an environment is: its tasks, demonstrations and words, as a draft that only lacks its name.

It runs in a process of its own (`python -m swarm.environments.bringing`), because it runs foreign code: first where all
of the environment's files are (`draw`), then once more where only those lie that its clients get (`probe`).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any, Final

from swarm.environments.base import Demonstration, Environment, Game, Split, Task
from swarm.environments.bringing.drawing import OWN_SPLITS, Drawn, Way, draw
from swarm.environments.bringing.judged_tasks import names_splits, read_lines
from swarm.environments.brought import DEMONSTRATIONS, demonstrations_to_json
from swarm.environments.playing.code import call, where_of
from swarm.environments.playing.play import chat_messages
from swarm.environments.registry import built_in_names
from swarm.environments.tasks_file import to_json
from swarm.errors import InvalidRequest

PLAYS: Final = 1000
"""Demonstrations that are written down."""
PLAY_S: Final = 20.0
"""Seconds that one demonstration, or the posing of one task, may take."""
ASKED: Final = "asked"
"""Beside what a manifest says: how many tasks the seeds were to give; 0 where they are given otherwise."""
POSED: Final = 8
"""Tasks of each split that are posed, to see that they can be."""
_SPLIT_LINES: Final = "add some, or name a split in each line"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def write_tasks(
    environment: Environment, secret: bytes, out: Path, remedy: str = OWN_SPLITS, play_s: float = PLAY_S
) -> dict[str, Any]:
    """Write tasks and demonstrations into a folder; return what a manifest says of the environment, and how many tasks
    were asked for.

    `remedy` is what the user can do where there are too few tasks; a demonstration may take `play_s`.
    """
    words = _words(environment)
    way, drawn = draw(environment, secret, remedy)
    _write(drawn, out)
    plays = _demonstrations(environment, drawn["train"], play_s) if environment.has("imitate") else []
    if plays:
        (out / DEMONSTRATIONS).write_text(demonstrations_to_json(plays), encoding="utf-8")
    return {
        **words, "drawn_by": way, "splits": {split: len(tasks) for split, tasks in drawn.items()},
        ASKED: sum(environment.sizes.values()) if way == "seeds" else 0,
        "demonstrations": len(plays), "own_agent": environment.has("agent"), "oracle": environment.has("oracle"),
    }  # fmt: skip


def write_lines(environment: Environment, name: str, lines: Path, out: Path) -> dict[str, Any]:
    """Write the tasks of a file of lines into a folder; return what a manifest says of them and their judge."""
    found = read_lines(lines)
    environment.name = name  # type: ignore[misc]  # of each one its own
    environment.title = f"the tasks of {lines.name}"  # type: ignore[misc]
    way: Way = "splits" if names_splits(found) else "records"
    tasks = [task for task, _ in found]
    by_split = {split: [task for task, own in found if own == split] for split in ("train", "search", "hidden")}
    given = type(
        "Given", (Environment,),
        {"name": name, "tasks": lambda _, split: by_split[split]} if way == "splits" else
        {"name": name, "records": lambda _: tasks},
    )()  # fmt: skip
    _, drawn = draw(given, b"", _SPLIT_LINES)
    _write(drawn, out)
    return {
        **_words(environment), "drawn_by": way, "splits": {split: len(own) for split, own in drawn.items()},
    }  # fmt: skip


def _write(drawn: Drawn, out: Path) -> None:
    (out / "tasks").mkdir(parents=True, exist_ok=True)
    for split, tasks in drawn.items():
        (out / "tasks" / f"{split}.json").write_text(to_json(tasks), encoding="utf-8")


async def probe(environment: Environment, tasks: Mapping[Split, tuple[Task, ...]], play_s: float = PLAY_S) -> bool:
    """Pose some tasks of each split by the code alone; return whether that code makes hidden tasks by itself.

    Raises InvalidRequest for tasks that it cannot pose.
    """
    if not environment.has("agent"):
        for own in tasks.values():
            for task in islice(own, POSED):
                await _pose(environment, task, play_s)
    return _makes(environment, {_said(task) for task in tasks["hidden"]})


async def _pose(environment: Environment, task: Task, play_s: float) -> None:
    try:
        async with asyncio.timeout(play_s):
            game = await call(environment.game, task)
            if not isinstance(game, Game):
                raise TypeError(f"expected a swarm.environments.Game of game(task), found {type(game).__name__}")
            if not chat_messages(await call(game.opening), "opening"):
                raise TypeError("expected a message or more of opening(), found none")
    except Exception as error:  # whatever foreign code does to a task
        said = f"{type(error).__name__}: {error}{where_of(error)}"
        raise InvalidRequest(
            f"expected the environment {environment.name} to pose its task {task.id!r:.80} by the code that clients "
            f"hold; it fails: {' '.join(said.split())}"
        ) from error


def _makes(environment: Environment, hidden: set[str]) -> bool:
    """Return whether code without records gives any hidden task; that of a generator needs seeds it does not have."""
    given: list[Task] = []
    for part, arguments in (("tasks", ("hidden",)), ("records", ())):
        if environment.has(part):
            try:
                given += getattr(environment, part)(*arguments)
            except Exception:  # noqa: BLE001  # what it needs for them is not there, as is to be shown
                return False
    return any(isinstance(task, Task) and _said(task) in hidden for task in given)


def _said(task: Task) -> str:
    return json.dumps([task.id, task.data], sort_keys=True, default=str)


@contextmanager
def _bounded(play_s: float) -> Iterator[None]:
    """Raise TimeoutError within foreign code that takes longer, where it stands; in a process's main thread alone."""

    def late(*_: object) -> None:
        raise TimeoutError(f"a play of imitate() did not end within {play_s:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, play_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _demonstrations(environment: Environment, tasks: tuple[Task, ...], play_s: float) -> list[Demonstration]:
    rng, plays = random.Random(0), []
    for _ in range(PLAYS):
        with _bounded(play_s):
            plays.append(environment.demonstrate(rng.choice(tasks), rng))
    for play in plays:
        if not any(message["role"] == "assistant" for message in chat_messages(play.messages, "imitate")):
            raise InvalidRequest(
                f"expected whole plays with answers of {environment.name}.imitate; found {play.messages!r:.80}; return "
                "messages"
            )
    return plays


def _words(environment: Environment) -> dict[str, Any]:
    """Return the words and ranges of an environment; raise InvalidRequest for those that are missing or no such."""
    kind = type(environment).__name__
    missing = [name for name in ("name", "title", "measures") if not isinstance(getattr(environment, name, None), str)]
    if missing:
        raise InvalidRequest(f"expected a text as `{missing[0]}` of {kind}; found none; add it to the class")
    if not _NAME.fullmatch(environment.name):
        raise InvalidRequest(
            f"expected a name of 1 to 64 letters a-z, digits, '-', '_', '.'; found {environment.name!r:.70}"
        )
    if environment.name in built_in_names():
        raise InvalidRequest(
            f"expected a name of its own; found {environment.name!r}, which is that of a built-in environment; give it "
            "another (the name of a file of tasks is the file's)"
        )
    low, high = _range(environment, kind)
    solved_at = environment.solved_at
    if solved_at is not None and not (isinstance(solved_at, Real) and low <= solved_at <= high):
        raise InvalidRequest(f"expected solved_at of {kind} within its reward_range; found {solved_at!r:.80}")
    return {
        "name": environment.name, "title": environment.title, "measures": environment.measures,
        "synonyms": _synonyms(environment, kind), "reward_range": [low, high],
        "solved_at": None if solved_at is None else float(solved_at), "facts": _facts(environment, kind),
    }  # fmt: skip


def _range(environment: Environment, kind: str) -> tuple[float, float]:
    given = environment.reward_range
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(end, Real) for end in given):
        low, high = map(float, given)
        if -1e9 < low < high < 1e9:
            return low, high
    raise InvalidRequest(f"expected reward_range as (least, largest) of {kind}; found {given!r:.80}")


def _facts(environment: Environment, kind: str) -> dict[str, list[float]]:
    given = environment.facts
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name.strip() for name in given):
        raise InvalidRequest(f"expected facts of {kind} as {{'NAME': (worst, best)}}; found {given!r:.80}")
    return {name: _ends(name, ends, kind) for name, ends in given.items()}


def _ends(name: str, given: Any, kind: str) -> list[float]:
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(end, Real) for end in given):
        worst, best = map(float, given)
        if worst != best and max(abs(worst), abs(best)) < 1e9:
            return [worst, best]
    raise InvalidRequest(f"expected the fact {name!r:.80} of {kind} as (worst, best), two numbers; found {given!r:.80}")


def _synonyms(environment: Environment, kind: str) -> list[str]:
    given = environment.synonyms
    if not isinstance(given, tuple | list) or not all(isinstance(name, str) and name.strip() for name in given):
        raise InvalidRequest(f"expected synonyms as a tuple of texts of {kind}; found {given!r:.80}")
    return [name.casefold() for name in given]
