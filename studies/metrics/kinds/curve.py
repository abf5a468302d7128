"""The hidden curve of a run: success by training episodes, from its evaluations before, during and after training.

Between two evaluations it is a straight line. What is read off it as a time is read off the centred mean of three
evaluations, of the two at an end: of the ways tried, this crosses a line with the least bias and spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from studies.checks.run_facts import Row, success
from studies.metrics.kinds.base import Refused, Results

LEAST_POINTS = 4
"""Evaluations of a training that is to have a curve: with fewer a mean of three is the whole of it. One that a rule
ended early may have fewer, and has its curve all the same."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Success `ys` at `xs`, which grow from 0; `xs` are training episodes, or seconds of training."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def area(self, horizon: float, most: float = 1.0) -> float:
        """Return the mean height from 0 to the horizon, by trapezes of min(y, `most`) at each evaluation.

        What lies above `most` is cut at the evaluations, not between them. The last value holds beyond the end.
        """
        points = [(x, min(y, most)) for x, y in zip(self.xs, self.ys, strict=True) if x <= horizon]
        if self.xs[-1] > horizon:
            points.append((horizon, min(self._at(horizon), most)))
        elif self.xs[-1] < horizon:
            points.append((horizon, min(self.ys[-1], most)))
        return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points)) / horizon

    def crossing(self, threshold: float) -> float | None:
        """Return where the smoothed curve first reaches the threshold; None where it never does."""
        ys = self._smoothed()
        if ys[0] >= threshold:
            return self.xs[0]
        for (x0, y0), (x1, y1) in pairwise(zip(self.xs, ys, strict=True)):
            if y1 >= threshold:
                return x0 + (x1 - x0) * (threshold - y0) / (y1 - y0)
        return None

    def _smoothed(self) -> tuple[float, ...]:
        """Return the centred means of three, of the last two at the end; before training nothing after it counts."""
        return (self.ys[0], *(fmean(self.ys[at - 1 : at + 2]) for at in range(1, len(self.ys))))

    def _at(self, x: float) -> float:
        for (x0, y0), (x1, y1) in pairwise(zip(self.xs, self.ys, strict=True)):
            if x0 <= x <= x1:
                return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        raise ValueError(f"{x} lies outside the curve")


def by_episodes(run: Results) -> Curve:
    """Return success by training episodes; Refused where evaluations or counts are missing."""
    return _curve(run, _summed(run.history, "batch/episodes"))


def by_seconds(run: Results) -> Curve:
    """Return success by seconds of training, the time of evaluations left out; Refused where any is missing."""
    return _curve(run, _summed(run.history, "timing_s/step"))


def _summed(history: Sequence[Row], name: str) -> list[float]:
    """Return the sum of a metric up to each step, 0 before the first."""
    values = [row["metrics"].get(name) for row in history]
    if any(value is None for value in values):
        raise Refused(f"expected {name} of every training step; found {values.count(None)} steps without it")
    return [0.0, *accumulate(float(value) for value in values if value is not None)]


def _curve(run: Results, at: Sequence[float]) -> Curve:
    parts = [run.initial, *run.during, run.final]
    versions = [int(part["policy_version"]) for part in parts]
    if versions != sorted(set(versions)) or versions[-1] >= len(at):
        raise Refused(
            "expected evaluations of policies, each later than the one before and of a step of this training; found "
            f"those of {', '.join(map(str, versions))}"
        )
    return Curve(tuple(at[version] for version in versions), tuple(success(part) for part in parts))
