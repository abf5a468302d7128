"""How many misses a correct system stays within, so that a test of a small sample fails for a broken one only."""

from __future__ import annotations

from itertools import accumulate
from math import comb

SURE = 0.999


def most(of: int, rate: float) -> int:
    """Return the largest count that events of this rate stay within, at 99.9 %."""
    chances = (comb(of, count) * rate**count * (1 - rate) ** (of - count) for count in range(of + 1))
    return next((count for count, within in enumerate(accumulate(chances)) if within >= SURE), of)


def least(of: int, rate: float) -> int:
    """Return the smallest count that events of this rate reach, at 99.9 %."""
    return of - most(of, 1 - rate)
