"""What is judged by counting runs: whether trainings collapse, and whether they reach a threshold at all.

Promises. `judged_exactly` is the path of a design that locked the test `boschloo`: runs have 1 or 0, the p decides
at the look's level, and the interval of the difference (Newcombe's method 10 on exact limits) whether two rates are
surely alike; where an exact test of few runs and its interval disagree, the test is what was locked. `reached` counts
who got to a threshold, which stands beside every verdict on a time. `mostly_cut` says when a time is no number: more
than half of an arm never got there, so that its mean would be told by the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence

from studies.records.verdict import Equivalence, ReachedRate, VerdictName
from studies.statistics import exact_rates
from studies.statistics.comparison import Runs
from studies.statistics.equivalence import equivalent
from studies.verdicts import wording
from studies.verdicts.finding import Finding
from studies.verdicts.judge_input import JudgeInput
from studies.verdicts.wording import Count


def judged_exactly(case: JudgeInput, level: float, tests: int) -> Finding:
    """Return what the exact test says at a level that `tests` claims of one variable share."""
    control, treatment = _counts(case)
    p = exact_rates.boschloo(control, treatment)
    adjusted = min(1.0, p * tests)
    low, high = exact_rates.difference(control, treatment, 1 - level / tests)
    same = _alike(control, treatment, case.design.equivalence_margin, case.alpha_alike)
    how = wording.TestUsed("boschloo", "", tests, 1, case.look, case.looks, case.design.metric.unit)
    verdict, reason = _by_p(case, (control, treatment), adjusted, level, same, how)
    return Finding(
        verdict, reason, level=1 - level / tests, low=low, high=high, p=p,
        p_adjusted=adjusted if tests > 1 else None, equivalence=same,
    )  # fmt: skip


def exact_p(case: JudgeInput) -> float:
    """Return the p of a claim's two rates."""
    return exact_rates.boschloo(*_counts(case))


def reached(case: JudgeInput) -> tuple[ReachedRate, ...]:
    """Return how many runs of each of the claim's arms reached the threshold; nothing for a metric that is no time."""
    cut = case.design.metric.cut_at
    if cut is None:
        return ()
    return tuple(_rate(name, runs, cut) for name, runs in zip(case.arms, case.runs(), strict=True))


def mostly_cut(rates: Sequence[ReachedRate]) -> bool:
    """Return whether more than half of an arm never got there."""
    return any(2 * rate.count < rate.of for rate in rates)


def not_reached(case: JudgeInput, rates: Sequence[ReachedRate]) -> Finding:
    """Return that nothing is claimed of a time that is mostly cut."""
    return Finding("inconclusive", wording.not_reached(rates, case.design.metric), measured=False)


def _rate(name: str, runs: Runs, cut: float) -> ReachedRate:
    count, of = sum(value < cut for value in runs.numbers), len(runs.numbers)
    found = exact_rates.exact_limits(count, of)
    return ReachedRate(arm=name, count=count, of=of, low=found.low, high=found.high)


def _counts(case: JudgeInput) -> tuple[Count, Count]:
    control, treatment = ((sum(value > 0.5 for value in runs.numbers), len(runs.numbers)) for runs in case.runs())
    return control, treatment


def _alike(control: Count, treatment: Count, margin: float | None, alpha: float) -> Equivalence | None:
    if margin is None:
        return None
    low, high = exact_rates.difference(control, treatment, 1 - 2 * alpha)
    return Equivalence(margin=margin, low=low, high=high, p=exact_rates.inside_margin(control, treatment, margin))


def _by_p(
    case: JudgeInput, counts: tuple[Count, Count], p: float, level: float, same: Equivalence | None,
    how: wording.TestUsed,
) -> tuple[VerdictName, str]:  # fmt: skip
    (a, n), (b, m) = counts
    if same is not None and equivalent(same):
        return "equivalent", wording.inside(same, 1 - 2 * case.alpha_alike, how)
    if p > level:
        return "inconclusive", wording.rates_not_told_apart(counts, p, level, how)
    predicted = (b / m > a / n) == (case.claim.direction == "increase")
    return ("supported" if predicted else "refuted"), wording.rates_apart(counts, p, level, predicted, how)
