"""The seam of findings: what earlier studies of this home found, by words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from research.planner.quoted import Quoted


class FindsFindings(Protocol):
    """Finds what earlier studies found."""

    def find(self, words: str, most: int) -> Sequence[Quoted]:
        """Return at most so many findings that words are about, each in a sentence, the likeliest first."""
        ...


class NoFindings:
    """A home in which nothing was found yet."""

    def find(self, words: str, most: int) -> Sequence[Quoted]:
        """Return none."""
        return ()


NO_FINDINGS: Final = NoFindings()
