"""Whether a study is what it says: everything stored is computed again from the files and the log, nothing is written.

It catches any change that is not carried through everything that follows from it. Who computes all of it anew, log,
files and report, or cuts the log's tail off, is caught by a head hash that was kept elsewhere, and by nothing else.
Not computed again: what a planner said, what the loop decided about runs by the decision table, what only the harness
saw of a run (times, hardware, neighbours), alarms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.log.fold import fold
from studies.proof.chain import Rows, check_head, events_of
from studies.proof.evidence import check_files
from studies.proof.findings import Discrepancy, Findings
from studies.proof.reports import check_report
from studies.proof.rounds import check_rounds
from studies.proof.verdicts import check_lock, check_verdicts
from studies.report.parts.states import every_state


@dataclass(frozen=True, slots=True)
class Proof:
    """What a verification of a study came to."""

    study: str
    head: str
    """Hash of the last event; it vouches for all before it."""
    drifts: tuple[Discrepancy, ...]
    held: Mapping[str, int]
    """How many of what were checked and held."""
    told: tuple[str, ...]
    """What was not checked and why; one sentence each."""

    @property
    def holds(self) -> bool:
        """Whether nothing drifted."""
        return not self.drifts


def verify(
    study: str, rows: Rows, folder: Path, *, head: str | None = None, known: Sequence[Discrepancy] = ()
) -> Proof:
    """Verify a study by its stored events and the folder that holds its files.

    `head` is a head hash that was kept elsewhere, or its beginning; `known` are drifts that reading the rows showed.
    Every drift is found in one go, as far as the log can be read; nothing is raised for what is stored wrongly.
    """
    findings = Findings(list(known))
    events = events_of(study, rows, findings)
    if head is not None:
        check_head(rows, head, findings)
    if events:
        state = fold(events)  # which events_of has seen through
        for part in every_state(state):
            check_lock(part, folder, findings)
            check_files(part, folder, findings)
        check_rounds(state, findings)
        check_verdicts(events, findings)
        with findings.reading("report"):
            check_report(events, folder, findings)
    last = str(rows[-1]["hash"]) if rows else ""
    return Proof(study, last, tuple(findings.drifts), dict(findings.held), tuple(findings.told))
