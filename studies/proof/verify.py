"""Verification: whether a study is what it says, computed again from log and files.

Nothing is written. The fold (`studies.log.fold`) refuses events that cannot follow (a design unlike its hash, a run
that the lock does not lead to, an unlocked seed, a run id that is not its spec's hash); what it takes on faith is
computed again here: verdicts from runs, ledger levels from verdicts, and that the looks of a round together spend its
level.

Any change that is not carried through everything that follows from it is caught. Who recomputes log, files and report,
or cuts the log's tail off, is caught only by a head hash kept elsewhere. Not computed again: a planner's words,
decisions about runs, what only the harness saw (times, hardware, neighbours), alarms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from studies.errors import LogCorrupt
from studies.log.event import Event, EventType, find_corruption
from studies.log.event_log import lock_error, lock_name
from studies.log.fold import WORKED, fold
from studies.log.study import StudyState
from studies.proof.evidence import Discrepancy, Findings, check_files
from studies.proof.reports import check_report
from studies.records.alpha import AlphaLedgers
from studies.records.design import Design
from studies.records.verdict import Verdict
from studies.statistics.sequential import spend_alpha
from studies.verdicts.judge import judge_hypothesis

Rows = Sequence[Mapping[str, Any]]


def events_of(study: str, rows: Rows, findings: Findings) -> list[Event]:
    """Return the events of stored rows that can be followed, having checked their hashes, chain and order."""
    events, faults = find_corruption(study, rows)
    for fault in faults:
        findings.drift(f"event {fault.seq} ({fault.type})", fault.difference)
    state: StudyState | None = None
    for number, event in enumerate(events):
        try:
            state = fold([event], state)
        except LogCorrupt as error:
            findings.drift(f"event {event.seq} ({event.type.value})", error.difference)
            findings.note(f"Nothing after event {event.seq} could be checked but hashes.")
            events = events[:number]
            break
    findings.held["event"] += min(len(events), len(rows) - len({fault.seq for fault in faults}))
    return events


def check_head(rows: Rows, head: str, findings: Findings) -> None:
    """Look for a head hash (or the beginning of one) that was kept outside the log."""
    place = next((n for n, row in enumerate(rows, start=1) if str(row["hash"]).startswith(head.lower())), None)
    cut = f"no event has the hash {head}: the log's end was cut off, or all of it written anew"
    findings.check("head", "head", cut if place is None else None)
    if place is not None and (later := len(rows) - place):
        findings.note(f"The head {head[:12]} is event {place}; {later} of {len(rows)} events were added after it.")


def check_rounds(state: StudyState, findings: Findings) -> None:
    """Check the chain of a study's locks and the levels of its rounds; nothing of a study of one round."""
    if state.most_rounds == 1:
        return
    ledgers, previous = AlphaLedgers.begin(state.most_rounds), ""
    for each in state.rounds:
        if (design := each.locked_design) is None:
            return
        place = f"{lock_name(each.round)}, inquiry"
        found, overdrawn = design.inquiry.previous if design.inquiry is not None else "", None
        said = f"it names the lock {found[:12] or 'of nothing'} before it, expected {previous[:12] or 'none'}"
        findings.check("link", place, None if found == previous else said)
        try:
            ledgers.allocate(design)
        except ValueError as error:
            overdrawn = str(error)
        findings.check("level", place, overdrawn)
        findings.check("spending", f"{lock_name(each.round)}, looks", _spending_error(design))
        if each is not state:
            ledgers, previous = ledgers.after(each.outcome), str(each.design_hash)


def _spending_error(design: Design) -> str | None:
    """Return how looks differ from their round's levels: claims of a difference share one, of none each has a part."""
    if design.inquiry is None or not design.looks:
        return None
    seeds = [look.seeds for look in design.looks]
    claims = len(design.hypotheses) if design.screen is None else design.screen.confirmed
    for kind, whole, found in (
        ("differences", design.inquiry.difference, [look.alpha for look in design.looks]),
        ("equivalences", design.inquiry.equivalence / claims, [look.equivalence or 0.0 for look in design.looks]),
    ):
        due = [whole] if len(seeds) == 1 else [look.alpha for look in spend_alpha(seeds, whole)]
        for number, (own, expected) in enumerate(zip(found, due, strict=True), start=1):
            if not math.isclose(own, expected, rel_tol=_TOLERANCE):
                return f"look {number} has the level {own:.6g} of {kind}, expected {expected:.6g} of the round's level"
    return None


_TOLERANCE: Final = 1e-9
"""Relative: libraries of numbers differ in their last digits from machine to machine."""
_WORDS: Final = ("reason", "violations")
"""Fields that are sentences, which a later version may word otherwise; their numbers may not change."""
_NUMBER = re.compile(r"[+\-−]?\d+(?:\.\d+)?")


def check_verdicts(events: Sequence[Event], findings: Findings) -> None:
    """Compute every verdict again from the events before it, and compare it field by field."""
    state: StudyState | None = None
    for event in events:
        if event.type is EventType.VERDICT_COMPUTED:
            with findings.catch_unreadable(f"verdict of event {event.seq}"):
                _check_verdict(event, state or StudyState(), findings)
        state = fold([event], state)


def _check_verdict(event: Event, state: StudyState, findings: Findings) -> None:
    stored = Verdict.model_validate({name: event.payload[name] for name in event.payload if name != WORKED})
    place = f"verdict on {stored.hypothesis} (event {event.seq})"
    outside = stored.reason if _blames_lock(state, stored) else None
    name, look, phase = stored.hypothesis, stored.look, stored.phase
    again = judge_hypothesis(state, name, look=look, phase=phase, lock_error=outside, stored=stored)
    differences = list(_differences(stored.model_dump(mode="json"), again.model_dump(mode="json")))
    if not differences:
        findings.held["verdict"] += 1
    if _blames_lock(state, stored):
        findings.note(f"The {place} is invalid because the lock's file was changed when it was computed.")
    for name, before, after in differences:
        if name in _WORDS and _same_numbers(str(before), str(after)):
            said = f"The {place} gives its {name} in other words than this version would, with the same numbers."
            findings.note(said)
        else:
            findings.drift(place, f"{name} is {before!r} in the log, {after!r} computed from the runs")


def _blames_lock(state: StudyState, stored: Verdict) -> bool:
    return stored.verdict == "invalid" and stored.reason.startswith(f"the lock {lock_name(state.round)} ")


def _differences(stored: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, value in stored.items():
        if isinstance(value, dict) and isinstance(again[name], dict):
            inner = value.keys() | again[name].keys()
            both = ({key: side.get(key) for key in inner} for side in (value, again[name]))
            yield from ((f"{name}.{key}", a, b) for key, a, b in _differences(*both))
            continue
        other = again[name]
        numbers = isinstance(value, float) and isinstance(other, float | int) and not isinstance(other, bool)
        if not (math.isclose(value, other, rel_tol=_TOLERANCE, abs_tol=1e-12) if numbers else value == other):
            yield name, value, other


def _same_numbers(before: str, after: str) -> bool:
    pairs = [[found.replace("−", "-") for found in _NUMBER.findall(text.replace(",", ""))] for text in (before, after)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    for a, b in zip(*pairs, strict=True):  # one of them may be the other rounded
        least, most = sorted(len(text.partition(".")[2]) for text in (a, b))
        if float(a) != float(b) and (least == most or abs(float(a) - float(b)) > 0.5 * 10.0**-least + 1e-12):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Proof:
    """What a verification of a study came to."""

    study: str
    head: str
    """Hash of the last event; it vouches for all before it."""
    drifts: tuple[Discrepancy, ...]
    held: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
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
        for part in state.every_round:
            name = lock_name(part.round)
            if part.lock_file is not None and part.lock_file != name:
                findings.drift("design.locked", f"expected the lock in {name}, found it in {part.lock_file!r}")
            elif part.lock_file is not None:
                findings.check("lock", name, lock_error(part, folder))
            check_files(part, folder, findings)
        check_rounds(state, findings)
        check_verdicts(events, findings)
        with findings.catch_unreadable("report"):
            check_report(events, folder, findings)
    last = str(rows[-1]["hash"]) if rows else ""
    return Proof(study, last, tuple(findings.drifts), dict(findings.held), tuple(findings.notes))
