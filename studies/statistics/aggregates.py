"""Aggregates over many tasks: interquartile mean and probability of improvement, with stratified bootstrap intervals.

Promises. The formulas of Agarwal et al. 2021 (Deep RL at the edge of the statistical precipice, NeurIPS): the IQM is
the mean of the middle half of all runs of all tasks; the probability of improvement is the mean over tasks of P(X > Y),
ties counted half. The bootstrap draws runs anew within each task; its seed is fixed, so the same runs give the same
interval.

Does not know. Single tasks: with few runs of one task a bootstrap interval is far too short (a nominal 95 % holds the
mean in 75 % of studies with 3 runs); there Student's t is used. Nothing here decides a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from studies.statistics.samples import Interval

Scores = Mapping[str, Sequence[float]]
"""Values of the runs of each task."""

RESAMPLES: Final = 2000
_SEED: Final = 20210830


def iqm(scores: Scores) -> float:
    """Return the interquartile mean over all runs of all tasks."""
    _check(scores)
    return float(_trimmed(_once(scores))[0])


def probability_of_improvement(control: Scores, treatment: Scores) -> float:
    """Return the mean over tasks of the probability that a treatment run beats a control run."""
    _check_pair(control, treatment)
    return float(_improvement(_once(control), _once(treatment))[0])


def iqm_interval(scores: Scores, *, level: float = 0.95) -> Interval:
    """Return the IQM with its percentile interval from a bootstrap stratified by task."""
    return _interval(iqm(scores), _trimmed(_redrawn(scores, _SEED)), level)


def improvement_interval(control: Scores, treatment: Scores, *, level: float = 0.95) -> Interval:
    """Return the probability of improvement with its percentile interval from a bootstrap stratified by task."""
    estimate = probability_of_improvement(control, treatment)
    return _interval(estimate, _improvement(_redrawn(control, _SEED), _redrawn(treatment, _SEED + 1)), level)


def _once(scores: Scores) -> list[Any]:
    """Return the values of each task, as one sample: a row."""
    import numpy as np  # takes a while to import, which a command that judges nothing should not wait for

    return [np.asarray([runs], float) for _, runs in sorted(scores.items())]


def _redrawn(scores: Scores, seed: int) -> list[Any]:
    """Return samples drawn anew from the runs of each task, a row for each."""
    import numpy as np  # see _once

    rng = np.random.default_rng(seed)
    return [rng.choice(runs[0], (RESAMPLES, len(runs[0]))) for runs in _once(scores)]


def _trimmed(tasks: Sequence[Any]) -> Any:
    """Return the IQM of each sample."""
    import numpy as np  # see _once
    from scipy import stats

    return stats.trim_mean(np.concatenate(tasks, axis=1), 0.25, axis=1)


def _improvement(control: Sequence[Any], treatment: Sequence[Any]) -> Any:
    """Return for each sample the mean over tasks of the Mann-Whitney statistic U / (n m)."""
    shares = []
    for a, b in zip(control, treatment, strict=True):
        difference = b[:, :, None] - a[:, None, :]
        shares.append((difference > 0).mean((1, 2)) + (difference == 0).mean((1, 2)) / 2)
    return sum(shares) / len(shares)


def _interval(estimate: float, drawn: Any, level: float) -> Interval:
    import numpy as np  # see _once

    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high))


def _check(scores: Scores) -> None:
    if not scores or any(len(runs) == 0 for runs in scores.values()):
        raise ValueError("an aggregate needs at least one task and one run in each; found less")


def _check_pair(control: Scores, treatment: Scores) -> None:
    _check(control)
    _check(treatment)
    if control.keys() != treatment.keys():
        raise ValueError(f"both arms need the same tasks; found {sorted(control)} and {sorted(treatment)}")
