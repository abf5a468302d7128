"""Whether collected files are still what they were: hashed again before every verdict, and compared with the log.

A study's files lie in a folder that people can write to. A run whose file is gone or changed is given up, with a code
that no design excludes, so that its verdict is invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from research.results.collect import CollectError, read_collected
from studies import RunState, StudyState
from studies.records.design_parts import Phase


def spoilt(state: StudyState, folder: Path, phase: Phase) -> Iterator[tuple[RunState, str, str]]:
    """Yield the collected runs of a phase whose files are not what was collected, with the code and a sentence."""
    for run in state.runs_in(phase):
        if run.status == "collected" and (error := _difference(run, folder)) is not None:
            yield run, error.code, error.reason


def _difference(run: RunState, folder: Path) -> CollectError | None:
    collected = run.collected or {}
    try:
        for kind in ("snapshot", "evaluation"):
            read_collected(folder, collected[kind])
    except CollectError as error:
        return error
    return None
