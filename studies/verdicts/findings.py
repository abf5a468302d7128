"""Whether current verdicts still follow from their files: a quick check; see `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from studies.checks.evidence import CollectError, read_collected
from studies.log.event_log import lock_error
from studies.log.study import StudyState
from studies.records.verdict import Verdict
from studies.verdicts.judge import verdict_follows

DOES_NOT_FOLLOW: Final = "does not follow"
"""What is shown in a verdict's place."""


def verdict_fault(state: StudyState, folder: Path, verdict: Verdict) -> str | None:
    """Return why a current verdict does not follow, in a clause; None where it does.

    Looks at the lock's file, the hashes of the evaluations that it rests on, and what the log's runs come to. Where a
    study's whole folder is elsewhere its files are not looked at.
    """
    if folder.is_dir() and verdict.verdict != "invalid":
        if (fault := lock_error(state, folder)) is not None:
            return fault
        for run in state.runs_in(verdict.phase):
            if run.status == "collected" and run.collected is not None:
                try:
                    read_collected(folder, run.collected["evaluation"])
                except CollectError as error:
                    return error.reason
    try:
        follows = verdict_follows(state, verdict)
    except ValueError as error:
        return f"the log holds what cannot be judged ({type(error).__name__})"
    return None if follows else "the runs in the log come to something else"
