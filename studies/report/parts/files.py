"""How the report's files are written: beside their final name, then moved there whole, or one clear line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from studies.records.errors import ReportError


@contextmanager
def written_into(folder: Path) -> Iterator[None]:
    """Turn the refusal of a disk or folder into a ReportError that says what to do."""
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"could not write the report into {folder}: {error.strerror or error}. Free space or make the folder "
            "writable, then build the report again"
        ) from error


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all; return its path. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path
