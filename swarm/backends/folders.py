"""Folders that are made once: whole or absent, by one of all processes that ask at once."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from swarm.errors import InvalidRequest
from swarm.rendering.messages import BackendError

Progress = Callable[[int, int], None]
"""Told the steps done and the steps in all."""


def build_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `make`, all or nothing, where it is not there yet. OSError, and what `make` raises."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{folder.name}.lock"):
        if not folder.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                make(scratch)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def print_folder(make: Callable[[], Path], expected: str) -> int:
    """Print the folder that `make` returns; return the exit code: 2, with a line, where there is none.
    `expected` says what its JSON is to be: `--job to be a job's JSON`."""
    try:
        folder = make()
    except ValidationError as error:
        first = error.errors()[0]
        sys.stderr.write(f"expected {expected}; found {first['msg']} at {first['loc']}\n")
        return 2
    except (InvalidRequest, BackendError, OSError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0
