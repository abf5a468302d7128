"""What must hold of every log of a study that asks for approval."""

from __future__ import annotations

from collections.abc import Sequence

from studies import Event, EventType


def unapproved(events: Sequence[Event]) -> None:
    """Fail where a run was planned or a candidate asked for before somebody had approved its stage."""
    mode = events[0].payload["settings"]["approve"]
    asked: dict[str, str] = {}
    approved: set[str] = set()
    for event in events:
        match event.type:
            case EventType.APPROVAL_ASKED:
                asked[event.payload["digest"]] = event.payload["question"]["stage"]
            case EventType.APPROVAL_GIVEN:
                approved.add(asked[event.payload["digest"]])
            case EventType.RUN_PLANNED | EventType.CANDIDATE_ASKED if mode != "none":
                assert _stages(event, mode) & approved, f"nobody approved what event {event.seq} begins"


def _stages(event: Event, mode: str) -> set[str]:
    """Return the stages that an event may belong to: which look a seed is of is for the design to say."""
    phase = "screen" if event.type is EventType.CANDIDATE_ASKED else event.payload["spec"].get("phase", "confirm")
    if phase == "noise" or mode == "plan":
        return {"noise" if phase == "noise" else "design"}
    looks = {f"look {number}" for number in range(1, 10)}
    return looks if phase == "confirm" else {"replication" if phase == "replicate" else phase}
