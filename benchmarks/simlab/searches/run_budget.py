"""What one search may spend, and what it leads to: every run of a world is paid for, up to a budget of machine hours.

Promises: the budget is never exceeded; a run that does not fit raises ValueError and costs nothing (`affords` asks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simlab.worlds.world import Configuration, Played, World

_ROUNDING = 1e-9


@dataclass(frozen=True)
class SearchClaim:
    """That one configuration is worth more than another."""

    better: Configuration
    than: Configuration

    def gain(self, world: World) -> float:
        """Return by how much it is so in truth."""
        return world.true_value(self.better) - world.true_value(self.than)


@dataclass(frozen=True)
class SearchOutcome:
    """What a search led to."""

    chosen: Configuration
    claims: tuple[SearchClaim, ...]
    hours: float
    """Machine hours of all its runs."""
    runs: int


@dataclass
class RunBudget:
    """Runs configurations of a world and pays for each run out of one budget of machine hours."""

    world: World
    budget: float
    seed: int = 0
    """Where the seeds of its runs begin."""
    hours: float = 0.0
    runs: int = 0
    _paid: dict[tuple[str, int], float] = field(default_factory=dict)

    def score(self, configuration: Configuration, steps: int | None = None, *, seed: int | None = None) -> float:
        """Return the hidden success of a run, with a fresh seed where none is given.

        A run of the same configuration and seed goes on from where it was: only what is added is paid.
        """
        own = self.seed + self.runs if seed is None else seed
        return self.play(configuration, steps, seed=own, onwards=True).hidden

    def play(
        self, configuration: Configuration, steps: int | None = None, *, seed: int, onwards: bool = False
    ) -> Played:
        """Return what a run shows; raise ValueError where it does not fit."""
        price = self._price(configuration, steps, seed if onwards else None)
        if not self._fits(price):
            raise ValueError(f"expected a run of at most {self.budget - self.hours:.3f} h; found {price:.3f} h")
        self.hours += price
        self.runs += 1
        self._paid[_key(configuration, seed)] = self.world.hours(configuration, steps)
        return self.world.run(configuration, seed, steps)

    def affords(
        self,
        configuration: Configuration,
        steps: int | None = None,
        *,
        seed: int | None = None,
        times: int = 1,
        spare: float = 0.0,
    ) -> bool:
        """Whether a run, or several of one length, still fits and leaves the hours to `spare`.

        With a seed, going on with a run counts what is added only.
        """
        return self._fits(times * self._price(configuration, steps, seed) + spare)

    def found(self, chosen: Configuration, claims: Sequence[SearchClaim]) -> SearchOutcome:
        """Return what a search led to at this bill."""
        return SearchOutcome(chosen, tuple(claims), self.hours, self.runs)

    def _fits(self, price: float) -> bool:
        return self.hours + price <= self.budget * (1 + _ROUNDING)

    def _price(self, configuration: Configuration, steps: int | None, seed: int | None) -> float:
        paid = 0.0 if seed is None else self._paid.get(_key(configuration, seed), 0.0)
        return max(0.0, self.world.hours(configuration, steps) - paid)


def _key(configuration: Configuration, seed: int) -> tuple[str, int]:
    return repr(sorted(configuration.items())), seed
