"""Aggregates over many tasks: interquartile mean and probability of improvement, with stratified bootstrap intervals.

Promises. The formulas of Agarwal et al. 2021 (Deep RL at the edge of the statistical precipice, NeurIPS): the IQM is
the mean of the middle half of all runs of all tasks; the probability of improvement is the mean over tasks of P(X > Y),
ties counted half. The bootstrap draws runs anew within each task; its seed is fixed, so the same runs give the same
interval.

Does not know. Single tasks: with few runs of one task a bootstrap interval is far too short (a nominal 95 % holds the
mean in 75 % of studies with 3 runs); there Student's t is used. Nothing here decides a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from studies.statistics.samples import Interval

Scores = Mapping[str, Sequence[float]]
"""Values of the runs of each task."""

RESAMPLES: Final = 2000
_SEED: Final = 20210830


def iqm(scores: Scores) -> float:
    """Return the interquartile mean over all runs of all tasks."""
    import numpy as np  # takes a while to import, which a command that judges nothing should not wait for

    _check(scores)
    return _trimmed(np.concatenate([np.asarray(runs, float) for _, runs in sorted(scores.items())]))


def probability_of_improvement(control: Scores, treatment: Scores) -> float:
    """Return the mean over tasks of the probability that a treatment run beats a control run."""
    _check_pair(control, treatment)
    return _improvement(_arrays(control), _arrays(treatment))


def iqm_interval(scores: Scores, *, level: float = 0.95) -> Interval:
    """Return the IQM with its percentile interval from a bootstrap stratified by task."""
    import numpy as np  # see iqm

    _check(scores)
    tasks = _arrays(scores)
    return _bootstrap(iqm(scores), level, lambda rng: _trimmed(np.concatenate(_redrawn(tasks, rng))))


def improvement_interval(control: Scores, treatment: Scores, *, level: float = 0.95) -> Interval:
    """Return the probability of improvement with its percentile interval from a bootstrap stratified by task."""
    _check_pair(control, treatment)
    a, b = _arrays(control), _arrays(treatment)
    return _bootstrap(_improvement(a, b), level, lambda rng: _improvement(_redrawn(a, rng), _redrawn(b, rng)))


def _arrays(scores: Scores) -> list[Any]:
    import numpy as np  # see iqm

    return [np.asarray(runs, float) for _, runs in sorted(scores.items())]


def _trimmed(values: Any) -> float:
    from scipy import stats  # see iqm

    return float(stats.trim_mean(values, 0.25))


def _improvement(control: Sequence[Any], treatment: Sequence[Any]) -> float:
    """Return the mean over tasks of the Mann-Whitney statistic U / (n m)."""
    shares = []
    for a, b in zip(control, treatment, strict=True):
        above = (b[:, None] > a).mean() + (b[:, None] == a).mean() / 2
        shares.append(float(above))
    return sum(shares) / len(shares)


def _redrawn(tasks: Sequence[Any], rng: Any) -> list[Any]:
    return [rng.choice(runs, len(runs)) for runs in tasks]


def _bootstrap(estimate: float, level: float, draw: Callable[[Any], float]) -> Interval:
    import numpy as np  # see iqm

    rng = np.random.default_rng(_SEED)
    low, high = np.quantile([draw(rng) for _ in range(RESAMPLES)], [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high))


def _check(scores: Scores) -> None:
    if not scores or any(len(runs) == 0 for runs in scores.values()):
        raise ValueError("an aggregate needs at least one task and one run in each; found less")


def _check_pair(control: Scores, treatment: Scores) -> None:
    _check(control)
    _check(treatment)
    if control.keys() != treatment.keys():
        raise ValueError(f"both arms need the same tasks; found {sorted(control)} and {sorted(treatment)}")
