"""What goes wrong around a study in many days, by a plan: every kind at least once, when and how long at random.

Moments are seconds for which the machine was awake. A plan knows nothing of the study; that is what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, get_args

from research.runs.files import AttemptSpec
from simlab.flights.faults import NO_FAULTS, Fault, Faults, Rates

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
Stretch = Literal["planner", "disk", "tracker", "page", "rival", "stall", "paused"]
"""What lasts: the planner's endpoint is down, the disk is full, the tracker shows no log, the page's server is down; a
second controller works beside the first, the first one is stopped and goes on later, somebody pauses on the page."""
Blow = Literal["kill", "torn", "forget", "cancel", "jump", "sleep"]
"""What happens at once: all controllers are killed, between two ticks or (`torn`) at an append; the page's server loses
its database; somebody cancels on the page; the wall clock is set; the machine sleeps."""


class _Habit(NamedTuple):
    """How often something happens in ten days, and how long it lasts or how far it goes, in hours."""

    times: int
    least: float
    most: float


_STRETCHES: Mapping[Stretch, _Habit] = {
    "planner": _Habit(2, 24.0, 24.0),
    "disk": _Habit(4, 0.02, 3.0),
    "tracker": _Habit(6, 0.02, 0.13),
    "page": _Habit(6, 0.05, 5.0),
    "rival": _Habit(4, 0.5, 8.0),
    "stall": _Habit(3, 0.5, 6.0),
    "paused": _Habit(3, 0.5, 6.0),
}
_BLOWS: Mapping[Blow, _Habit] = {
    "kill": _Habit(5, 0.0, 0.0),
    "torn": _Habit(10, 0.0, 0.0),
    "forget": _Habit(3, 0.0, 0.0),
    "cancel": _Habit(2, 0.0, 0.0),
    "jump": _Habit(6, -30.0, 30.0),
    "sleep": _Habit(5, 0.3, 14.0),
}


@dataclass(frozen=True, slots=True)
class Shock:
    """Something that happens at once; `size_s` is how long a sleep is, and how far the wall clock is set."""

    kind: Blow
    at_s: float
    size_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Spell:
    """Something that lasts."""

    kind: Stretch
    at_s: float
    until_s: float


_OFTEN = Rates(crash=0.06, hang=0.02, out_of_memory=0.03, lost=0.06, garbled=0.04, lag=0.06)


class FirstTriesFail(Faults):
    """A plan in which only a run's first attempts end badly: so that every run has its value in the end."""

    def of(self, order: AttemptSpec) -> Fault:
        """Return what happens to an attempt."""
        return super().of(order) if order.attempt == 1 else "none"


@dataclass(frozen=True, slots=True)
class Weather:
    """All that goes wrong; `calm` for nothing."""

    seed: int = 0
    spells: tuple[Spell, ...] = ()
    blows: tuple[Shock, ...] = ()
    """In the order of their moments."""
    faults: Faults = NO_FAULTS
    """What goes wrong within attempts."""

    @classmethod
    def of(cls, seed: int, days: float) -> Weather:
        """Return a plan for so many days; its first planner's outage meets the planning."""
        draws = Random(seed)
        spells = [
            cls._spell(kind, habit, draws, days) for kind, habit in _STRETCHES.items() for _ in range(habit.times)
        ]
        first = Spell("planner", 0.0, draws.uniform(1.0, 24.0) * HOUR_S)
        blows = [
            Shock(kind, draws.uniform(0.0, days * DAY_S), draws.uniform(habit.least, habit.most) * HOUR_S)
            for kind, habit in _BLOWS.items()
            for _ in range(habit.times)
        ]
        return cls(
            seed, (first, *spells), tuple(sorted(blows, key=lambda blow: blow.at_s)), FirstTriesFail(_OFTEN, seed)
        )

    @staticmethod
    def _spell(kind: Stretch, habit: _Habit, draws: Random, days: float) -> Spell:
        begin = draws.uniform(0.0, days * DAY_S)
        return Spell(kind, begin, begin + draws.uniform(habit.least, habit.most) * HOUR_S)

    def goes_on(self, kind: Stretch, at_s: float) -> bool:
        """Return whether something lasts at a moment."""
        return any(spell.kind == kind for spell in self.spells_at(at_s))

    def spells_at(self, at_s: float) -> list[Spell]:
        """Return what lasts at a moment."""
        return [spell for spell in self.spells if spell.at_s <= at_s < spell.until_s]

    def moments(self) -> Iterator[float]:
        """Yield every moment at which something begins, ends or happens."""
        for spell in self.spells:
            yield from (spell.at_s, spell.until_s)
        yield from (blow.at_s for blow in self.blows)


CALM = Weather()
KINDS: tuple[str, ...] = (*get_args(Stretch), *get_args(Blow))
