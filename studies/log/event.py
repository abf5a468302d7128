"""An event of a study, its hash, the chain of hashes, and what is wrong with rows of it.

A row is an event as it is stored, the payload as canonical JSON text. Its hash covers every other field, the hash of
the event before it included, so that a changed, removed or swapped event breaks the chain.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from inspect import Parameter, signature
from typing import Any, Final, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from studies.errors import LogCorrupt
from studies.records.base import canonical

GENESIS: Final = "0" * 64
"""`prev_hash` of a study's first event."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Rule = Callable[..., None]
RULES: "Final[dict[EventType, tuple[Rule, type[BaseModel]]]]" = {}


class EventType(StrEnum):
    """What can happen in a study; `studies.log.fold` says what may follow what."""

    STUDY_CREATED = "study.created"
    ROUND_BEGUN = "round.begun"
    PLANNER_ACTED = "planner.acted"
    PLANNER_NOTED = "planner.noted"
    PLANNER_ASKED = "planner.asked"
    PLANNER_SPOKE = "planner.spoke"
    HYPOTHESIS_PROPOSED = "hypothesis.proposed"
    NOISE_PLANNED = "noise.planned"
    EXPLORATION_PLANNED = "exploration.planned"
    DESIGN_LOCKED = "design.locked"
    DESIGN_AMENDED = "design.amended"
    LENGTH_DECIDED = "length.decided"
    DESIGN_SIZED = "design.sized"
    HYPOTHESIS_VETOED = "hypothesis.vetoed"
    CANDIDATE_ASKED = "candidate.asked"
    SCREEN_DECIDED = "screen.decided"
    MODEL_PREPARED = "model.prepared"
    RUN_PLANNED = "run.planned"
    ATTEMPT_LAUNCHED = "attempt.launched"
    ATTEMPT_ENDED = "attempt.ended"
    ATTEMPT_COPIED = "attempt.copied"
    RUN_COLLECTED = "run.collected"
    MEASUREMENT_RECORDED = "measurement.recorded"
    RUN_INVALIDATED = "run.invalidated"
    VERDICT_COMPUTED = "verdict.computed"
    DECISION_TAKEN = "decision.taken"
    APPROVAL_ASKED = "approval.asked"
    APPROVAL_GIVEN = "approval.given"
    APPROVAL_DENIED = "approval.denied"
    STUDY_WORKED = "study.worked"
    STUDY_PAUSED = "study.paused"
    STUDY_STOPPED = "study.stopped"
    STUDY_RESUMED = "study.resumed"
    STUDY_CONCLUDED = "study.concluded"
    REPORT_BUILT = "report.built"


_TYPES: Final = frozenset(kind.value for kind in EventType)


@dataclass(frozen=True, slots=True)
class Event:
    """One appended event. `ts` is ISO-8601 UTC with milliseconds; `hash` covers every other field."""

    study: str
    seq: int
    ts: str
    actor: str
    type: EventType
    payload: Mapping[str, Any]
    prev_hash: str
    hash: str


FIELDS: Final = tuple(field.name for field in fields(Event))
"""What is stored of an event, in the order in which its hash covers it."""


def _row_hash(row: Mapping[str, Any]) -> str:
    parts = [row["payload"] if name == "payload" else canonical(row[name]) for name in FIELDS if name != "hash"]
    return hashlib.sha256(f"[{','.join(parts)}]".encode()).hexdigest()


def compose_event(
    study: str, type: EventType, payload: Mapping[str, Any], *, after: Event | None, actor: str, at: datetime
) -> Event:
    """Return the event that may be appended after `after`, the last one; ValueError for what cannot be stored."""
    seq, previous = (0, GENESIS) if after is None else (after.seq, after.hash)
    return event_of(compose_row(study, EventType(type).value, payload, seq, previous, actor=actor, at=at))


def compose_row(
    study: str, type: str, payload: Mapping[str, Any], seq: int, previous: str, *, actor: str, at: datetime
) -> dict[str, Any]:
    """Return the row that may follow row `seq` of hash `previous`; ValueError for what cannot be stored."""
    for what, name in (("study", study), ("actor", actor)):
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"a {what}'s name must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or "
                f"digit; found {name[:80]!r}"
            )
    ts = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    row = {
        "study": study, "seq": seq + 1, "ts": ts, "actor": actor, "type": type,
        "payload": _payload_text(payload, type), "prev_hash": previous,
    }  # fmt: skip
    return row | {"hash": _row_hash(row)}


def row_of(event: Event) -> dict[str, Any]:
    row = {name: getattr(event, name) for name in FIELDS}
    return row | {"type": event.type.value, "payload": _payload_text(event.payload, event.type)}


def event_of(row: Mapping[str, Any]) -> Event:
    return Event(**{**row, "type": EventType(row["type"]), "payload": json.loads(row["payload"])})


def find_corruption(study: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Event], list[LogCorrupt]]:
    """Return the events of stored rows, and every fault of their chain; one that is no event at all is left out."""
    faults = list(find_faults(study, rows))
    return [event_of(row) for row in rows if _shape_fault(row) is None and row["type"] in _TYPES], faults


def verify_events(study: str, rows: Sequence[Mapping[str, Any]], seq: int = 0, previous: str = GENESIS) -> list[Event]:
    """Return the events of rows that follow event `seq` of hash `previous`; raise the first fault as LogCorrupt."""
    for fault in find_faults(study, rows, seq, previous):
        raise fault
    return [event_of(row) for row in rows]


def find_faults(
    study: str, rows: Sequence[Mapping[str, Any]], seq: int = 0, previous: str = GENESIS, *,
    types: Collection[str] = _TYPES, what: str = "event",
) -> Iterator[LogCorrupt]:  # fmt: skip
    """Yield what is wrong with rows that are to follow row `seq` of hash `previous`, the first fault first."""
    for row in rows:
        seq += 1
        if row["seq"] != seq:
            yield LogCorrupt(study, seq, "missing", f"expected {what} {seq} here, found {row['seq']!r}", what)
            seq = row["seq"] if isinstance(row["seq"], int) else seq
        if (fault := row_fault(study, row, types, what)) is not None:
            yield fault
        if row["prev_hash"] != previous:
            said = f"expected it to follow the {what} with hash {previous[:12]}, found {str(row['prev_hash'])[:12]}"
            yield LogCorrupt(study, seq, str(row["type"]), said, what)
        previous = str(row["hash"])


def row_fault(
    study: str, row: Mapping[str, Any], types: Collection[str] = _TYPES, what: str = "event"
) -> LogCorrupt | None:
    """Return what keeps a row from being whole by itself: types, payload, hash, a known type."""
    fault = _shape_fault(row)
    if fault is None and (expected := _row_hash(row)) != row["hash"]:
        fault = f"expected the hash {row['hash'][:12]}, its fields give {expected[:12]}"
    elif fault is None and row["type"] not in types:
        fault = "its type is unknown here; a newer ajet may have written it"
    return None if fault is None else LogCorrupt(study, row["seq"], str(row["type"]), fault, what)


def _shape_fault(row: Mapping[str, Any]) -> str | None:
    for name in FIELDS:
        if not isinstance(row[name], int if name == "seq" else str):
            return f"its {name} is no {'number' if name == 'seq' else 'text'}"
    try:
        payload = json.loads(row["payload"])
    except (ValueError, RecursionError):
        payload = None
    return None if isinstance(payload, dict) else "its payload is not a JSON object"


def _payload_text(payload: Mapping[str, Any], type: str) -> str:
    try:
        text = canonical(dict(payload))
        text.encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the payload of {type} must be JSON with finite numbers and valid text: {error}") from error
    return text


class ImpossibleEvent(Exception):
    """The event cannot follow the ones before it."""


def refuse(holds: object, why: str) -> None:
    """Raise ImpossibleEvent where something holds that keeps an event from following."""
    if holds:
        raise ImpossibleEvent(why)


def rule(*types: EventType) -> Callable[[Rule], Rule]:
    """Register what events of these types do; its parameters after study and event are the payload's fields."""

    def register(apply: Rule) -> Rule:
        hints = get_type_hints(apply)
        known: dict[str, Any] = {}
        extra: Literal["ignore", "allow"] = "ignore"
        for name, parameter in list(signature(apply).parameters.items())[2:]:
            if parameter.kind is Parameter.VAR_KEYWORD:
                extra = "allow"
            else:
                known[name] = (hints[name], ... if parameter.default is Parameter.empty else parameter.default)
        record = create_model(types[0].value, __config__=ConfigDict(extra=extra), **known)
        RULES.update(dict.fromkeys(types, (apply, record)))
        return apply

    return register
