"""Whether what was collected is still what it was: the files of runs against the hashes in the log.

A study's files lie in a folder that people can write to. Before every verdict the files behind it are read again; a run
whose file is gone or changed is given up, with a code that no design excludes, so that its verdict is invalid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from research.codes import EVIDENCE_CHANGED, EVIDENCE_MISSING
from studies import RunState, StudyState
from studies.procedure import Phase


def spoilt(state: StudyState, folder: Path, phase: Phase) -> Iterator[tuple[RunState, str, str]]:
    """Yield the collected runs of a phase whose files are not what was collected, with the code and a sentence."""
    for run in state.runs_in(phase):
        if run.status == "collected" and (found := _difference(run, folder)) is not None:
            yield run, *found


def _difference(run: RunState, folder: Path) -> tuple[str, str] | None:
    collected = run.collected or {}
    for kind in ("snapshot", "evaluation"):
        path, expected = folder / collected[kind]["path"], collected[kind]["sha256"]
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            return EVIDENCE_MISSING, f"the collected {collected[kind]['path']} cannot be read: {error.strerror}"
        if found != expected:
            return EVIDENCE_CHANGED, (
                f"the collected {collected[kind]['path']} was changed: expected the sha256 {expected[:12]}, "
                f"found {found[:12]}"
            )
    return None
