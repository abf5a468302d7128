"""An environment's code as a process, while it is brought: it runs foreign code, and whoever starts it bounds it.

    python -m swarm.environments.bringing draw  --source JSON --code DIR --out DIR [--lines FILE --name NAME]
    python -m swarm.environments.bringing probe --source JSON --code DIR --tasks DIR
    python -m swarm.environments.bringing measure --environment NAME --environments DIR [--plays N --seconds S
                                                  --answers N --memory BYTES]

`draw` writes tasks and demonstrations below --out; the secret of generated hidden tasks is read from standard input,
in hex, before any foreign code is loaded. `probe` poses tasks by the code alone; `measure` plays one that was brought,
or is built in. Each prints JSON: a line with what it found, or, with exit code 2, {"refused": REASON}; for `measure` a
line for each thing it finds, and {"whole": true} when it has played all. Exit code 1: a play took longer than
--seconds. What foreign code prints goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from swarm.environments.bringing.drawing import OWN_SPLITS, SPLITS
from swarm.environments.bringing.judged_tasks import ADD_PACKAGE
from swarm.environments.bringing.loading import PlayableEnvironment, load_source, playable
from swarm.environments.bringing.measuring import Bounds, UntrainedPlays, to_line
from swarm.environments.bringing.memory import MOST_BYTES, bound_files, bound_memory
from swarm.environments.bringing.writing import PLAY_S, probe, write_lines, write_tasks
from swarm.environments.brought import CodeSource
from swarm.environments.playing.code import where_of
from swarm.environments.playing.lifeline import hold
from swarm.environments.registry import look_in
from swarm.environments.tasks_file import from_json
from swarm.errors import InvalidRequest

BAD = 2
REFUSED = "refused"
OTHER_OPTIONS = "choose options that give more"


def main() -> int:
    """Draw, probe or measure; return the exit code."""
    arguments = _parser().parse_args()
    hold()
    bound_memory(arguments.memory)
    bound_files()
    secret = bytes.fromhex(sys.stdin.read()) if arguments.action == "draw" else b""
    with _answers() as out:
        try:
            found = _done(arguments, secret, out)
        except InvalidRequest as error:
            found = _refused(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever foreign code raises
            remedy = ADD_PACKAGE if isinstance(error, ModuleNotFoundError) else "mend it"
            said = f"{type(error).__name__}: {error}{where_of(error)}"
            found = _refused(f"the environment's code raised {said}; {remedy}")
        if found is not None:
            out.write(json.dumps(found) + "\n")
    return BAD if found is not None and REFUSED in found else 0


def _done(arguments: argparse.Namespace, secret: bytes, out: TextIO) -> dict[str, Any] | None:
    """Do what is asked; return its answer, None where it was told line by line."""
    if arguments.action == "measure":
        _measure(arguments, out)
        return None
    return _drawn(arguments, secret) if arguments.action == "draw" else _probed(arguments)


@contextmanager
def _answers() -> Iterator[TextIO]:
    """Yield the standard output, which from now on is out of reach of what foreign code prints, from C too."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        yield out


def _drawn(arguments: argparse.Namespace, secret: bytes) -> dict[str, Any]:
    source = CodeSource.model_validate_json(arguments.source)
    environment = load_source(source, arguments.code)
    if arguments.lines:
        return write_lines(environment, arguments.name, arguments.lines, arguments.out)
    remedy = OTHER_OPTIONS if source.kind == "adapter" else OWN_SPLITS
    return write_tasks(environment, secret, arguments.out, remedy, arguments.play_seconds)


def _probed(arguments: argparse.Namespace) -> dict[str, Any]:
    environment = load_source(CodeSource.model_validate_json(arguments.source), arguments.code)
    if not hasattr(environment, "name"):
        environment.name = "environment"  # type: ignore[misc]  # of a reward function's, which has none by itself
    tasks = {split: from_json((arguments.tasks / f"{split}.json").read_bytes()) for split in SPLITS}
    return {"hidden_apart": not asyncio.run(probe(environment, tasks, arguments.play_seconds))}


def _measure(arguments: argparse.Namespace, out: TextIO) -> None:
    def tell(value: dict[str, Any]) -> None:
        out.write(to_line(value))
        out.flush()

    look_in(arguments.environments)
    environment = playable(arguments.environment)
    code = environment.code if isinstance(environment, PlayableEnvironment) else environment
    tasks = [*environment.tasks("train"), *environment.tasks("search")]
    bounds = Bounds(arguments.plays, arguments.seconds, arguments.answers)
    asyncio.run(UntrainedPlays(environment, code, tasks, bounds).run(tell))
    tell({"whole": True})


def _refused(said: str) -> dict[str, Any]:
    return {REFUSED: " ".join(said.split())}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m swarm.environments.bringing", description=__doc__.split("\n")[0])
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
