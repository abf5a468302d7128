"""Of which trainings a verdict speaks: all, or those that go well; and exact rates of runs.

With a rule of collapse it speaks of trainings that do not collapse, and of all only where the highest rate not ruled
out, times what a collapse costs, could not undo the claim. The same rule holds of a time to a threshold
(`scope_reached`) and trainings that get there, and of success and trainings that start (`start`). `judge_exactly` is
for designs that locked the test `boschloo`: the p decides at the look's level, Newcombe's interval equivalence.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from studies.checks.conditions import collapse_rate
from studies.records.design import Metric
from studies.records.verdict import CollapseRate, Equivalence, ReachedRate, Scope, StartRate, Verdict, VerdictName
from studies.statistics import proportions
from studies.statistics.comparison import is_equivalent
from studies.statistics.proportions import one_sided_limits
from studies.verdicts import wording
from studies.verdicts.inputs import Finding, JudgeInput, UnobservedMiss

Count = tuple[int, int]
_LEVEL = 0.95
_NONE = 1e-9


def judge_exactly(case: JudgeInput, level: float, tests: int) -> Finding:
    control, treatment = counts(case)
    (a, n), (b, m) = control, treatment
    p = proportions.boschloo(control, treatment)
    adjusted = min(1.0, p * tests)
    low, high = proportions.difference(control, treatment, 1 - level / tests)
    look = wording.name_look(case.design, case, case.counts)
    how = wording.TestUsed("boschloo", "", tests, 1, look, case.design.metric.unit)
    same, margin, alike = None, case.design.equivalence_margin, 1 - 2 * case.alpha_alike
    if margin is not None:
        ends = proportions.difference(control, treatment, alike)
        p_alike = proportions.equivalence_p(control, treatment, margin)
        same = Equivalence(margin=margin, low=ends[0], high=ends[1], p=p_alike)
    verdict: VerdictName = "inconclusive"
    reason = f"{b} of {m} against {a} of {n}: {how.label()} gives p = {adjusted:.2g}, "
    if same is not None and is_equivalent(same):
        verdict, reason = "equivalent", wording.explain_equivalence(same, alike, how)
    elif adjusted > level:
        reason += f"above the level {level:.4g}."
    else:
        predicted = (b / m > a / n) == (case.claim.direction == "increase")
        verdict = "supported" if predicted else "refuted"
        reason += f"not above the level {level:.4g}; {wording.SIDES[predicted]}."
    return Finding(
        verdict, reason, level=1 - level / tests, low=low, high=high, p=p,
        p_adjusted=adjusted if tests > 1 else None, equivalence=same,
    )  # fmt: skip


def reached_rates(case: JudgeInput) -> tuple[ReachedRate, ...]:
    """Return how many runs of each of the claim's arms reached the threshold; nothing for a metric that is no time."""
    cut = case.design.metric.cut_at
    if cut is None:
        return ()
    rates = []
    for name, runs in zip(case.arms, case.runs(), strict=True):
        count, of = sum(value < cut for value in runs.numbers), len(runs.numbers)
        limits = proportions.exact_limits(count, of)
        rates.append(ReachedRate(arm=name, count=count, of=of, low=limits.low, high=limits.high))
    return tuple(rates)


def is_mostly_cut(rates: Sequence[ReachedRate]) -> bool:
    return any(2 * rate.count < rate.of for rate in rates)


def counts(case: JudgeInput) -> tuple[Count, Count]:
    control, treatment = ((sum(value > 0.5 for value in runs.numbers), len(runs.numbers)) for runs in case.runs())
    return control, treatment


def collapse_rates(case: JudgeInput) -> tuple[CollapseRate, ...]:
    if case.design.collapse is None:
        return ()
    arms = case.arms.items()
    return tuple(collapse_rate(name, arm.broken, len(arm.values) + len(arm.worst)) for name, arm in arms)


def start_rates(case: JudgeInput) -> tuple[StartRate, ...]:
    if case.design.start is None:
        return ()
    rates = []
    for name, arm in case.arms.items():
        known = collapse_rate(name, len(arm.unstarted), len(arm.values) - len(arm.collapsed))
        rates.append(StartRate(**known.model_dump(), begin=fmean(arm.begins.values() or [case.design.metric.worst])))
    return tuple(rates)


def limit_scope(case: JudgeInput, finding: Finding) -> Finding:
    metric, rates, starts = case.design.metric, collapse_rates(case), start_rates(case)
    if finding.verdict == "invalid":
        return finding
    means = [fmean(runs.numbers) for runs in case.runs()]
    if case.design.scope_reached:
        if not (found := list(_find_unseen(metric, reached_rates(case), means, finding, case.weights))):
            return finding
        survives = all(one.breaking_share is None or one.breaking_share > one.upper for one in found)
        scope: Scope = "all" if finding.verdict != "inconclusive" and survives else "reached"
        return replace(finding, scope=scope, reason=finding.reason + wording.explain_reached(found, metric, scope))
    if not (rates or starts):
        return finding
    losses: dict[Scope, list[float]] = {}
    unseen = list(_find_unseen(metric, starts, means, finding, case.weights))
    if unseen:
        sign, pairs = 1 if metric.higher_is_better else -1, zip(starts, means, strict=True)
        lost = [0.0 if rate.count else rate.upper * max(0.0, sign * (mean - rate.begin)) for rate, mean in pairs]
        losses["started"] = _by_side(case.weights, lost)
    if rates:
        losses["not_collapsed"] = _lose_collapses(case, rates, means)
    names = [name for name, own in losses.items() if not _survives(case, finding, own, rates)]
    together = [math.fsum(both) for both in zip(*losses.values(), strict=True)]
    if losses and not names and not _survives(case, finding, together, rates):
        names = list(losses)
    spoken: Scope = "all" if not names else names[0] if len(names) == 1 else "started_not_collapsed"
    words = wording.explain_trainings(spoken, rates, starts, unseen)
    return replace(finding, scope=spoken, reason=finding.reason + words)


def _survives(case: JudgeInput, finding: Finding, lost: Sequence[float], rates: Sequence[CollapseRate]) -> bool:
    if finding.verdict == "equivalent" and (same := finding.equivalence) is not None:
        widest = max(abs(same.low), abs(same.high)) + max(lost)
        return widest < same.margin and not any(rate.count for rate in rates)
    if finding.low is None or finding.high is None or finding.verdict == "inconclusive":
        return False
    # by the tested difference: of pairs it is not that of the arms' means
    return min(abs(finding.low), abs(finding.high)) > lost[(finding.low > 0) == case.design.metric.higher_is_better]


def _by_side(weights: Sequence[float], losses: Sequence[float]) -> list[float]:
    pairs = list(zip(weights, losses, strict=True))
    return [math.fsum(abs(weight) * loss for weight, loss in pairs if (weight > 0) == up) for up in (False, True)]


def _lose_collapses(case: JudgeInput, rates: Sequence[CollapseRate], means: Sequence[float]) -> list[float]:
    worst = case.design.metric.worst
    drop = case.design.collapse.drop if case.design.collapse is not None else None
    if drop is None:  # then all that was reached
        drop = max(abs(mean - worst) for mean in means)
    else:  # as the bank knows it; more where collapses did cost more
        sign = 1 if case.design.metric.higher_is_better else -1
        collapsed = [
            sign * (mean - value)
            for mean, arm in zip(means, case.arms.values(), strict=True)
            for value in (*(arm.values[run] for run in arm.collapsed), *(worst for _ in arm.worst))
        ]
        drop = max(drop, fmean(collapsed)) if collapsed else drop
    return _by_side(case.weights, [rate.upper * drop for rate in rates])


def find_unobserved_misses(metric: Metric, verdict: Verdict) -> tuple[UnobservedMiss, ...]:
    """Return which trainings a verdict leaves open: those that never get there, or that never start."""
    means = tuple(arm.mean for arm in verdict.arms) or (verdict.mean_control, verdict.mean_treatment)
    weights = tuple(arm.weight for arm in verdict.arms) or (-1.0, 1.0)
    return tuple(_find_unseen(metric, verdict.starts or verdict.reached, means, verdict, weights))


def _find_unseen(
    metric: Metric, rates: Sequence[ReachedRate], means: Sequence[float | None], claimed: Finding | Verdict,
    weights: Sequence[float],
) -> Iterator[UnobservedMiss]:  # fmt: skip
    rooms, sign = list(_claim_slack(metric, claimed, weights)), 1 if metric.higher_is_better else -1
    for number, (rate, mean) in enumerate(zip(rates, means, strict=bool(rates))):
        missed, begin = rate.of - rate.count, metric.worst
        if isinstance(rate, StartRate):
            missed, begin = rate.count, rate.begin
        if missed or mean is None:
            continue
        cost = sign * (mean - begin)
        least, undone = min(((room, undone) for arm, room, undone in rooms if arm == number), default=(math.inf, ""))
        upper = one_sided_limits(0, rate.of, _LEVEL)[1]
        yield UnobservedMiss(rate.arm, upper, least / cost if least < cost else None, undone)


def _claim_slack(
    metric: Metric, claimed: Finding | Verdict, weights: Sequence[float]
) -> Iterator[tuple[int, float, str]]:
    if claimed.low is None or claimed.high is None or claimed.verdict in ("inconclusive", "invalid"):
        return
    for arm, weight in ((at, weight) for at, weight in enumerate(weights) if abs(weight) > _NONE):
        lowers = (weight > 0) == metric.higher_is_better  # whether its getting worse moves the effect downwards
        side = math.fsum(abs(other) for other in weights if (other > 0) == (weight > 0))
        if lowers and claimed.low > 0:
            yield arm, claimed.low / side, "is not zero"
        if not lowers and claimed.high < 0:
            yield arm, -claimed.high / side, "is not zero"
        if claimed.verdict == "equivalent" and (same := claimed.equivalence) is not None:
            yield arm, (same.margin + (same.low if lowers else -same.high)) / side, "lies within the margin"
