"""A recorded landscape as a world: real trainings, drawn again, so that a search has a known best that nobody planted.

A run is one of the recorded runs of its configuration, which one by the run's seed; the truth is their mean. So noise
is the real one, of as many seeds as were recorded, and the best is the best of what was recorded.

Does not know hidden scores before the last step: a shorter run shows the search tasks in their place, and what it had
at the last recorded rung that it passed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from simlab.worlds.landscape import Landscape
from simlab.worlds.world import Configuration, Played, Scalar
from swarm.job import Job


@dataclass(frozen=True)
class Recorded:
    """A landscape that can be searched; `number` tells apart the draws of several searches."""

    landscape: Landscape
    number: int = 0

    @classmethod
    def load(cls, name: str, number: int = 0) -> Recorded:
        """Return a landscape that is shipped; raise ValueError if there is none of this name."""
        return cls(Landscape.load(name), number)

    @property
    def base(self) -> Configuration:
        """What a job is by default, as far as that was recorded; else the middle of a ladder."""
        usual = {name: Job.model_fields[name].default for name in self.knobs}
        return {name: usual[name] if usual[name] in of else of[len(of) // 2] for name, of in self.knobs.items()}

    @property
    def knobs(self) -> Mapping[str, tuple[Scalar, ...]]:
        """What was varied, each with its values."""
        return self.landscape.knobs

    @property
    def steps(self) -> int:
        """Training steps of a whole run."""
        return self.landscape.rungs[-1]

    def true_value(self, configuration: Configuration) -> float:
        """Return the mean hidden success over the recorded seeds."""
        return self._means[self._place(configuration)]

    def kept_value(self, configuration: Configuration) -> float:
        """Return the same: of a recorded run nobody knows whether it collapsed."""
        return self.true_value(configuration)

    def run(self, configuration: Configuration, seed: int, steps: int | None = None) -> Played:
        """Return a recorded run after `steps` (default: all); raise ValueError for fewer than the first rung's."""
        rung, own = self._passed(self.steps if steps is None else steps), self._drawn(configuration, seed)
        search = self.landscape.rung_value(configuration, own, rung)
        hidden = self.landscape.value(configuration, own) if rung == self.steps else search
        return Played(self.landscape.before(configuration, own), search, hidden)

    def hours(self, configuration: Configuration, steps: int | None = None) -> float:
        """Return the machine hours of a run, the same for each step."""
        return self.seconds(configuration, self.steps if steps is None else steps) / 3600

    def seconds(self, configuration: Configuration, steps: int, neighbours: int = 0) -> float:
        """Return the seconds of a run; what neighbours would have cost it was not recorded."""
        return self._seconds[self._place(configuration)] * steps / self.steps

    def _passed(self, steps: int) -> int:
        """Return the last recorded rung within so many steps."""
        passed = [rung for rung in self.landscape.rungs if rung <= steps]
        if not passed:
            raise ValueError(f"expected a run of at least {self.landscape.rungs[0]} steps; found {steps}")
        return passed[-1]

    def _drawn(self, configuration: Configuration, seed: int) -> int:
        """Return the recorded seed that stands for a seed; each configuration draws its own."""
        text = repr((self.number, seed, self._place(configuration))).encode()
        seeds = self.landscape.seeds
        return seeds[int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % len(seeds)]

    def _place(self, configuration: Configuration) -> tuple[Scalar, ...]:
        return tuple(configuration[name] for name in self.knobs)

    @cached_property
    def _means(self) -> dict[tuple[Scalar, ...], float]:
        return {self._place(one): self.landscape.mean(one) for one in self.landscape.configurations()}

    @cached_property
    def _seconds(self) -> dict[tuple[Scalar, ...], float]:
        return {self._place(one): self.landscape.seconds(one) for one in self.landscape.configurations()}
