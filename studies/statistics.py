"""Verdicts: what the data of two arms say about one hypothesis. Pure functions of numbers.

Promises. The verdict follows from the values, the hypothesis' direction and alpha alone, by a rule fixed before
data: *supported* when the whole confidence interval of treatment minus control lies on the predicted side of
zero, *refuted* when it lies wholly on the other side, *inconclusive* when it holds zero, *invalid* when the test
cannot be computed. `inputs_sha256` names the exact inputs, so that anyone can compute the verdict again.

Does not know. It takes runs as independent within and between arms (shared seeds are not paired), and corrects
nothing for testing several hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from studies.records import Hypothesis, Prediction, Verdict, VerdictName, digest

_SAME = 1e-12
"""Spread below which an arm's values count as equal: far under one episode in any evaluation, above float noise."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a mean."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: VerdictName
    reason: str
    low: float | None = None
    high: float | None = None
    p: float | None = None


def judge(
    hypothesis: Hypothesis,
    control: Mapping[str, float],
    treatment: Mapping[str, float],
    *,
    alpha: float,
    test: str = "welch",
) -> Verdict:
    """Return the verdict on `hypothesis` from the metric's value of each run (by run id) of both arms.

    Welch's t-test (unequal variances, Welch-Satterthwaite degrees of freedom) with a two-sided interval of
    level 1 - alpha. Raise ValueError for another test, alpha outside (0, 1), a value that is not finite, or a
    run in both arms.
    """
    _check(control, treatment, alpha, test)
    a, b = list(control.values()), list(treatment.values())
    estimate = fmean(b) - fmean(a) if a and b else None
    finding = _find(hypothesis, a, b, alpha)
    return Verdict(
        hypothesis=hypothesis.id, verdict=finding.verdict, reason=finding.reason,
        estimate=estimate, low=finding.low, high=finding.high, level=1 - alpha, p=finding.p,
        n_control=len(a), n_treatment=len(b),
        mean_control=fmean(a) if a else None, mean_treatment=fmean(b) if b else None,
        sd_control=spread(a), sd_treatment=spread(b),
        test=test,
        inputs_sha256=inputs_hash(hypothesis, control, treatment, alpha=alpha, test=test),
        within_prediction=_within(hypothesis.prediction, estimate),
        brier=brier(hypothesis.prediction.probability, finding.verdict),
    )  # fmt: skip


def inputs_hash(
    hypothesis: Hypothesis, control: Mapping[str, float], treatment: Mapping[str, float], *, alpha: float, test: str
) -> str:
    """Return the sha256 of everything a verdict follows from; the order of runs does not matter."""
    value = {
        "hypothesis": hypothesis.model_dump(mode="json"),
        "control": dict(control),
        "treatment": dict(treatment),
        "alpha": alpha,
        "test": test,
    }
    return digest(value)


def brier(probability: float, verdict: VerdictName) -> float | None:
    """Return (probability - outcome)^2, outcome 1 for supported and 0 for refuted; None for other verdicts.

    Brier 1950, Monthly Weather Review 78(1). 0 is perfect, 0.25 is what a coin's 50 % earns, 1 is the worst.
    """
    outcomes = {"supported": 1.0, "refuted": 0.0}
    return (probability - outcomes[verdict]) ** 2 if verdict in outcomes else None


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    return 0.0 if _constant(values) else stdev(values)


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Interval | None:
    """Return the mean with its Student-t interval; None for fewer than two values."""
    sd = spread(values)
    if sd is None:
        return None
    mean = fmean(values)
    half = _t_quantile((1 + level) / 2, len(values) - 1) * sd / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def hedges_g(control: Sequence[float], treatment: Sequence[float]) -> float | None:
    """Return Hedges' g: the difference of means in pooled standard deviations, corrected for small samples.

    Hedges 1981, J. Educational Statistics 6(2), with the approximate correction 1 - 3 / (4 df - 1). None when an
    arm has fewer than two values or neither varies.
    """
    sd_a, sd_b = spread(control), spread(treatment)
    if sd_a is None or sd_b is None or (sd_a == 0 and sd_b == 0):
        return None
    df = len(control) + len(treatment) - 2
    pooled = math.sqrt(((len(control) - 1) * sd_a**2 + (len(treatment) - 1) * sd_b**2) / df)
    return (fmean(treatment) - fmean(control)) / pooled * (1 - 3 / (4 * df - 1))


def _find(hypothesis: Hypothesis, control: list[float], treatment: list[float], alpha: float) -> _Finding:
    if len(control) < 2 or len(treatment) < 2:
        reason = (
            f"The test needs at least 2 valid runs in each arm; found {len(control)} in the control arm "
            f"and {len(treatment)} in the treatment arm."
        )
        return _Finding("invalid", reason)
    if _constant(control) and _constant(treatment):
        return _without_variance(control[0], treatment[0])
    low, high, p = _welch(control, treatment, alpha)
    return _by_interval(hypothesis, low, high, p, alpha)


def _welch(control: list[float], treatment: list[float], alpha: float) -> tuple[float, float, float]:
    """Return the interval's ends and the two-sided p of treatment minus control.

    Both arms are shifted by the same number, which changes neither: an arm that does not vary then lies at exactly
    zero, where its variance is exactly zero too, instead of a rounding error.
    """
    from scipy import stats  # takes most of a second, which a command that judges nothing should not wait for

    origin = treatment[0] if _constant(treatment) else control[0]
    result = stats.ttest_ind([x - origin for x in treatment], [x - origin for x in control], equal_var=False)
    interval = result.confidence_interval(1 - alpha)
    return float(interval.low), float(interval.high), float(result.pvalue)


def _t_quantile(share: float, df: int) -> float:
    from scipy import stats  # see _welch

    return float(stats.t.ppf(share, df))


def _by_interval(hypothesis: Hypothesis, low: float, high: float, p: float, alpha: float) -> _Finding:
    span = f"{(1 - alpha) * 100:g} % interval of the difference ({low:+.3f} to {high:+.3f})"
    if low <= 0 <= high:
        return _Finding("inconclusive", f"The {span} holds 0.", low, high, p)
    side = "above" if low > 0 else "below"
    if (low > 0) == (hypothesis.direction == "increase"):
        return _Finding("supported", f"The whole {span} lies {side} 0, the predicted side.", low, high, p)
    return _Finding("refuted", f"The whole {span} lies {side} 0, against the prediction.", low, high, p)


def _without_variance(control: float, treatment: float) -> _Finding:
    """Judge two arms that do not vary: with no variance there is no t-test, so nothing can be supported.

    Equal constants show no difference (inconclusive). Different constants may well be a real effect, but the
    locked test gives it neither an interval nor an error rate: calling it supported would be another test than the
    one locked, calling it "no evidence" would be false. It is invalid, and the report shows the difference.
    """
    if abs(treatment - control) <= _SAME:
        reason = f"Every run of both arms gave the same value ({control:.3f}); there is no difference to test."
        return _Finding("inconclusive", reason)
    reason = (
        f"No run differs from its arm (control {control:.3f}, treatment {treatment:.3f}): without variance "
        "Welch's test does not exist, so the locked rule cannot decide."
    )
    return _Finding("invalid", reason)


def _constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _SAME


def _within(prediction: Prediction, estimate: float | None) -> bool | None:
    return None if estimate is None else prediction.low <= estimate <= prediction.high


def _check(control: Mapping[str, float], treatment: Mapping[str, float], alpha: float, test: str) -> None:
    if test != "welch":
        raise ValueError(f"the test must be `welch`; found {test!r}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1; found {alpha}")
    if shared := control.keys() & treatment.keys():
        raise ValueError(f"a run belongs to one arm; found {sorted(shared)} in both")
    for run_id, value in (*control.items(), *treatment.items()):
        if not math.isfinite(value):
            raise ValueError(f"the value of run {run_id} must be finite; found {value}")
