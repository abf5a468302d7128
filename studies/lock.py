"""The lock as a file: `design.lock` in a study's folder holds the design's canonical JSON, so that
`sha256sum design.lock` is the hash which the log, every run and the report name.

A file that is gone or that holds anything else means that somebody changed the design by hand: `lock_error` says so in
a sentence, and verdicts are invalid then. It does not know who, or which of file and log is the true one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from studies.base import canonical
from studies.records import Design
from studies.standing import StudyState

LOCK_FILE: Final = "design.lock"


def write_lock(folder: Path, design: Design) -> str:
    """Write the lock into a study's folder, durably and whole or not at all; return its hash. Raises OSError."""
    data = canonical(design.model_dump(mode="json")).encode()
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{LOCK_FILE}.{os.getpid()}"
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / LOCK_FILE)
    return hashlib.sha256(data).hexdigest()


def lock_error(state: StudyState, folder: Path) -> str | None:
    """Return what is wrong with the lock's file, in a sentence; None if nothing is, or if the log names no file."""
    if state.lock_file is None or state.design_hash is None:
        return None
    path = folder / state.lock_file
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"the lock {path.name} cannot be read ({error.strerror}): the design may have been changed after it"
    if found == state.design_hash:
        return None
    return (
        f"the lock {path.name} was changed: expected the sha256 {state.design_hash[:12]} of the log, found {found[:12]}"
    )
