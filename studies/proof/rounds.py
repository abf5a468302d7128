"""The rounds of an inquiry: each lock's place in the chain of locks, and what its tests may spend, computed anew.

The fold refuses a lock that does not name the one before it, or that spends what the ledgers do not give it. What it
takes on faith is checked here: that the looks of a round together spend its level and no more. The levels are computed
once more from the verdicts, which are computed from the runs.
"""

from __future__ import annotations

import math

from studies.inquiry.ledger import Ledgers, OverdrawnLedger
from studies.log.lock_file import lock_name
from studies.log.study_state import StudyState
from studies.proof.findings import Findings
from studies.records.design import Design
from studies.statistics.looks import spend

_TOLERANCE = 1e-9
"""Relative: libraries of numbers differ in their last digits from machine to machine."""


def check_rounds(state: StudyState, findings: Findings) -> None:
    """Check the chain of a study's locks and the levels of its rounds; nothing of a study of one round."""
    if state.most_rounds == 1:
        return
    ledgers, previous = Ledgers.begin(state.most_rounds), ""
    for each in state.rounds:
        if (design := each.locked_design) is None:
            return
        place = f"{lock_name(each.round)}, inquiry"
        findings.check("link", place, _link_error(design, previous))
        findings.check("level", place, _level_error(ledgers, design))
        findings.check("spending", f"{lock_name(each.round)}, looks", _spending_error(design))
        if each is not state:
            ledgers, previous = ledgers.after(each.outcome), str(each.design_hash)


def _link_error(design: Design, previous: str) -> str | None:
    found = design.inquiry.previous if design.inquiry is not None else ""
    if found == previous:
        return None
    return f"it names the lock {found[:12] or 'of nothing'} before it, expected {previous[:12] or 'none'}"


def _level_error(ledgers: Ledgers, design: Design) -> str | None:
    try:
        ledgers.stake(design)
    except OverdrawnLedger as error:
        return str(error)
    return None


def _spending_error(design: Design) -> str | None:
    """Return how the levels of a round's looks differ from what its whole levels give them.

    Its claims of a difference share a level, by a test of all of them; of no difference each has its own part.
    """
    if design.inquiry is None or not design.looks:
        return None
    seeds = [look.seeds for look in design.looks]
    claims = len(design.hypotheses) if design.screen is None else design.screen.confirmed
    for kind, whole, found in (
        ("differences", design.inquiry.difference, [look.alpha for look in design.looks]),
        ("equivalences", design.inquiry.equivalence / claims, [look.equivalence or 0.0 for look in design.looks]),
    ):
        due = [whole] if len(seeds) == 1 else [look.alpha for look in spend(seeds, whole)]
        for number, (own, expected) in enumerate(zip(found, due, strict=True), start=1):
            if not math.isclose(own, expected, rel_tol=_TOLERANCE):
                return f"look {number} has the level {own:.6g} of {kind}, expected {expected:.6g} of the round's level"
    return None
