"""What follows from a study's state alone, computed once for it: one step asks for the same several times, and a tick
in which nothing happened finds the state that the last one found.

A state is frozen, and known here by being the same object: an equal one is computed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from studies import StudyState

Found = TypeVar("Found")


def once_for_a_state(compute: Callable[[StudyState], Found]) -> Callable[[StudyState], Found]:
    """Return a function that keeps what it computed last; what it returns must not be changed."""
    last: list[tuple[StudyState, Found]] = []

    @wraps(compute)
    def kept(state: StudyState) -> Found:
        for known, found in last:  # one look at the list, as a thread beside may replace what is in it
            if known is state:
                return found
        found = compute(state)
        last[:] = [(state, found)]
        return found

    return kept
