"""An environment's tasks are drawn once, split, checked, and written down.

Whatever way an environment gives its tasks, what comes out is three disjoint lists. Of `records`, those that say the
same words, in whatever order, are on one side. For `generate`, seeds and splits follow from a secret of the
installation: whoever has the generator does not know which problems are hidden.
"""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

from swarm.environments.base import Environment, Split, Task
from swarm.environments.bringing.problems import problem, words
from swarm.environments.brought import MOST_GIVEN_BYTES
from swarm.environments.splits import split_of
from swarm.environments.tasks_file import LONGEST_ID, is_whole
from swarm.errors import InvalidRequest

Way = Literal["splits", "records", "seeds"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)
LEAST: Final[Mapping[Split, int]] = {"train": 8, "search": 2, "hidden": 8}
"""Fewest tasks of a split: a batch has groups of several, and an evaluation is no one task."""
MOST_TASKS: Final = 200_000
_LEAST: Final = " and ".join(f"{least} {split}" for split, least in LEAST.items())
OWN_SPLITS: Final = "add some, or give tasks(split)"
_ENOUGH: Final = 60
"""Different tasks, of which hardly ever too few are of one split."""
_IDLE: Final = 4000
"""Seeds in a row that give nothing new, after which there is nothing more to find."""

Drawn = Mapping[Split, tuple[Task, ...]]


def draw(environment: Environment, secret: bytes, remedy: str = OWN_SPLITS) -> tuple[Way, Drawn]:
    """Return how an environment gives its tasks, and the tasks by split; raise InvalidRequest for what is unsound.

    `remedy` is what its author can do where a split has too few. Whatever the environment's own code raises passes
    through.
    """
    way = way_of(environment)
    match way:
        case "splits":
            drawn: Drawn = {split: tuple(environment.tasks(split)) for split in SPLITS}
        case "records":
            drawn = split_records(environment.records(), environment.name)
        case "seeds":
            drawn = generated(environment, secret)
    _check_counts(environment.name, way, drawn, remedy)
    check(environment.name, drawn)
    return way, drawn


def way_of(environment: Environment) -> Way:
    """Return how an environment gives its tasks; raise InvalidRequest unless it is one way."""
    ways: dict[str, Way] = {"tasks": "splits", "records": "records", "generate": "seeds"}
    own = [part for part in ways if environment.has(part)]
    if len(own) != 1:
        raise InvalidRequest(
            f"expected the environment {environment.name} to have one of tasks(split), records() and generate(seed); "
            f"found {' and '.join(own) or 'none'}"
        )
    return ways[own[0]]


def split_records(records: Sequence[Task], name: str) -> Drawn:
    """Return one list of tasks by split: a hash of what a task says decides, whatever file or environment it is of."""
    found: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for task in _tasks(records, name, "train"):
        found[split_of(words(task))].append(task)
    return {split: tuple(tasks) for split, tasks in found.items()}


def generated(environment: Environment, secret: bytes) -> Drawn:
    """Return the tasks that an environment makes of seeds, each problem once.

    Which split a problem is of follows from the secret and its words, so that a small world has some of each.
    """
    _check_sizes(environment)
    found: dict[Split, dict[str, Task]] = {split: {} for split in SPLITS}
    seeds, idle = _seeds(secret, environment.name), 0
    while idle < _IDLE and any(len(found[split]) < environment.sizes[split] for split in SPLITS):
        (task,) = _tasks([environment.generate(next(seeds))], environment.name, "train")
        split = split_of(hmac.digest(secret, words(task).encode(), "sha256").hex())
        own, posed = found[split], problem(task)
        fresh = posed not in own and len(own) < environment.sizes[split]
        if fresh:
            own[posed] = task
        idle = 0 if fresh else idle + 1
    return {split: tuple(own.values()) for split, own in found.items()}


def _check_sizes(environment: Environment) -> None:
    sizes = environment.sizes
    numbers = all(isinstance(sizes.get(split), int) for split in SPLITS)
    if not numbers or any(sizes[split] < LEAST[split] for split in SPLITS) or sum(sizes.values()) > MOST_TASKS:
        raise InvalidRequest(
            f"expected sizes of {environment.name} as a number of train, search and hidden tasks, at least {_LEAST}, "
            f"at most {MOST_TASKS} in all; found {sizes!r:.80}"
        )


def _seeds(secret: bytes, name: str) -> Iterator[int]:
    for index in itertools.count():
        code = hmac.digest(secret, f"{name}:{index}".encode(), "sha256")
        yield int.from_bytes(code[:8], "big") >> 1


def _check_counts(name: str, way: Way, drawn: Drawn, remedy: str) -> None:
    """Raise InvalidRequest where a split has too few tasks, with how many there were and what became of them."""
    if all(len(drawn[split]) >= LEAST[split] for split in SPLITS):
        return
    tasks = [task for own in drawn.values() for task in own]
    parted = ", ".join(f"{len(drawn[split])} {split}" for split in SPLITS)
    raise InvalidRequest(
        f"expected {_LEAST} tasks or more of {name}; found {_origin(way, tasks)}{parted}; "
        f"{'add some' if way == 'splits' else f'about {_ENOUGH} different ones are enough: {remedy}'}"
    )


def _origin(way: Way, tasks: Sequence[Task]) -> str:
    """Return where the tasks of too small splits came from, and how many of them say nothing new."""
    if way == "splits":
        return ""
    if way == "seeds":
        return f"{len(tasks)} different ones among all its seeds (the last {_IDLE} gave no new one): "
    different = len(set(map(words, tasks)))
    alike = f", {len(tasks) - different} of which say the same as another, in whatever order, and go with it"
    return f"{len(tasks)} records{alike if different < len(tasks) else ''}, split by a hash: "


def check(name: str, drawn: Drawn) -> None:
    """Raise InvalidRequest where tasks are no tasks, or splits share one."""
    ids: dict[str, Split] = {}
    problems: dict[str, tuple[Split, str]] = {}
    for split, tasks in drawn.items():
        size = 0
        for task in _tasks(tasks, name, split):
            posed = problem(task)
            size += len(posed)
            if task.id in ids:
                raise InvalidRequest(
                    f"expected each id once in {name}; found {task.id!r:.60} in {_both(ids[task.id], split)}"
                )
            ids[task.id] = split
            home, other = problems.setdefault(posed, (split, task.id))
            if home != split:
                raise InvalidRequest(
                    f"expected disjoint splits of {name}; {task.id!r:.80} ({split}) is the same problem as "
                    f"{other!r:.80} ({home}); keep one"
                )
        if size > MOST_GIVEN_BYTES:
            raise InvalidRequest(too_large(name, split, size))
    if len(ids) > MOST_TASKS:
        raise InvalidRequest(f"expected at most {MOST_TASKS} tasks in {name}; found {len(ids)}; give fewer")


def too_large(name: str, split: Split, size: int, code: int = 0) -> str:
    """Return what is said of an environment whose code and tasks of a split are more than one that plays is given."""
    beside = f" and {code / (1 << 20):.1f} MiB of code" if code else ""
    return (
        f"expected at most {MOST_GIVEN_BYTES >> 20} MiB of code and {split} tasks together in {name}, as whoever "
        f"plays is given no more; found {size / (1 << 20):.1f} MiB of {split} tasks{beside}; give fewer or smaller ones"
    )


def _both(one: Split, other: Split) -> str:
    return f"{one} twice" if one == other else f"{one} and {other}"


def _tasks(tasks: Iterable[Task], name: str, split: Split) -> Iterator[Task]:
    for task in tasks:
        if not isinstance(task, Task):
            raise InvalidRequest(
                f"expected swarm.environments.Task as {split} tasks of {name}; found {type(task).__name__}"
            )
        if not isinstance(task.id, str) or not 0 < len(task.id) <= LONGEST_ID:
            raise InvalidRequest(f"expected ids of 1 to {LONGEST_ID} characters in {name}; found {task.id!r:.80}")
        if not is_whole(task.id) or not isinstance(task.kind, str) or not isinstance(task.data, dict):
            raise InvalidRequest(
                f"expected a text of whole characters as the id, a dict as the data, and a text as the kind of each "
                f"task in {name}; found {task!r:.120}"
            )
        yield task
