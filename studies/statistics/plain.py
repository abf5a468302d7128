"""The plain rule: what two arms say about one hypothesis, by Welch's test at one level, once, at the end.

It is the rule of every design that locks nothing beyond test and level, and so of all logs that are older than looks,
noise and corrections: what they say must come out the same for ever.

Promises. The verdict follows from the values, the hypothesis' direction and alpha alone, by a rule fixed before
data: *supported* when the whole confidence interval of treatment minus control lies on the predicted side of
zero, *refuted* when it lies wholly on the other side, *inconclusive* when it holds zero, *invalid* when the test
cannot be computed. `inputs_sha256` names the exact inputs, so that anyone can compute the verdict again.

Does not know. It takes runs as independent within and between arms (shared seeds are not paired), and corrects
nothing for testing several hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from studies.records import Hypothesis, Prediction, Verdict, VerdictName, digest
from studies.statistics.calibration import brier
from studies.statistics.samples import SAME, constant, spread


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


def _find(hypothesis: Hypothesis, control: list[float], treatment: list[float], alpha: float) -> _Finding:
    if len(control) < 2 or len(treatment) < 2:
        reason = (
            f"The test needs at least 2 valid runs in each arm; found {len(control)} in the control arm "
            f"and {len(treatment)} in the treatment arm."
        )
        return _Finding("invalid", reason)
    if constant(control) and constant(treatment):
        return _without_variance(control[0], treatment[0])
    low, high, p = _welch(control, treatment, alpha)
    return _by_interval(hypothesis, low, high, p, alpha)


def _welch(control: list[float], treatment: list[float], alpha: float) -> tuple[float, float, float]:
    """Return the interval's ends and the two-sided p of treatment minus control.

    Both arms are shifted by the same number, which changes neither: an arm that does not vary then lies at exactly
    zero, where its variance is exactly zero too, instead of a rounding error.
    """
    from scipy import stats  # takes most of a second, which a command that judges nothing should not wait for

    origin = treatment[0] if constant(treatment) else control[0]
    result = stats.ttest_ind([x - origin for x in treatment], [x - origin for x in control], equal_var=False)
    interval = result.confidence_interval(1 - alpha)
    return float(interval.low), float(interval.high), float(result.pvalue)


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
    if abs(treatment - control) <= SAME:
        reason = f"Every run of both arms gave the same value ({control:.3f}); there is no difference to test."
        return _Finding("inconclusive", reason)
    reason = (
        f"No run differs from its arm (control {control:.3f}, treatment {treatment:.3f}): without variance "
        "Welch's test does not exist, so the locked rule cannot decide."
    )
    return _Finding("invalid", reason)


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
