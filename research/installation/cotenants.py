"""Running trainings of an installation's other studies on this machine, which outlived their killed controllers.

They take places of the study that runs now, and are neighbours of its runs. They are found by the labels of their
sandboxes, so that a training counts whatever its study's log says. One controller at a time works in an installation:
while it lives no other study begins a training, so they are listed once, and from then on only end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property

from sandboxes import Handle, Sandbox

Span = tuple[datetime, datetime]


class CoTenants:
    """What other studies than one have, or had, in the sandbox of attempts."""

    def __init__(self, sandbox: Sandbox, study: str) -> None:
        self._sandbox = sandbox
        self._study = study

    def count(self) -> int:
        """Return how many run."""
        return sum(1 for other in self._all if other.span()[1] is None)

    def running(self) -> Mapping[str, int]:
        """Return how many run, by their study."""
        return Counter(other.study for other in self._all if other.span()[1] is None)

    def spans(self, now: datetime) -> list[Span]:
        """Return from when to when each ran; one that runs has run until now."""
        spans = [other.span() for other in self._all]
        return [(_moment(began), now if ended is None else _moment(ended)) for began, ended in spans]

    @cached_property
    def _all(self) -> list[_Other]:
        found = ((handle, handle.labels.get("study", self._study)) for handle in self._sandbox.list())
        return [_Other(self._sandbox, handle, study) for handle, study in found if study != self._study]


class _Other:
    """One training of another study; it is polled until it has ended."""

    def __init__(self, sandbox: Sandbox, handle: Handle, study: str) -> None:
        self.study = study
        self._sandbox = sandbox
        self._name = handle.name
        self._span = handle.ran()

    def span(self) -> tuple[float, float | None]:
        if self._span[1] is None:
            handle = self._sandbox.adopt(self._name)  # None: it ended, and was pruned
            self._span = (self._span[0], time.time()) if handle is None else handle.ran()
        return self._span


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
