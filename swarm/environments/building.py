"""Draws, splits, checks and writes down an environment's tasks, in a process of its own.

    python -m swarm.environments.building draw  --source JSON --code DIR --out DIR [--lines FILE --name NAME]
    python -m swarm.environments.building probe --source JSON --code DIR --tasks DIR
    python -m swarm.environments.building measure --environment NAME --environments DIR [--plays N ...]

A process because foreign code runs; whoever starts it bounds it. `draw` reads the secret of generated hidden tasks from
standard input before any foreign code is loaded, so that the generator alone does not tell which problems are hidden;
`probe` poses tasks by the files that clients get alone. Each prints JSON lines (`measure` ends with {"whole": true});
exit code 2 comes with {"refused": REASON}, 1 where a play took longer than --seconds.
"""

import argparse
import asyncio
import hmac
import itertools
import json
import os
import random
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from numbers import Real
from pathlib import Path
from typing import Any, Final, Literal, get_args

from swarm.environments import custom, datasets, judges, loading
from swarm.environments.base import Demonstration, Environment, Game, Knob, Split, Task, split_of
from swarm.environments.custom import LONGEST_ID, MOST_GIVEN_BYTES, CodeSource, from_json, problem, words
from swarm.environments.measuring import MOST_BYTES, MOST_FILE_BYTES, Bounds, Tell, UntrainedPlays, bound_resource
from swarm.environments.play import chat_messages
from swarm.environments.processes import watch_parent
from swarm.environments.registry import BUILT_IN, add_folder
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
    ways: dict[str, Way] = {"tasks": "splits", "records": "records", "generate": "seeds"}
    parts = [part for part in ways if environment.has(part)]
    if len(parts) != 1:
        raise InvalidRequest(
            f"expected the environment {environment.name} to have one of tasks(split), records() and generate(seed); "
            f"found {' and '.join(parts) or 'none'}"
        )
    way = ways[parts[0]]
    match way:
        case "splits":
            drawn: TaskSplits = {split: tuple(environment.tasks(split)) for split in SPLITS}
        case "records":
            drawn = split_records(environment.records(), environment.name)
        case "seeds":
            drawn = generate_tasks(environment, secret)
    if any(len(drawn[split]) < LEAST[split] for split in SPLITS):
        tasks = [task for own in drawn.values() for task in own]
        parted = ", ".join(f"{len(drawn[split])} {split}" for split in SPLITS)
        hint = f"about {_ENOUGH} different ones are enough: {remedy}"
        match way:
            case "splits":
                origin, hint = "", "add some"
            case "seeds":
                origin = f"{len(tasks)} different ones among all its seeds (the last {_IDLE} gave no new one): "
            case "records":
                alike = len(tasks) - len(set(map(words, tasks)))
                also = f", {alike} of which say the same as another, in whatever order, and go with it" if alike else ""
                origin = f"{len(tasks)} records{also}, split by a hash: "
        raise InvalidRequest(f"expected {_LEAST} tasks or more of {environment.name}; found {origin}{parted}; {hint}")
    _check_disjoint(environment.name, drawn)
    return way, drawn


def split_records(records: Sequence[Task], name: str) -> TaskSplits:
    """Return one list of tasks by split: a hash of what a task says decides, whatever file or environment it is of."""
    found: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for task in _sound_tasks(records, name, "train"):
        found[split_of(words(task))].append(task)
    return {split: tuple(tasks) for split, tasks in found.items()}


def generate_tasks(environment: Environment, secret: bytes) -> TaskSplits:
    """Return the tasks of seeds, each problem once; secret and words say its split: a small world has some of each."""
    sizes, name = environment.sizes, environment.name
    numbers = all(isinstance(sizes.get(split), int) for split in SPLITS)
    if not numbers or any(sizes[split] < LEAST[split] for split in SPLITS) or sum(sizes.values()) > MOST_TASKS:
        raise InvalidRequest(
            f"expected sizes of {name} as a number of train, search and hidden tasks, at least {_LEAST}, "
            f"at most {MOST_TASKS} in all; found {sizes!r:.80}"
        )
    found: dict[Split, dict[str, Task]] = {split: {} for split in SPLITS}
    idle = 0
    for index in itertools.count():
        if idle == _IDLE or all(len(found[split]) == sizes[split] for split in SPLITS):
            break
        seed = int.from_bytes(hmac.digest(secret, f"{name}:{index}".encode(), "sha256")[:8], "big") >> 1
        (task,) = _sound_tasks([environment.generate(seed)], name, "train")
        split = split_of(hmac.digest(secret, words(task).encode(), "sha256").hex())
        own, posed = found[split], problem(task)
        fresh = posed not in own and len(own) < sizes[split]
        if fresh:
            own[posed] = task
        idle = 0 if fresh else idle + 1
    return {split: tuple(own.values()) for split, own in found.items()}


def _check_disjoint(name: str, drawn: TaskSplits) -> None:
    ids: dict[str, Split] = {}
    problems: dict[str, tuple[Split, str]] = {}
    for split, tasks in drawn.items():
        size = 0
        for task in _sound_tasks(tasks, name, split):
            posed = problem(task)
            size += len(posed)
            if task.id in ids:
                where = f"{split} twice" if ids[task.id] == split else f"{ids[task.id]} and {split}"
                raise InvalidRequest(f"expected each id once in {name}; found {task.id!r:.60} in {where}")
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


def _sound_tasks(tasks: Iterable[Task], name: str, split: Split) -> Iterator[Task]:
    for task in tasks:
        if not isinstance(task, Task):
            raise InvalidRequest(
                f"expected swarm.environments.Task as {split} tasks of {name}; found {type(task).__name__}"
            )
        if not isinstance(task.id, str) or not 0 < len(task.id) <= LONGEST_ID:
            raise InvalidRequest(f"expected ids of 1 to {LONGEST_ID} characters in {name}; found {task.id!r:.80}")
        if not custom.is_whole(task.id) or not isinstance(task.kind, str) or not isinstance(task.data, dict):
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
_KNOB = re.compile(r"[a-z][a-z0-9_]{0,23}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def write_tasks(
    environment: Environment, secret: bytes, out: Path, remedy: str = OWN_SPLITS, play_s: float = PLAY_S
) -> dict[str, Any]:
    """Write tasks, and demonstrations of `play_s` at most, into a folder; return what a manifest says, and ASKED."""
    facts = _describe(environment)
    way, drawn = draw(environment, secret, remedy)
    _write(drawn, out)
    plays: list[Demonstration] = []
    if environment.has("imitate"):
        rng = random.Random(0)
        for _ in range(PLAYS):
            with _time_limit(play_s):
                plays.append(environment.demonstrate(rng.choice(drawn["train"]), rng))
        for play in plays:
            if not any(message["role"] == "assistant" for message in chat_messages(play.messages, "imitate")):
                raise InvalidRequest(
                    f"expected whole plays with answers of {environment.name}.imitate; found {play.messages!r:.80}; "
                    "return messages"
                )
        (out / custom.DEMONSTRATIONS).write_text(custom.demonstrations_to_json(plays), encoding="utf-8")
    return {
        **facts, "drawn_by": way, "splits": {split: len(tasks) for split, tasks in drawn.items()},
        ASKED: sum(environment.sizes.values()) if way == "seeds" else 0,
        "demonstrations": len(plays), "own_agent": environment.has("agent"), "oracle": environment.has("oracle"),
    }  # fmt: skip


def write_lines(environment: Environment, name: str, lines: str, out: Path, needs: str = "") -> dict[str, Any]:
    """Write the tasks of a file or data set; return what a manifest says, and as `left` what was left out."""
    found, answers, left = datasets.read(lines)
    if needs and (lacking := [task.id for task, _ in found if needs not in task.data]):
        raise InvalidRequest(f"expected `{needs}` to judge by in each task; {lacking[0]} has none; say ?{needs}=COLUMN")
    environment.name = name  # type: ignore[misc]  # of each one its own
    environment.title = f"the tasks of {Path(lines.partition('?')[0]).name}"  # type: ignore[misc]
    parts: dict[str, Any] = {"records": lambda _: [task for task, _ in found]}
    if loading.names_splits(found):
        parts = {"tasks": lambda _, split: [task for task, own in found if own == split]}
    way, drawn = draw(type("Given", (Environment,), {"name": name, **parts})(), b"", _SPLIT_LINES)
    _write(drawn, out)
    recorded = [task for task in drawn["train"] if task.id in answers][:PLAYS]
    if plays := [Demonstration([*task.data[loading.PROMPT], answers[task.id]]) for task in recorded]:
        (out / custom.DEMONSTRATIONS).write_text(custom.demonstrations_to_json(plays), encoding="utf-8")
    return {
        **_describe(environment), "drawn_by": way, "splits": {split: len(own) for split, own in drawn.items()},
        "demonstrations": len(plays), "left": left,
    }  # fmt: skip


def _write(drawn: TaskSplits, out: Path) -> None:
    (out / "tasks").mkdir(parents=True, exist_ok=True)
    for split, tasks in drawn.items():
        (out / "tasks" / f"{split}.json").write_text(custom.to_json(tasks), encoding="utf-8")


async def probe(environment: Environment, tasks: Mapping[Split, tuple[Task, ...]], play_s: float = PLAY_S) -> bool:
    """Pose some tasks of each split by the code alone, or InvalidRequest; return whether it makes hidden ones."""
    for task in () if environment.has("agent") else [task for own in tasks.values() for task in own[:POSED]]:
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
                f"expected the environment {environment.name} to pose its task {task.id!r:.80} by the code that "
                f"clients hold; it fails: {' '.join(said.split())}"
            ) from error
    given: list[Any] = []
    try:  # without the records; a generator needs seeds that its code does not have
        given += environment.tasks("hidden") if environment.has("tasks") else ()
        given += environment.records() if environment.has("records") else ()
    except Exception:  # noqa: BLE001  # what it needs for them is not there, as is to be shown
        return False
    hidden = set(map(_task_key, tasks["hidden"]))
    return any(isinstance(task, Task) and _task_key(task) in hidden for task in given)


def _task_key(task: Task) -> str:
    return json.dumps([task.id, task.data], sort_keys=True, default=str)


@contextmanager
def _time_limit(play_s: float) -> Iterator[None]:
    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"a play of imitate() did not end within {play_s:g} s")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, play_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _describe(environment: Environment) -> dict[str, Any]:
    kind, facts, synonyms = type(environment).__name__, environment.facts, environment.synonyms
    missing = [name for name in ("name", "title", "measures") if not isinstance(getattr(environment, name, None), str)]
    if missing:
        raise InvalidRequest(f"expected a text as `{missing[0]}` of {kind}; found none; add it to the class")
    if not _NAME.fullmatch(environment.name):
        raise InvalidRequest(
            f"expected a name of 1 to 64 letters a-z, digits, '-', '_', '.'; found {environment.name!r:.70}"
        )
    if environment.name in BUILT_IN:
        raise InvalidRequest(
            f"expected a name of its own; found {environment.name!r}, which is that of a built-in environment; give it "
            "another (the name of a file of tasks is the file's)"
        )
    ends = _two_numbers(environment.reward_range)
    if ends is None or not ends[0] < ends[1]:
        raise InvalidRequest(
            f"expected reward_range as (least, largest) of {kind}; found {environment.reward_range!r:.80}"
        )
    solved_at = environment.solved_at
    if solved_at is not None and not (isinstance(solved_at, Real) and ends[0] <= solved_at <= ends[1]):
        raise InvalidRequest(f"expected solved_at of {kind} within its reward_range; found {solved_at!r:.80}")
    if not isinstance(facts, Mapping) or not all(isinstance(name, str) and name.strip() for name in facts):
        raise InvalidRequest(f"expected facts of {kind} as {{'NAME': (worst, best)}}; found {facts!r:.80}")
    ranges = {name: _two_numbers(given) for name, given in facts.items()}
    for name, found in ranges.items():
        if found is None or found[0] == found[1]:
            raise InvalidRequest(
                f"expected the fact {name!r:.80} of {kind} as (worst, best), two numbers; found {facts[name]!r:.80}"
            )
    if not isinstance(synonyms, tuple | list) or not all(isinstance(name, str) and name.strip() for name in synonyms):
        raise InvalidRequest(f"expected synonyms as a tuple of texts of {kind}; found {synonyms!r:.80}")
    for name, knob in dict(environment.knobs).items():
        if not _is_sound(name, knob):
            raise InvalidRequest(
                f"expected the knob {name!r:.60} of {kind} as Knob(default, (value, value, ...), 'what it changes', "
                f"(least, largest)), each value one that it takes; found {knob!r:.120}"
            )
    return {
        "name": environment.name, "title": environment.title, "measures": environment.measures,
        "synonyms": [name.casefold() for name in synonyms], "reward_range": ends,
        "solved_at": None if solved_at is None else float(solved_at), "facts": ranges,
        "knobs": {name: asdict(knob) for name, knob in environment.knobs.items()},
    }  # fmt: skip


def _is_sound(name: Any, knob: Any) -> bool:
    try:
        values = [knob.default, *knob.values]
        json.dumps(asdict(knob), allow_nan=False)  # as a manifest holds it
        sound = isinstance(knob, Knob) and _KNOB.fullmatch(name) and isinstance(knob.does, str) and len(values) > 2
        sound = sound and all(_KNOB.fullmatch(value) for value in values if isinstance(value, str))
        sound = sound and not isinstance(knob.synonyms, str) and all(map(str.strip, knob.synonyms))
        return bool(sound) and values == [*map(knob.take, values)]
    except (AttributeError, TypeError, ValueError):
        return False


def _two_numbers(given: Any) -> list[float] | None:
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(end, Real) for end in given):
        ends = [float(end) for end in given]
        return ends if all(abs(end) < 1e9 for end in ends) else None
    return None


BAD = 2
REFUSED = "refused"


def main() -> int:
    arguments = _parse_arguments()
    watch_parent()
    bound_resource(resource.RLIMIT_AS, arguments.memory)
    bound_resource(resource.RLIMIT_FSIZE, MOST_FILE_BYTES)
    secret = bytes.fromhex(sys.stdin.read()) if arguments.action == "draw" else b""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # from now on foreign code, that of C too, prints elsewhere

        def tell(value: dict[str, Any]) -> None:
            out.write(json.dumps(value, default=str) + "\n")
            out.flush()

        try:
            match arguments.action:
                case "measure":
                    _measure(arguments, tell)
                case "draw":
                    source = CodeSource.model_validate_json(arguments.source)
                    environment = loading.load_source(source, arguments.code)
                    if arguments.lines:
                        needs = judges.NEEDS[source.place] if source.kind == "judge" else ""
                        tell(write_lines(environment, arguments.name, arguments.lines, arguments.out, needs))
                    else:
                        remedy = "choose options that give more" if source.kind == "adapter" else OWN_SPLITS
                        tell(write_tasks(environment, secret, arguments.out, remedy, arguments.play_seconds))
                case _:
                    environment = loading.load_source(CodeSource.model_validate_json(arguments.source), arguments.code)
                    if not hasattr(environment, "name"):
                        environment.name = "environment"  # type: ignore[misc]  # a reward function's has none by itself
                    tasks = {split: from_json((arguments.tasks / f"{split}.json").read_bytes()) for split in SPLITS}
                    apart = not asyncio.run(probe(environment, tasks, arguments.play_seconds))
                    tell({"hidden_apart": apart})
            return 0
        except InvalidRequest as error:
            reason = str(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever foreign code raises
            remedy = loading.ADD_PACKAGE if isinstance(error, ModuleNotFoundError) else "mend it"
            said = f"{type(error).__name__}: {error}{describe_place(error)}"
            reason = f"the environment's code raised {said}; {remedy}"
        tell({REFUSED: " ".join(reason.split())})
    return BAD


def _measure(arguments: argparse.Namespace, tell: Tell) -> None:
    add_folder(arguments.environments)
    environment = loading.load_playable(arguments.environment)
    code = environment.played if isinstance(environment, loading.PlayableEnvironment) else environment
    tasks = [*environment.tasks("train"), *environment.tasks("search")]
    bounds = Bounds(arguments.plays, arguments.seconds, arguments.answers)
    asyncio.run(UntrainedPlays(environment, code, tasks, bounds).run(tell))
    tell({"whole": True})


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m swarm.environments.building", description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    parser.set_defaults(memory=MOST_BYTES)
    for name in ("draw", "probe"):
        action = actions.add_parser(name)
        action.add_argument("--source", required=True, help="JSON of where its code is")
        action.add_argument("--code", required=True, type=Path, help="folder of the code")
        action.add_argument("--play-seconds", type=float, default=PLAY_S, help="what one demonstration may take")
    actions.choices["draw"].add_argument("--out", required=True, type=Path, help="folder for what is drawn")
    actions.choices["draw"].add_argument("--lines", help="file of tasks, or data set, for a reward function")
    actions.choices["draw"].add_argument("--name", help="name of an environment made of such a file")
    actions.choices["probe"].add_argument("--tasks", required=True, type=Path, help="folder of the drawn tasks")
    measure = actions.add_parser("measure")
    measure.add_argument("--environment", required=True, help="a built-in environment, or one that was brought")
    measure.add_argument("--environments", required=True, type=Path, help="folder of those that were brought")
    measure.add_argument("--plays", type=int, default=64, help="plays of each player")
    measure.add_argument("--seconds", type=float, default=20.0, help="that a play may take")
    measure.add_argument("--answers", type=int, default=200, help="that a play may ask for")
    measure.add_argument("--memory", type=int, default=MOST_BYTES, help="bytes of address space")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
