"""The parts of an update of `verl`, by their names, and how spans of driver and rank add up to them."""

from __future__ import annotations

from collections.abc import Sequence

from rig.cluster.spans import Span, seconds

ARITHMETIC = ("model forward", "log-probs", "loss", "backward", "optimiser")
"""What any learner computes: of these alone a step's arithmetic consists."""
CALL, METHOD = "call: ", "rank: "
"""What stands before the names of spans of whole calls: as the driver waits for them, and as a rank makes them."""
ROWS, DEALT, MEASURED = "rows and advantages", "deal and contract", "metrics"
RAY, ENGINE, REST, ALL = "Ray, there and back", "verl's engine beside the arithmetic", "the rest", "all"
PARTS = (*ARITHMETIC, ENGINE, ROWS, DEALT, RAY, MEASURED, REST)
"""What an update consists of, without overlap: their sum is all of it."""


def update_parts(driver: Sequence[Span], rank: Sequence[Span], whole_s: float) -> dict[str, float]:
    """Return the seconds of each of `PARTS` of an update that took `whole_s`, and of all."""
    outer, inner = seconds(driver), seconds(rank)
    calls = sum(value for name, value in outer.items() if name.startswith(CALL))
    methods = sum(value for name, value in inner.items() if name.startswith(METHOD))
    found = {name: inner.get(name, 0.0) for name in ARITHMETIC}
    found |= {name: outer.get(name, 0.0) for name in (ROWS, DEALT, MEASURED)}
    found |= {ENGINE: methods - sum(found[name] for name in ARITHMETIC), RAY: calls - methods}
    return {**found, REST: whole_s - sum(found.values()), ALL: whole_s}
