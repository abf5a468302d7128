"""When parts of a computation began and ended, by name; the clock is the machine's, the same for all its processes."""

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
