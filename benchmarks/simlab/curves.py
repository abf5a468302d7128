"""Runs with a hidden curve: success by the share of a training that is over, with what differs from run to run.

A run rises like a logistic curve from `BASE` to its top, at its own time, and may fall again. A time is planted as the
share of the training by which success is at `LINE`; a run may be too slow to get there before the end, or have a top
below it. What a metric is worth is the mean over runs of what it would read off the curve itself: no evaluation, no
smoothing, no gaps between evaluations. A study sees the curve through all of these.

Promises. A truth is planted in shares of the horizon: `planted` moves the treatment in time until its mean differs from
the control's by what is asked. Does not know. How often real training is like it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

BASE, LINE = 0.2, 0.7
"""Success before training, and the threshold."""
WIDTH: Final = 0.07
"""Of the rise, as a share of the training: from a tenth to nine tenths of it takes 4.4 times as much."""
HELD, FALLEN = 0.6, 0.8
"""Shares of a training between which a run that collapses falls."""
LOST = (0.6, 1.3)
"""Shares of its gain that it loses: from 1 on it ends below its beginning."""
LEAST, MOST = 0.02, 0.98
_TOPS = (LINE + 0.03, MOST)
"""Between them lie the tops of runs that are not stuck."""
_STUCK: Final = LINE - 0.12
_FAR: Final = 700.0
"""Widths beyond which nothing has risen, and e to their power is still a number."""
_DRAWS, _GRID = 2048, 161
"""Runs of an arm, and points of each, behind a truth."""
_FASTEST, _SLOWEST = 0.15, 8.0
"""Between them a treatment's time may be that of the control times as much."""

CUT: Final = 2.0
"""What a time in seconds is cut at: so many times what a training of the usual pace takes."""

Quantity = Literal["episodes", "seconds", "area", "area:0.7", "training-area", "collapse"]
"""What is read off a curve: as shares of the horizon a time, in episodes or in seconds, and the mean height, whole or
below the line, by evaluations or as training plays it; or whether it falls."""


@dataclass(frozen=True, slots=True)
class HiddenCurves:
    """The curves of some runs."""

    middles: Numbers
    """Shares of the training by which each has risen half of its way."""
    tops: Numbers
    lost: Numbers
    """The share of its gain that each loses; 0 for one that does not collapse."""
    paces: Numbers
    """What a step of each takes, over what is usual."""

    def heights(self, shares: Numbers) -> Numbers:
        """Return the success of each run (a row) at shares of the training."""
        import numpy as np

        gained = self._risen(np.minimum(shares, np.where(self.lost > 0, HELD, 1.0)[:, None]))
        fallen = np.clip((shares - HELD) / (FALLEN - HELD), 0.0, 1.0) * self.lost[:, None]
        return np.clip(BASE + gained * (1 - fallen), LEAST, MOST)

    def _risen(self, shares: Numbers) -> Numbers:
        import numpy as np

        rise = 1 / (1 + np.exp(np.minimum((self.middles[:, None] - shares) / WIDTH, _FAR)))
        risen: Numbers = (self.tops[:, None] - BASE) * rise
        return risen


@dataclass(frozen=True, slots=True)
class CurveArm:
    """How the runs of an arm rise."""

    time: float = 0.5
    """Median share of the training by which a run is at the line."""
    spread: float = 0.12
    """Standard deviation of its logarithm."""
    tails: Literal["normal", "t3"] = "normal"
    top: float = 0.88
    top_sd: float = 0.03
    stuck: float = 0.0
    """Share of the runs that never get to the line, however long they train."""
    collapses: float = 0.0
    pace: float = field(default=1.0, repr=False)
    """Median of what a step takes, over what is usual; it matters to seconds alone."""
    pace_sd: float = field(default=0.0, repr=False)
    """Standard deviation of its logarithm, from run to run."""

    def drawn(self, source: np.random.Generator, count: int) -> HiddenCurves:
        """Return so many runs."""
        import numpy as np

        normal, narrow = source.standard_normal((2, count)), source.chisquare(3, count)
        shares, lost = source.random((2, count)), source.uniform(*LOST, count) * np.ones(count)
        paces = source.standard_normal(count) if self.pace_sd else np.zeros(count)
        return self._of(normal, narrow, shares, lost, paces)

    def typical(self) -> HiddenCurves:
        """Return runs that stand for all: spread over the distribution as evenly as can be, always the same."""
        import numpy as np
        from scipy import special, stats

        source = np.random.default_rng(1)
        even = (np.arange(_DRAWS) + 0.5) / _DRAWS
        parts = [source.permutation(even) for _ in range(7)]
        normal = special.ndtri(np.array(parts[:2]))
        lost = LOST[0] + (LOST[1] - LOST[0]) * parts[5]
        paces = special.ndtri(parts[6])
        return self._of(normal, stats.chi2.ppf(parts[2], 3), np.array(parts[3:5]), lost, paces)

    def _of(self, normal: Numbers, narrow: Numbers, shares: Numbers, lost: Numbers, paces: Numbers) -> HiddenCurves:
        import numpy as np

        noise = normal[0] / (np.sqrt(narrow) if self.tails == "t3" else 1.0)  # t of 3 df, scaled to a variance of 1
        times = self.time * np.exp(self.spread * noise)
        tops = np.clip(self.top + self.top_sd * normal[1], *_TOPS)
        risen = (LINE - BASE) / (tops - BASE)
        middles = times - WIDTH * np.log(risen / (1 - risen))
        tops = np.where(shares[0] < self.stuck, _STUCK + self.top_sd * normal[1], tops)
        lost = np.where(shares[1] < self.collapses, lost, 0.0)
        return HiddenCurves(middles, tops, lost, self.pace * np.exp(self.pace_sd * paces))


@dataclass(frozen=True, slots=True)
class CurveWorld:
    """Two arms."""

    control: CurveArm = CurveArm()
    treatment: CurveArm = CurveArm()

    def arm(self, treated: bool) -> CurveArm:
        """Return one of the arms."""
        return self.treatment if treated else self.control


@dataclass(frozen=True, slots=True)
class ArmTruth:
    """What is true of an arm's runs, in a metric's share of the horizon."""

    of_all: float
    kept: float
    """Of the runs that do not collapse; of all where each one does."""
    reached: float
    """Share of all runs that are at the line before the end."""
    there: float
    """Of those runs; of all where none is."""
    sd: float
    """Standard deviation over the runs that do not collapse."""


@cache
def truth(arm: CurveArm, quantity: Quantity) -> ArmTruth:
    """Return the mean of a quantity over an arm's runs."""
    import numpy as np

    if quantity == "collapse":
        rate = arm.collapses
        return ArmTruth(rate, rate, truth(arm, "episodes").reached, rate, math.sqrt(rate * (1 - rate)))
    curves, shares = arm.typical(), np.linspace(0.0, 1.0, _GRID)
    heights = curves.heights(shares)
    times = _crossings(heights, shares)
    values = _values(quantity, curves, heights, shares, times)
    kept = values[curves.lost == 0] if arm.collapses < 1 else values
    reached = times < 1
    there = values[reached] if reached.any() else values
    return ArmTruth(
        float(values.mean()), float(kept.mean()), float(reached.mean()), float(there.mean()), float(kept.std())
    )


def _values(
    quantity: Quantity, curves: HiddenCurves, heights: Numbers, shares: Numbers, times: Numbers
) -> Numbers:  # fmt: skip
    import numpy as np

    if quantity == "episodes":
        return times
    if quantity == "seconds":  # a run that never gets to the line has what it is cut at
        return np.where(times < 1, np.minimum(times * curves.paces / CUT, 1.0), 1.0)
    return _areas(heights, shares, LINE if quantity == "area:0.7" else 1.0)


def _crossings(heights: Numbers, shares: Numbers) -> Numbers:
    """Return where each run first is at the line; 1 where it never is."""
    import numpy as np

    above = heights >= LINE
    first = np.argmax(above, axis=1)
    rows, before = np.arange(len(heights)), np.maximum(first - 1, 0)
    low, high = heights[rows, before], heights[rows, first]
    part = np.where(high > low, (LINE - low) / np.where(high > low, high - low, 1.0), 1.0)
    found: Numbers = np.where(above.any(axis=1), shares[before] + part * (shares[first] - shares[before]), 1.0)
    return found


def _areas(heights: Numbers, shares: Numbers, most: float) -> Numbers:
    import numpy as np

    cut = np.minimum(heights, most)
    steps: Numbers = ((cut[:, 1:] + cut[:, :-1]) / 2 * np.diff(shares)).sum(axis=1)
    return steps


def difference(world: CurveWorld, quantity: Quantity, *, kept: bool) -> float:
    """Return the treatment's mean less the control's, of all runs or of those that do not collapse."""
    control, treatment = (truth(world.arm(treated), quantity) for treated in (False, True))
    return treatment.kept - control.kept if kept else treatment.of_all - control.of_all


@cache
def planted(world: CurveWorld, quantity: Quantity, effect: float, *, kept: bool) -> CurveWorld | None:
    """Return the world with the treatment moved in time until it differs by `effect`; None where no time does that.

    Of collapses it is its rate that is moved, from that of the control.
    """
    from scipy import optimize

    if quantity == "collapse":
        rate = world.control.collapses + effect
        return replace(world, treatment=replace(world.treatment, collapses=rate)) if 0 <= rate <= 1 else None

    def moved(log: float) -> CurveWorld:
        return replace(world, treatment=replace(world.treatment, time=world.control.time * math.exp(log)))

    def excess(log: float) -> float:
        return difference(moved(log), quantity, kept=kept) - effect

    ends = math.log(_FASTEST), math.log(_SLOWEST)
    if excess(ends[0]) * excess(ends[1]) > 0:
        return None
    return moved(optimize.brentq(excess, *ends, xtol=1e-4))


CELLS: Mapping[str, CurveWorld] = {
    "clean": CurveWorld(),
    "heavy tails": CurveWorld(CurveArm(tails="t3"), CurveArm(tails="t3")),
    "spreads .12 and .24": CurveWorld(CurveArm(), CurveArm(spread=0.24)),
    "spreads .12 and .45": CurveWorld(CurveArm(), CurveArm(spread=0.45)),
    "spreads .45 and .12": CurveWorld(CurveArm(spread=0.45), CurveArm()),
    "tops .90 and .78": CurveWorld(CurveArm(top=0.90), CurveArm(top=0.78)),
    "spreads .12 and .45, late": CurveWorld(CurveArm(time=0.92), CurveArm(spread=0.45)),
    "20 % late": CurveWorld(CurveArm(time=0.85, spread=0.2), CurveArm(time=0.85, spread=0.2)),
    "40 % late": CurveWorld(CurveArm(time=0.95, spread=0.2), CurveArm(time=0.95, spread=0.2)),
    "60 % late": CurveWorld(CurveArm(time=1.05, spread=0.2), CurveArm(time=1.05, spread=0.2)),
    "20 % stuck": CurveWorld(CurveArm(stuck=0.2), CurveArm(stuck=0.2)),
    "40 % stuck": CurveWorld(CurveArm(stuck=0.4), CurveArm(stuck=0.4)),
    "20 % stuck in one arm": CurveWorld(CurveArm(), CurveArm(stuck=0.2)),
    "collapses alike, 15 %": CurveWorld(CurveArm(collapses=0.15), CurveArm(collapses=0.15)),
    "collapses in one arm, 15 %": CurveWorld(CurveArm(), CurveArm(collapses=0.15)),
}
"""Each kind of ugliness alone; *late* runs are at the line after the end, *stuck* ones never."""
RATES: Mapping[str, CurveWorld] = {
    "none collapse": CurveWorld(),
    "15 % in both": CurveWorld(CurveArm(collapses=0.15)),
    "30 % in both": CurveWorld(CurveArm(collapses=0.30)),
    "50 % in both": CurveWorld(CurveArm(collapses=0.50)),
    "30 %, spreads .12 and .45": CurveWorld(CurveArm(collapses=0.30), CurveArm(spread=0.45)),
    "30 %, tops .90 and .78": CurveWorld(CurveArm(top=0.90, collapses=0.30), CurveArm(top=0.78)),
    "30 %, one arm late": CurveWorld(CurveArm(collapses=0.30), CurveArm(time=0.85)),
}
"""The same for the rate of collapse, which the treatment has from the control."""
_PACED = CurveArm(pace_sd=0.1)
PACES: Mapping[str, CurveWorld] = {
    "steps vary by .1": CurveWorld(_PACED, _PACED),
    "steps vary by .05 and .3": CurveWorld(CurveArm(pace_sd=0.05), CurveArm(pace_sd=0.3)),
    "steps 1.5 times as long in one arm": CurveWorld(_PACED, replace(_PACED, pace=1.5)),
    "20 % stuck in one arm, steps vary": CurveWorld(_PACED, replace(_PACED, stuck=0.2)),
}
"""The same for what a step takes; where one arm's steps are longer, equal seconds are fewer episodes."""
MIXTURES: Final = 40


@cache
def drawn(number: int) -> CurveWorld:
    """Return one of `MIXTURES` mixtures: every kind of ugliness, more or less of it, in each arm by itself but for what
    the times have in common."""
    source = random.Random(f"hidden curves {number % MIXTURES}")
    time = source.uniform(0.4, 0.9)
    tails: Literal["normal", "t3"] = "t3" if source.random() < 0.3 else "normal"
    arms = [
        CurveArm(
            time=time,
            spread=source.uniform(0.08, 0.3),
            tails=tails,
            top=source.uniform(0.78, 0.92),
            top_sd=source.uniform(0.01, 0.05),
            stuck=source.uniform(0.0, 0.2) if source.random() < 0.3 else 0.0,
            collapses=source.uniform(0.0, 0.3) if source.random() < 0.3 else 0.0,
        )
        for _ in range(2)
    ]
    return CurveWorld(*arms)


def paced(world: CurveWorld, number: int) -> CurveWorld:
    """Return a mixture whose steps vary in what they take, in each arm by itself."""
    source = random.Random(f"paces {number % MIXTURES}")
    arms = (
        replace(arm, pace=source.uniform(0.8, 1.4), pace_sd=source.uniform(0.0, 0.3))
        for arm in (world.control, world.treatment)
    )
    return CurveWorld(*arms)
