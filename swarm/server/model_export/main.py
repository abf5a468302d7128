"""The export as a process of its own: it loads a model into memory that is free again when it ends.

    python -m swarm.server.model_export.main --directory DIR --models DIR --to DIR [--step latest] [--apart]
                                        [--job JSON] [--environments DIR] --out FILE

AJET_SWARM_STORE names the server's database where it is not in its folder, as for the server itself: a URL may hold a
password. Prints a line as each part begins, and writes the `ModelCard` as JSON to FILE. Exit code 2, with one line on
stderr, where it is refused.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from swarm.backends.protocols import BackendError
from swarm.environments.registry import look_in
from swarm.errors import SwarmError
from swarm.job import Job
from swarm.server.model_export.export import Wanted, exported
from swarm.server.model_export.kept import LATEST

STORE = "AJET_SWARM_STORE"


def main(arguments: list[str] | None = None) -> int:
    """Export as the command line says; return the exit code."""
    given = _arguments(arguments)
    if given.environments is not None:
        look_in(given.environments)
    job = None if given.job is None else Job.recorded(given.job)
    wanted = Wanted(given.directory, given.models, given.to, given.step, given.apart, os.environ.get(STORE), job)
    try:
        card = exported(wanted, _say)
    except ImportError as error:
        return _refused(f"{error}; install the extra `local`: pip install 'ajet[local]'")
    except (SwarmError, BackendError, OSError, MemoryError) as error:
        return _refused(str(error) or "the memory is full: export on a machine with more")
    given.out.write_text(card.model_dump_json(), encoding="utf-8")
    return 0


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m swarm.server.model_export", description="Export a model.")
    parser.add_argument("--directory", required=True, type=Path, help="folder of the swarm server")
    parser.add_argument("--models", required=True, type=Path, help="folder of models")
    parser.add_argument("--to", required=True, type=Path, help="the folder to write")
    parser.add_argument("--step", default=LATEST, help="a kept step, latest or best")
    parser.add_argument("--apart", action="store_true", help="keep a LoRA adapter apart from its model")
    parser.add_argument("--job", help="JSON of the job whose training it is; the newest one's where left out")
    parser.add_argument("--environments", type=Path, help="folder of environments that were brought")
    parser.add_argument("--out", required=True, type=Path, help="file that the card is written to")
    return parser.parse_args(arguments)


def _refused(why: str) -> int:
    sys.stderr.write(f"{' '.join(why.split())}\n")
    return 2


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
