"""A world whose runs have a hidden curve: what is planted is what a metric reads off it, in the metric's own unit.

Promises. A run is a pure function of the world, its configuration and its seed. `true_value` is the mean over seeds of
what the metric is of the curves themselves: times in training episodes, areas and rates as shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from simlab.worlds.hidden_curves import BASE, CurveArm, CurveWorld, HiddenCurves, Quantity, planted, truth
from simlab.worlds.topics import ComparisonTopic
from simlab.worlds.world import Configuration, Played, Scalar

BATCH = 128
"""Training episodes of a step, as jobs have them unless they say otherwise."""


@dataclass(frozen=True)
class PlantedCurves:
    """A comparison of a control with one treatment whose curves differ by a planted amount of a quantity."""

    seed: int
    ask: ComparisonTopic
    quantity: Quantity
    arms: CurveWorld
    effect: float
    """What the treatment's mean is above the control's, in shares of the horizon."""
    over_all: bool
    """Whether the effect is of all trainings, or of those that do not collapse."""
    steps: int = 20
    episodes: int = 512
    seconds_per_step: float = 2.0
    startup_s: float = 10.0

    @property
    def knobs(self) -> Mapping[str, tuple[Scalar, ...]]:
        """The field that is asked about."""
        return self.ask.knobs

    @cached_property
    def _planted(self) -> CurveWorld:
        found = planted(self.arms, self.quantity, self.effect, kept=not self.over_all)
        if found is None:
            raise ValueError(f"expected an effect on {self.quantity} that some treatment has; found {self.effect:g}")
        return found

    @property
    def unit(self) -> float:
        """What one share of the horizon is in the metric's unit."""
        return float(self.steps * BATCH) if self.quantity == "episodes" else 1.0

    def true_value(self, configuration: Configuration) -> float:
        """Return the mean of the quantity over all runs, in the metric's unit."""
        return self._value(configuration, over_all=True)

    def kept_value(self, configuration: Configuration) -> float:
        """Return the mean over the runs that the metric is of: where it reads collapses, over all of them."""
        return self._value(configuration, over_all=self.over_all)

    def _value(self, configuration: Configuration, *, over_all: bool) -> float:
        known = truth(self._arm(configuration), self.quantity)
        if over_all != self.over_all:
            return self.unit * (known.of_all if over_all else known.kept)
        control = truth(self._planted.control, self.quantity)
        begun = control.of_all if over_all else control.kept
        return self.unit * (begun + (self.effect if self._treated(configuration) else 0.0))

    def run(self, configuration: Configuration, seed: int, steps: int | None = None) -> Played:
        """Return what a run comes to after `steps`, with its curve."""
        import numpy as np

        source = np.random.default_rng(self._bits(configuration, seed))
        course = self._arm(configuration).drawn(source, 1)
        share = 1.0 if steps is None else steps / self.steps
        end = float(course.heights(np.array([share]))[0, 0])
        initial, search, hidden = source.binomial(self.episodes, [BASE, end, end]) / self.episodes
        return Played(
            float(initial), float(search), float(hidden), collapsed=bool(course.lost[0] > 0), course=_Course(course)
        )

    def hours(self, configuration: Configuration, steps: int | None = None) -> float:
        """Return the machine hours of one run alone on its machine."""
        return self.seconds(configuration, self.steps if steps is None else steps) / 3600

    def seconds(self, configuration: Configuration, steps: int, neighbours: int = 0) -> float:
        """Return the wall time of a run; neighbours do not slow it."""
        return self.startup_s + steps * self.seconds_per_step

    def _treated(self, configuration: Configuration) -> bool:
        return configuration.get(self.ask.field, self.ask.values[0]) == self.ask.values[1]

    def _arm(self, configuration: Configuration) -> CurveArm:
        return self._planted.arm(self._treated(configuration))

    def _bits(self, configuration: Configuration, seed: int) -> int:
        text = repr((self.seed, self._treated(configuration), seed)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class _Course:
    curves: HiddenCurves

    def at(self, share: float) -> float:
        """Return the run's success after a share of its training."""
        import numpy as np

        return float(self.curves.heights(np.array([share]))[0, 0])
