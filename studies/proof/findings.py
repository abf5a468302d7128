"""What a verification finds: each drift by its place, what held by kind and number, and what could not be checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What reading a value raises that lacks what it must hold, or holds something else."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Something stored that is not what it must be. `place` is a file, an event or a record; `difference` a clause."""

    place: str
    difference: str

    def __str__(self) -> str:
        return f"{self.place}: {self.difference}"


@dataclass(slots=True)
class Findings:
    """A verification under way."""

    drifts: list[Discrepancy] = field(default_factory=list)
    held: Counter[str] = field(default_factory=Counter)
    """How many of what were checked and held, by a noun in the singular."""
    told: list[str] = field(default_factory=list)
    """What was not checked and why, and what a reader should know; one sentence each."""

    def drift(self, place: str, difference: str) -> None:
        """Take note of a drift; the same one again is passed over."""
        found = Discrepancy(place, difference)
        if found not in self.drifts:
            self.drifts.append(found)

    def check(self, what: str, place: str, difference: str | None) -> None:
        """Count one that held, or take note of its difference."""
        if difference is None:
            self.held[what] += 1
        else:
            self.drift(place, difference)

    @contextmanager
    def reading(self, place: str) -> Iterator[None]:
        """Take note of a drift where something stored cannot be read as what it must be."""
        try:
            yield
        except UNREADABLE as error:
            cause = " ".join(str(error).split())
            self.drift(place, f"it lacks what it must hold, or holds something else ({type(error).__name__}: {cause})")

    def tell(self, sentence: str) -> None:
        """Take note of something that is no drift, once."""
        if sentence not in self.told:
            self.told.append(sentence)
