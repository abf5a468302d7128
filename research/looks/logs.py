"""Lines about one run: its attempts, its alarms, and what its training logged at each step.

What the processes of an attempt printed is not among them: it is not collected, and nobody vouches for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from research.looks.evidence import DATA, SHORT, history
from research.looks.requests import LookAtLog
from research.planner.looks import LookRefused
from research.planner.quoted import plain
from studies import RunState

MOST_LINES: Final = 40


def matching_lines(run: RunState, folder: Path, request: LookAtLog) -> dict[str, Any]:
    """Return the lines that hold a text, the first of them; it is looked for as it stands."""
    wanted = request.contains.lower()
    found = [line for line in _lines(run, folder) if wanted in line.lower()]
    if not found:
        raise LookRefused(f"no line about run {run.run_id[:SHORT]} holds {request.contains!r}")
    left = len(found) - MOST_LINES
    told = {"notice": DATA, "lines": len(found), "quoted": found[:MOST_LINES]}
    return told | ({"left_out": f"the last {left} lines; look for a longer text"} if left > 0 else {})


def _lines(run: RunState, folder: Path) -> Iterator[str]:
    for attempt in run.attempts:
        ended = f"{attempt.status or 'running'} {attempt.code} {attempt.reason}".rstrip()
        yield plain(f"attempt {attempt.number}: {ended}")
    if run.invalid is not None:
        yield plain(f"invalid: {run.invalid[0]} {run.invalid[1]}")
    if run.collected is None:
        return
    for alarm in run.collected.get("alarms", ()):
        yield plain(f"alarm at step {alarm['step']}: {alarm['code']} {alarm['sentence']}")
    for row in history(run, folder):
        yield from (plain(f"step {row['step']}: {name} {value}") for name, value in sorted(row["metrics"].items()))
        yield from (plain(f"step {row['step']}: {name} is not finite") for name in row.get("not_finite", ()))
