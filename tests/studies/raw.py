"""Appending to an event log whatever a test wants there, after whatever is last, whether it folds or not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from studies import Event, EventLog, EventType, HeadMoved
from studies.records.base import canonical


def append(log: EventLog, study: str, type: EventType, payload: Mapping[str, Any], *, actor: str = "system") -> Event:
    """Append an event after the last one there is; another writer's is waited for."""
    while True:
        event = log.compose(study, type, payload, after=log.last(study), actor=actor)
        try:
            log.append(event)
        except HeadMoved:
            continue
        return event


def event_hash(event: Event) -> str:
    """Return what `event.hash` must be: sha256 of canonical([study, seq, ts, actor, type, payload, prev_hash])."""
    values = [event.study, event.seq, event.ts, event.actor, event.type.value, event.payload, event.prev_hash]
    return hashlib.sha256(canonical(values).encode()).hexdigest()
