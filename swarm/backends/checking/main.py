"""The check as a process of its own: it loads a model into memory that is free again when it ends.

    python -m swarm.backends.checking.main --job JSON --folder-hash HEX --out FILE

Prints a line as each part begins, and writes the `ModelCheck` as JSON to FILE. Exit code 2, with one line on stderr,
where the model is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from swarm.backends.protocols import BackendError
from swarm.job import Job


def main(arguments: list[str] | None = None) -> int:
    """Check as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m swarm.backends.checking.main", description="Check a model.")
    parser.add_argument("--job", required=True, help="JSON of the job that the model is checked as")
    parser.add_argument("--folder-hash", required=True, help="hash of the model's folder")
    parser.add_argument("--out", required=True, type=Path, help="file that the result is written to")
    given = parser.parse_args(arguments)
    try:
        from swarm.backends.checking.measure import measure

        found = asyncio.run(measure(Job.model_validate_json(given.job), given.folder_hash, _say))
    except ImportError as error:
        return _refused(f"{error}; install the extra `local`: pip install 'ajet[local]'")
    except (BackendError, MemoryError) as error:
        return _refused(str(error) or "the memory is full: take a smaller model")
    given.out.write_text(found.model_dump_json())
    return 0


def _refused(why: str) -> int:
    sys.stderr.write(f"{' '.join(why.split())}\n")
    return 2


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
