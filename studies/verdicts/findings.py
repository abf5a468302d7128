"""Whether current verdicts still follow from their files: a quick check; see `verify`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from studies.log.event_log import lock_error
from studies.log.study import RunState, StudyState
from studies.records.verdict import Verdict
from studies.verdicts.judge import verdict_follows

DOES_NOT_FOLLOW: Final = "does not follow"
"""What is shown in a verdict's place."""


def verdict_fault(state: StudyState, folder: Path, verdict: Verdict) -> str | None:
    """Return why a current verdict does not follow, in a clause; None where it does.

    Looks at the lock's file, the hashes of the evaluations that it rests on, and what the log's runs come to. Where a
    study's whole folder is elsewhere its files are not looked at.
    """
    files = _files_error(state, folder, verdict) if folder.is_dir() and verdict.verdict != "invalid" else None
    if files is not None:
        return files
    try:
        follows = verdict_follows(state, verdict)
    except ValueError as error:
        return f"the log holds what cannot be judged ({type(error).__name__})"
    return None if follows else "the runs in the log come to something else"


def _files_error(state: StudyState, folder: Path, verdict: Verdict) -> str | None:
    if (error := lock_error(state, folder)) is not None:
        return error
    runs = (run for run in state.runs_in(verdict.phase) if run.status == "collected")
    return next((found for run in runs if (found := _file_fault(run, folder)) is not None), None)


def _file_fault(run: RunState, folder: Path) -> str | None:
    record = (run.collected or {})["evaluation"]
    try:
        found = hashlib.sha256((folder / record["path"]).read_bytes()).hexdigest()
    except OSError as error:
        return f"{record['path']} cannot be read ({error.strerror or error})"
    return None if found == record["sha256"] else f"{record['path']} is not what was collected"
