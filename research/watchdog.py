"""The watchdog: rules over the metrics of a training, by thresholds that the design locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from studies.procedure import Watchdog

Effect = Literal["abort", "worst", "exclude", "note"]

DEFAULT_WATCHDOG: Final = Watchdog()


@dataclass(frozen=True, slots=True)
class Alarm:
    """A limit that was broken."""

    code: str
    step: int
    sentence: str
    effect: Effect


def alarms(
    history: Sequence[Mapping[str, Any]],
    limits: Watchdog,
    hidden_before: float | None = None,
    hidden_after: float | None = None,
) -> tuple[Alarm, ...]:
    """Return the alarms of a training's rows (`{"step": n, "metrics": {...}}`), each code once, by step."""
    return ()
