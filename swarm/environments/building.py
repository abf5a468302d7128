"""Draws, splits, checks and writes down an environment's tasks, in a process of its own.

    python -m swarm.environments.building draw  --source JSON --code DIR --out DIR [--lines FILE --name NAME]
    python -m swarm.environments.building probe --source JSON --code DIR --tasks DIR
    python -m swarm.environments.building measure --environment NAME --environments DIR [--plays N ...]

A process because foreign code runs; whoever starts it bounds it. `draw` reads the secret of generated hidden tasks from
standard input before any foreign code is loaded; `probe` poses tasks by the files that clients get alone. Each prints
JSON lines (`measure` ends with {"whole": true}); exit code 2 comes with {"refused": REASON}, 1 where a play took longer
than --seconds. Foreign output goes to standard error.

Splits are three disjoint lists. `records` that say the same words in any order are on one side; for `generate` seeds
and splits follow from a secret of the installation, so the generator alone does not tell which problems are hidden.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import itertools
import json
import os
import random
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any, Final, Literal, TextIO, get_args

from swarm.environments.base import Demonstration, Environment, Game, Split, Task, split_of
from swarm.environments.custom import (
    DEMONSTRATIONS,
    LONGEST_ID,
    MOST_GIVEN_BYTES,
    CodeSource,
    demonstrations_to_json,
    from_json,
    is_whole,
    problem,
    to_json,
    words,
)
from swarm.environments.loading import (
    ADD_PACKAGE,
    PlayableEnvironment,
    load_playable,
    load_source,
    names_splits,
    read_lines,
)
from swarm.environments.measuring import MOST_BYTES, Bounds, UntrainedPlays, bound_files, bound_memory, to_line
from swarm.environments.play import chat_messages
from swarm.environments.processes import watch_parent
from swarm.environments.registry import add_folder, built_in_names
from swarm.environments.user_code import call, describe_place
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

TaskSplits = Mapping[Split, tuple[Task, ...]]


def draw(environment: Environment, secret: bytes, remedy: str = OWN_SPLITS) -> tuple[Way, TaskSplits]:
    """Return how tasks are given, and they by split; InvalidRequest, with the `remedy`, where a split has too few."""
    way = way_of(environment)
    match way:
        case "splits":
            drawn: TaskSplits = {split: tuple(environment.tasks(split)) for split in SPLITS}
        case "records":
            drawn = split_records(environment.records(), environment.name)
        case "seeds":
            drawn = generate_tasks(environment, secret)
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


def split_records(records: Sequence[Task], name: str) -> TaskSplits:
    """Return one list of tasks by split: a hash of what a task says decides, whatever file or environment it is of."""
    found: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for task in _tasks(records, name, "train"):
        found[split_of(words(task))].append(task)
    return {split: tuple(tasks) for split, tasks in found.items()}


def generate_tasks(environment: Environment, secret: bytes) -> TaskSplits:
    """Return the tasks of seeds, each problem once; secret and words say its split: a small world has some of each."""
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


def _check_counts(name: str, way: Way, drawn: TaskSplits, remedy: str) -> None:
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
    if way == "splits":
        return ""
    if way == "seeds":
        return f"{len(tasks)} different ones among all its seeds (the last {_IDLE} gave no new one): "
    different = len(set(map(words, tasks)))
    alike = f", {len(tasks) - different} of which say the same as another, in whatever order, and go with it"
    return f"{len(tasks)} records{alike if different < len(tasks) else ''}, split by a hash: "


def check(name: str, drawn: TaskSplits) -> None:
    ids: dict[str, Split] = {}
    problems: dict[str, tuple[Split, str]] = {}
    for split, tasks in drawn.items():
        size = 0
        for task in _tasks(tasks, name, split):
            posed = problem(task)
            size += len(posed)
            if task.id in ids:
                raise InvalidRequest(
                    f"expected each id once in {name}; found {task.id!r:.60} in {_name_splits(ids[task.id], split)}"
                )
            ids[task.id] = split
            home, other = problems.setdefault(posed, (split, task.id))
            if home != split:
                raise InvalidRequest(
                    f"expected disjoint splits of {name}; {task.id!r:.80} ({split}) is the same problem as "
                    f"{other!r:.80} ({home}); keep one"
                )
        if size > MOST_GIVEN_BYTES:
            raise InvalidRequest(describe_too_large(name, split, size))
    if len(ids) > MOST_TASKS:
        raise InvalidRequest(f"expected at most {MOST_TASKS} tasks in {name}; found {len(ids)}; give fewer")


def describe_too_large(name: str, split: Split, size: int, code: int = 0) -> str:
    beside = f" and {code / (1 << 20):.1f} MiB of code" if code else ""
    return (
        f"expected at most {MOST_GIVEN_BYTES >> 20} MiB of code and {split} tasks together in {name}, as whoever "
        f"plays is given no more; found {size / (1 << 20):.1f} MiB of {split} tasks{beside}; give fewer or smaller ones"
    )


def _name_splits(one: Split, other: Split) -> str:
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
    """Write tasks, and demonstrations of `play_s` at most, into a folder; return what a manifest says, and ASKED."""
    words = _describe(environment)
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
        **_describe(environment), "drawn_by": way, "splits": {split: len(own) for split, own in drawn.items()},
    }  # fmt: skip


def _write(drawn: TaskSplits, out: Path) -> None:
    (out / "tasks").mkdir(parents=True, exist_ok=True)
    for split, tasks in drawn.items():
        (out / "tasks" / f"{split}.json").write_text(to_json(tasks), encoding="utf-8")


async def probe(environment: Environment, tasks: Mapping[Split, tuple[Task, ...]], play_s: float = PLAY_S) -> bool:
    """Pose some tasks of each split by the code alone, or InvalidRequest; return whether it makes hidden ones."""
    if not environment.has("agent"):
        for own in tasks.values():
            for task in islice(own, POSED):
                await _pose(environment, task, play_s)
    return _makes_hidden(environment, {_task_key(task) for task in tasks["hidden"]})


async def _pose(environment: Environment, task: Task, play_s: float) -> None:
    try:
        async with asyncio.timeout(play_s):
            game = await call(environment.game, task)
            if not isinstance(game, Game):
                raise TypeError(f"expected a swarm.environments.Game of game(task), found {type(game).__name__}")
            if not chat_messages(await call(game.opening), "opening"):
                raise TypeError("expected a message or more of opening(), found none")
    except Exception as error:  # whatever foreign code does to a task
        said = f"{type(error).__name__}: {error}{describe_place(error)}"
        raise InvalidRequest(
            f"expected the environment {environment.name} to pose its task {task.id!r:.80} by the code that clients "
            f"hold; it fails: {' '.join(said.split())}"
        ) from error


def _makes_hidden(environment: Environment, hidden: set[str]) -> bool:
    """Return whether code without records gives any hidden task; that of a generator needs seeds it does not have."""
    given: list[Task] = []
    for part, arguments in (("tasks", ("hidden",)), ("records", ())):
        if environment.has(part):
            try:
                given += getattr(environment, part)(*arguments)
            except Exception:  # noqa: BLE001  # what it needs for them is not there, as is to be shown
                return False
    return any(isinstance(task, Task) and _task_key(task) in hidden for task in given)


def _task_key(task: Task) -> str:
    return json.dumps([task.id, task.data], sort_keys=True, default=str)


@contextmanager
def _time_limit(play_s: float) -> Iterator[None]:
    """Raise TimeoutError within foreign code that takes longer, where it stands; in a process's main thread alone."""

    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"a play of imitate() did not end within {play_s:g} s")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, play_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _demonstrations(environment: Environment, tasks: tuple[Task, ...], play_s: float) -> list[Demonstration]:
    rng, plays = random.Random(0), []
    for _ in range(PLAYS):
        with _time_limit(play_s):
            plays.append(environment.demonstrate(rng.choice(tasks), rng))
    for play in plays:
        if not any(message["role"] == "assistant" for message in chat_messages(play.messages, "imitate")):
            raise InvalidRequest(
                f"expected whole plays with answers of {environment.name}.imitate; found {play.messages!r:.80}; return "
                "messages"
            )
    return plays


def _describe(environment: Environment) -> dict[str, Any]:
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
    return {name: _parse_range(name, ends, kind) for name, ends in given.items()}


def _parse_range(name: str, given: Any, kind: str) -> list[float]:
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


BAD = 2
REFUSED = "refused"
OTHER_OPTIONS = "choose options that give more"


def main() -> int:
    arguments = _parser().parse_args()
    watch_parent()
    bound_memory(arguments.memory)
    bound_files()
    secret = bytes.fromhex(sys.stdin.read()) if arguments.action == "draw" else b""
    with _reserve_stdout() as out:
        found: dict[str, Any] | None = None
        try:
            if arguments.action == "measure":
                _measure(arguments, out)
            else:
                found = _draw_tasks(arguments, secret) if arguments.action == "draw" else _probe_tasks(arguments)
        except InvalidRequest as error:
            found = _format_refusal(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever foreign code raises
            remedy = ADD_PACKAGE if isinstance(error, ModuleNotFoundError) else "mend it"
            said = f"{type(error).__name__}: {error}{describe_place(error)}"
            found = _format_refusal(f"the environment's code raised {said}; {remedy}")
        if found is not None:
            out.write(json.dumps(found) + "\n")
    return BAD if found is not None and REFUSED in found else 0


@contextmanager
def _reserve_stdout() -> Iterator[TextIO]:
    """Yield the standard output, which from now on is out of reach of what foreign code prints, from C too."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        yield out


def _draw_tasks(arguments: argparse.Namespace, secret: bytes) -> dict[str, Any]:
    source = CodeSource.model_validate_json(arguments.source)
    environment = load_source(source, arguments.code)
    if arguments.lines:
        return write_lines(environment, arguments.name, arguments.lines, arguments.out)
    remedy = OTHER_OPTIONS if source.kind == "adapter" else OWN_SPLITS
    return write_tasks(environment, secret, arguments.out, remedy, arguments.play_seconds)


def _probe_tasks(arguments: argparse.Namespace) -> dict[str, Any]:
    environment = load_source(CodeSource.model_validate_json(arguments.source), arguments.code)
    if not hasattr(environment, "name"):
        environment.name = "environment"  # type: ignore[misc]  # of a reward function's, which has none by itself
    tasks = {split: from_json((arguments.tasks / f"{split}.json").read_bytes()) for split in SPLITS}
    return {"hidden_apart": not asyncio.run(probe(environment, tasks, arguments.play_seconds))}


def _measure(arguments: argparse.Namespace, out: TextIO) -> None:
    def tell(value: dict[str, Any]) -> None:
        out.write(to_line(value))
        out.flush()

    add_folder(arguments.environments)
    environment = load_playable(arguments.environment)
    code = environment.code if isinstance(environment, PlayableEnvironment) else environment
    tasks = [*environment.tasks("train"), *environment.tasks("search")]
    bounds = Bounds(arguments.plays, arguments.seconds, arguments.answers)
    asyncio.run(UntrainedPlays(environment, code, tasks, bounds).run(tell))
    tell({"whole": True})


def _format_refusal(said: str) -> dict[str, Any]:
    return {REFUSED: " ".join(said.split())}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m swarm.environments.building", description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    parser.set_defaults(memory=MOST_BYTES)
    for name in ("draw", "probe"):
        action = actions.add_parser(name)
        action.add_argument("--source", required=True, help="JSON of where its code is")
        action.add_argument("--code", required=True, type=Path, help="folder of the code")
        action.add_argument("--play-seconds", type=float, default=PLAY_S, help="what one demonstration may take")
    actions.choices["draw"].add_argument("--out", required=True, type=Path, help="folder for what is drawn")
    actions.choices["draw"].add_argument("--lines", type=Path, help="file of tasks, for a reward function")
    actions.choices["draw"].add_argument("--name", help="name of an environment made of such a file")
    actions.choices["probe"].add_argument("--tasks", required=True, type=Path, help="folder of the drawn tasks")
    _add_measure(actions.add_parser("measure"))
    return parser


def _add_measure(action: argparse.ArgumentParser) -> None:
    action.add_argument("--environment", required=True, help="a built-in environment, or one that was brought")
    action.add_argument("--environments", required=True, type=Path, help="folder of those that were brought")
    action.add_argument("--plays", type=int, default=64, help="plays of each player")
    action.add_argument("--seconds", type=float, default=20.0, help="that a play may take")
    action.add_argument("--answers", type=int, default=200, help="that a play may ask for")
    action.add_argument("--memory", type=int, default=MOST_BYTES, help="bytes of address space")


if __name__ == "__main__":
    sys.exit(main())
