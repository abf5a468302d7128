"""A collected file, held to its hash.

Files are hashed again before every verdict, as people can write to a study's folder. A run whose file is gone or
changed is given up, with a code that no design excludes, so that its verdict is invalid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.log.study import RunState, StudyState
from studies.records.procedure import Phase
from studies.records.runs import EVIDENCE_CHANGED, EVIDENCE_MISSING


class CollectError(Exception):
    """What an attempt left behind is not the run's whole, own result. `code` is one of

    `tracking_unreadable`, `foreign_results`, `steps_missing`, `evaluation_unreadable`, `evaluation_incomplete`,
    `evidence_missing`, `evidence_changed`.
    """

    def __init__(self, code: str, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.late = late
        """Whether the tracker may only be behind, so that the same again may succeed."""


def read_collected(study_folder: Path, stored: Mapping[str, Any]) -> bytes:
    """Return what is in a collected file; CollectError if it is not there, or not what the log says."""
    return read_unchanged(study_folder / stored["path"], f"the collected {stored['path']}", stored["sha256"])


def read_unchanged(path: Path, name: str, expected: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CollectError(EVIDENCE_MISSING, f"{name} cannot be read: {error.strerror}") from error
    if (found := hashlib.sha256(data).hexdigest()) != expected:
        said = f"{name} was changed: expected the sha256 {expected[:12]}, found {found[:12]}"
        raise CollectError(EVIDENCE_CHANGED, said)
    return data


def find_spoilt_runs(state: StudyState, folder: Path, phase: Phase) -> Iterator[tuple[RunState, str, str]]:
    """Yield the collected runs of a phase whose files are not what was collected, with the code and a sentence."""
    for run in state.runs_in(phase):
        if run.status != "collected" or run.collected is None:
            continue
        try:
            for kind in ("snapshot", "evaluation"):
                read_collected(folder, run.collected[kind])
        except CollectError as error:
            yield run, error.code, error.reason
