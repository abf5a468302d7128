"""What goes wrong around simulated training, by a plan: which attempt ends how is a function of its names alone.

Rates are shares of attempts. A plan does not know what the loop makes of a fault; that is what it is for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Literal

from research.runs.files import AttemptSpec

Fault = Literal["none", "crash", "hang", "out_of_memory", "lost", "garbled", "lag", "duplicate"]


@dataclass(frozen=True, slots=True)
class Rates:
    """How often attempts end badly."""

    crash: float = 0.0
    """The process dies and says nothing."""
    hang: float = 0.0
    """It goes on until its time limit."""
    out_of_memory: float = 0.0
    lost: float = 0.0
    """It vanishes with its shim."""
    garbled: float = 0.0
    """It dies while it writes its outcome."""
    lag: float = 0.0
    """The tracker shows its log only `Faults.lag_s` later."""
    duplicate: float = 0.0
    """It ends twice: a second copy of it writes its results again, with other numbers, after they were collected."""


@dataclass(frozen=True, slots=True)
class Faults:
    """A plan of faults."""

    rates: Rates = Rates()
    seed: int = 0
    lag_s: float = 120.0
    refusing: tuple[tuple[float, float], ...] = ()
    """Stretches (seconds since the flight began) in which the sandbox starts nothing."""
    skew_s: float = 0.0
    """By how much two clocks of the installation differ."""

    def of(self, order: AttemptSpec) -> Fault:
        """Return what happens to an attempt."""
        label = repr((self.seed, order.spec.arm, order.spec.seed, order.spec.phase, order.attempt)).encode()
        left = int.from_bytes(hashlib.blake2b(label, digest_size=7).digest(), "big") / 2**56
        for entry in fields(self.rates):
            left -= getattr(self.rates, entry.name)
            if left < 0:
                return entry.name  # type: ignore[return-value]
        return "none"


NO_FAULTS = Faults()
