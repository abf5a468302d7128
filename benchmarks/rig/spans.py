"""When parts of a computation began and ended, by name, and the parts of an update of `verl`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Span = tuple[str, float, float]
"""Name, begin and end, in seconds of the monotonic clock."""


class Spans:
    """A list of spans that grows."""

    def __init__(self) -> None:
        self._found: list[Span] = []

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Add a span, also where it ends by an error."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._found.append((name, begun, time.perf_counter()))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and adds a span for each call."""

        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            with self.measured(name):
                return function(*arguments, **named)

        return called

    def add(self, span: Span) -> None:
        """Add a span that was measured elsewhere."""
        self._found.append(span)

    def taken(self) -> list[Span]:
        """Return all spans and forget them."""
        found, self._found = self._found, []
        return found


def seconds(spans: Sequence[Span]) -> Mapping[str, float]:
    """Return the sum of each name's spans."""
    found: dict[str, float] = {}
    for name, begun, ended in spans:
        found[name] = found.get(name, 0.0) + ended - begun
    return found


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
