"""The lock as a file: `design.lock` in a study's folder, the canonical JSON of the design that was locked.

Later rounds have `design-2.lock` and so on; each names the hash of the one before.
`sha256sum design.lock` gives the hash that the log, every run and the report name. Where the file is missing or holds
anything else, somebody may have changed the design after the lock: `lock_error` says so in a sentence, and verdicts are
invalid. It does not know who changed it, or whether the file or the log is right.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from studies.log.study_state import StudyState
from studies.records.base import canonical
from studies.records.design import Design

LOCK_FILE: Final = "design.lock"


def lock_name(round: int) -> str:
    """Return the name of the file that holds the lock of a round."""
    return LOCK_FILE if round == 1 else f"design-{round}.lock"


def write_lock(folder: Path, design: Design, name: str = LOCK_FILE) -> str:
    """Write the lock into a study's folder, durably and whole or not at all; return its sha256. Raise OSError."""
    data = canonical(design.model_dump(mode="json")).encode()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / name)
    return hashlib.sha256(data).hexdigest()


def lock_error(state: StudyState, folder: Path) -> str | None:
    """Return what is wrong with the lock's file, in a sentence; None if nothing is, or before the lock."""
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
