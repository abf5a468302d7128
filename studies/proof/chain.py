"""The log against itself: every event's hash, the chain of them, the order of what may happen, and a head kept outside.

The fold refuses what cannot follow: a design that is not what its hash says, a run that the lock does not lead to, a
seed that was not locked, a run id that is not its spec's hash. So an event that folds has been checked against those
before it. What the fold takes on faith, the other modules of this package compute again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from studies.log.event import Event, EventType, examine
from studies.log.fold import Folding
from studies.log.study_state import StudyState
from studies.proof.findings import Findings
from studies.records.errors import LogCorrupt

Rows = Sequence[Mapping[str, Any]]


def events_of(study: str, rows: Rows, findings: Findings) -> list[Event]:
    """Return the events of stored rows that can be followed, having checked their hashes, chain and order."""
    events, faults = examine(study, rows)
    for fault in faults:
        findings.drift(f"event {fault.seq} ({fault.type})", fault.difference)
    followed = _foldable(events, findings)
    findings.held["event"] += min(len(followed), len(rows) - len({fault.seq for fault in faults}))
    return followed


def check_head(rows: Rows, head: str, findings: Findings) -> None:
    """Look for a head hash (or the beginning of one) that was kept outside the log."""
    place = next((n for n, row in enumerate(rows, start=1) if str(row["hash"]).startswith(head.lower())), None)
    if place is None:
        findings.drift("head", f"no event has the hash {head}: the log's end was cut off, or all of it written anew")
    elif place < len(rows):
        later = len(rows) - place
        findings.tell(f"The head {head[:12]} is event {place}; {later} of {len(rows)} events were added after it.")
        findings.held["head"] += 1
    else:
        findings.held["head"] += 1


def before_each(events: Sequence[Event], kind: EventType) -> Iterator[tuple[Event, StudyState]]:
    """Yield each event of a type with the state right before it."""
    folding = Folding()
    for event in events:
        if event.type is kind:
            yield event, folding.state()
        folding.add([event])


def _foldable(events: Sequence[Event], findings: Findings) -> list[Event]:
    """Return the events up to the first that cannot follow those before it."""
    folding = Folding()
    for number, event in enumerate(events):
        try:
            folding.add([event])
        except LogCorrupt as error:
            findings.drift(f"event {event.seq} ({event.type.value})", error.difference)
            findings.tell(f"Nothing after event {event.seq} could be checked but hashes.")
            return list(events[:number])
    return list(events)
