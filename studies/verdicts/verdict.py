"""The verdict on one hypothesis at one look, by the rules its design locked. Pure functions of values.

Promises. The first of these that holds: *invalid* (a run without a place in the analysis, too many exclusions, a
violation found by the confound linter, or no test for want of runs or variance), *equivalent* (two one-sided tests
inside the margin, at the look's level), *supported* or *refuted* (the whole interval at the look's effective level lies
beyond zero), else *inconclusive*. The sentence names the rule that decided. `inputs_sha256` names everything that the
verdict follows from.

With a rule of collapse there are two estimands. The test is of the mean of trainings that did not collapse, from
`LEAST_KEPT` of them in each arm; the rate of collapse stands beside it with exact limits, and no test of few seeds can
say more of it. `scope` tells which trainings a verdict speaks of: all of them only where the highest rates that are not
ruled out, times what a collapse costs, could not undo it.

The effective level is that of the look, shared among the families of claims (`multiplicity`); the interval is the
repeated one of Jennison & Turnbull 1989 (JRSS B 51) at that level. A claim decided at an earlier look keeps its p
among the families.

Does not know. Where runs come from: `studies.verdicts.judge` gathers them from a study's state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from studies.checks.collapse import rate
from studies.records.base import digest
from studies.records.design import Design, Hypothesis
from studies.records.design_parts import Phase
from studies.records.verdict import CollapseRate, Equivalence, Scope, Verdict, VerdictName
from studies.statistics import dunnett
from studies.statistics.comparison import Comparison, compare, differences
from studies.statistics.equivalence import equivalent, two_one_sided
from studies.statistics.multiplicity import effective_level
from studies.statistics.samples import constant, spread
from studies.verdicts import wording
from studies.verdicts.calibration import brier
from studies.verdicts.itt import ArmData, counted, overlapping, too_many_excluded, unaccounted
from studies.verdicts.judge_input import JudgeInput

__all__ = ["ArmData", "invalid", "judge"]

LEAST_KEPT = 3
"""Fewest trainings of an arm that did not collapse: with two, collapses alike in all arms bring nearly all of the false
claims of a study."""
_DECISIVE = frozenset({"supported", "refuted", "equivalent"})


def judge(
    design: Design,
    hypothesis: str,
    data: Mapping[str, ArmData],
    *,
    look: int,
    violations: Sequence[str] = (),
    threats: Sequence[str] = (),
    accepted: Sequence[str] = (),
    earlier: Mapping[str, Verdict] | None = None,
    barred: Collection[str] = (),
    phase: Phase = "confirm",
    exploratory: bool = False,
) -> Verdict:
    """Return the verdict on `hypothesis` from the runs of each arm of `design` up to `look`.

    `violations` (`CODE: SENTENCE`) forbid a claim, `threats` are told beside it; `accepted` are the codes of runs that
    an amendment leaves out. `earlier` holds the verdicts on hypotheses that were settled at an earlier look; `barred`
    are other hypotheses that the linter forbids a claim on. Raise ValueError for a look or a hypothesis that the design
    does not have, a value that is not finite, or a run in two places.
    """
    case = JudgeInput(
        design, _claim(design, hypothesis), data, look, tuple(violations), tuple(threats), tuple(accepted),
        earlier or {}, frozenset(barred), phase, exploratory,
    )  # fmt: skip
    _check(case)
    return _verdict(case, _find(case))


def invalid(
    design: Design,
    hypothesis: str,
    reason: str,
    *,
    data: Mapping[str, ArmData] | None = None,
    look: int = 1,
    phase: Phase = "confirm",
    exploratory: bool = False,
) -> Verdict:
    """Return the verdict `invalid` for a `reason` from outside the numbers, such as a lock that was edited.

    It is final: no later look can heal what is not in the numbers.
    """
    case = JudgeInput(design, _claim(design, hypothesis), data or {}, look, phase=phase, exploratory=exploratory)
    return _verdict(case, _Finding("invalid", reason), outside=reason)


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: VerdictName
    reason: str
    comparison: Comparison | None = None
    level: float | None = None
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    equivalence: Equivalence | None = None
    scope: Scope = "all"


def _find(case: JudgeInput) -> _Finding:
    if (reason := _broken(case)) is not None:
        return _Finding("invalid", reason)
    if _few_left(case):
        return _Finding("inconclusive", wording.too_few_left(_rates(case), LEAST_KEPT), scope="not_collapsed")
    found = _compared(case)
    if found is None:
        return _scoped(case, _without_variance(case))
    return _decide(case, found)


def _broken(case: JudgeInput) -> str | None:
    """Return why nothing can be concluded whatever the numbers say; None when there is no such reason."""
    if (reason := unaccounted(case.design, case.arms, case.accepted)) is not None:
        return reason
    if (reason := too_many_excluded(case.design, case.arms)) is not None:
        return reason
    if case.violations:
        return wording.violated(case.violations)
    counts = [len(arm.values) + len(arm.worst) for arm in case.arms.values()]
    return wording.too_few(*counts) if min(counts) < 2 else None


def _few_left(case: JudgeInput) -> bool:
    """Return whether too few trainings that did not collapse are left for a statement about their mean."""
    if case.design.collapse is None:
        return False
    control, treatment = case.runs()
    left = [len(control.values), len(treatment.values)]
    if case.design.test == "paired":  # a collapse takes its pair with it
        left.append(len(differences(control, treatment)))
    return min(left) < LEAST_KEPT


def _compared(case: JudgeInput) -> Comparison | None:
    """Return the comparison of the claim's arms by the locked test; None when it does not exist."""
    control, treatment = case.runs()
    if constant(control.numbers) and constant(treatment.numbers):
        return None
    return compare(case.design.test, control, treatment, others=case.others(), noise=case.noise)


def _decide(case: JudgeInput, found: Comparison) -> _Finding:
    alpha = case.alpha
    level, adjusted, family = alpha, None, [found.n_treatment]
    if case.shares_level:
        level = effective_level(_families(case), alpha)
        family = _family_sizes(case)
        adjusted = _adjusted(case, found) if len(family) > 1 else None
    low, high = found.within(dunnett.critical(1 - level, found.df, found.n_control, family))
    margin = case.design.equivalence_margin
    same = None if margin is None else two_one_sided(found, margin, alpha)
    how = wording.TestUsed(found.test, found.instead, len(family), _claims(case), case.look, case.looks)
    verdict, reason = _by_intervals(case.claim, (low, high), 1 - level, same, alpha, how)
    return _scoped(case, _Finding(verdict, reason, found, 1 - level, low, high, adjusted, same))


def _rates(case: JudgeInput) -> tuple[CollapseRate, ...]:
    """Return the rates of collapse of the claim's arms; none for a design without a rule of it."""
    if case.design.collapse is None:
        return ()
    arms = case.arms.items()
    return tuple(rate(name, arm.broken, len(arm.values) + len(arm.worst)) for name, arm in arms)


def _scoped(case: JudgeInput, finding: _Finding) -> _Finding:
    """Return the finding with what it speaks of, and why."""
    rates = _rates(case)
    if not rates or finding.verdict == "invalid":
        return finding
    if finding.verdict != "inconclusive" and _of_all(case, finding, rates):
        return replace(finding, reason=finding.reason + wording.of_all(rates))
    return replace(finding, scope="not_collapsed", reason=finding.reason + wording.not_collapsed(rates))


def _of_all(case: JudgeInput, finding: _Finding, rates: Sequence[CollapseRate]) -> bool:
    """Return whether collapses at the highest rates that are not ruled out could not undo a claim.

    A claimed difference has to exceed what the arm that is ahead may lose so; an equivalence to stay inside its margin
    whichever arm loses it, and none was seen to.
    """
    drop = _drop(case)
    if finding.verdict == "equivalent" and (same := finding.equivalence) is not None:
        widest = max(abs(same.low), abs(same.high)) + max(rate.upper for rate in rates) * drop
        return widest < same.margin and not any(rate.count for rate in rates)
    if finding.low is None or finding.high is None:
        return False
    ahead = rates[1 if finding.low > 0 else 0]  # by the tested difference: of pairs it is not that of the arms' means
    return min(abs(finding.low), abs(finding.high)) > ahead.upper * drop


def _drop(case: JudgeInput) -> float:
    """Return what a collapse costs: as the bank knows it, or more where this study's own collapses cost more.

    Where the bank saw none it may cost all that was reached.
    """
    worst, means = case.design.metric.worst, [fmean(runs.numbers) for runs in case.runs()]
    known = case.design.collapse.drop if case.design.collapse is not None else None
    if known is None:
        return max(means) - worst
    fallen = [
        mean - value
        for mean, arm in zip(means, case.arms.values(), strict=True)
        for value in (*(arm.values[run] for run in arm.collapsed), *(worst for _ in arm.worst))
    ]
    return max(known, fmean(fallen)) if fallen else known


def _by_intervals(
    claim: Hypothesis, ends: tuple[float, float], level: float, same: Equivalence | None, alpha: float,
    how: wording.TestUsed,
) -> tuple[VerdictName, str]:  # fmt: skip
    low, high = ends
    if same is not None and equivalent(same):
        told = wording.inside(same, 1 - 2 * alpha, how)
        return "equivalent", told if low <= 0 <= high else told + wording.small(ends, level, how)
    if low <= 0 <= high:
        return "inconclusive", wording.holds_zero(ends, level, how)
    predicted = (low > 0) == (claim.direction == "increase")
    return ("supported" if predicted else "refuted"), wording.beyond_zero(ends, level, predicted, how)


def _families(case: JudgeInput) -> list[float]:
    """Return the smallest corrected p of the claims on each variable."""
    smallest: dict[str, float] = {}
    for claim in case.design.hypotheses:
        p = _p_in_family(case.of(claim))
        smallest[claim.variable] = min(p, smallest.get(claim.variable, 1.0))
    return list(smallest.values())


def _p_in_family(case: JudgeInput) -> float:
    """Return the p of a claim corrected within its family: of its own look, once settled; 1 where none can be made.

    What cannot become a claim of the locked test must not make room for others: Benjamini and Hochberg's bound is on
    the share of wrong ones among those that are made.
    """
    settled = case.earlier.get(case.claim.id)
    if settled is not None:
        p = settled.p if settled.p_adjusted is None else settled.p_adjusted
        return 1.0 if p is None or settled.verdict == "invalid" or settled.exploratory else p
    if case.claim.id in case.barred:
        return 1.0
    case = replace(case, violations=())
    found = None if _broken(case) is not None or _few_left(case) else _compared(case)
    return 1.0 if found is None else _adjusted(case, found)


def _adjusted(case: JudgeInput, found: Comparison) -> float:
    return dunnett.adjusted_p(found.t, found.df, found.n_control, _family_sizes(case))


def _family_sizes(case: JudgeInput) -> list[int]:
    """Return the numbers of runs of all treatment arms of the claim's variable."""
    family = [claim for claim in case.design.hypotheses if claim.variable == case.claim.variable]
    return [len(case.of(claim).runs()[1].values) for claim in family]


def _claims(case: JudgeInput) -> int:
    return len({claim.variable for claim in case.design.hypotheses}) if case.shares_level else 1


def _without_variance(case: JudgeInput) -> _Finding:
    """Judge two arms that do not vary: with no variance there is no t-test, so nothing can be supported.

    Equal constants show no difference (inconclusive). Different constants may well be a real effect, but the locked
    test gives it neither an interval nor an error rate: calling it supported would be another test than the one locked,
    calling it "no evidence" would be false. It is invalid, and the report shows the difference.
    """
    control, treatment = case.runs()
    a, b = control.numbers, treatment.numbers
    if not (constant(a) and constant(b)):
        return _Finding(*wording.same_in_all_pairs(fmean(b) - fmean(a)))
    return _Finding(*wording.same_in_all_runs(a[0], b[0], case.design.test))


def _verdict(case: JudgeInput, finding: _Finding, *, outside: str = "") -> Verdict:
    a, b = (runs.numbers for runs in case.runs())
    found = finding.comparison
    estimate = found.estimate if found is not None else fmean(b) - fmean(a) if a and b else None
    last = case.phase != "confirm" or case.look >= len(case.design.looks)
    expected = case.claim.prediction
    return Verdict(
        hypothesis=case.claim.id, verdict=finding.verdict, reason=finding.reason,
        estimate=estimate, low=finding.low, high=finding.high,
        level=1 - case.alpha if finding.level is None else finding.level,
        p=None if found is None else found.p,
        n_control=len(a), n_treatment=len(b),
        mean_control=fmean(a) if a else None, mean_treatment=fmean(b) if b else None,
        sd_control=spread(a), sd_treatment=spread(b),
        test=case.design.test if found is None else found.test,
        inputs_sha256=_inputs(case, outside),
        within_prediction=None if estimate is None else expected.low <= estimate <= expected.high,
        brier=brier(expected.probability, finding.verdict),
        phase=case.phase, look=case.look, final=last or bool(outside) or finding.verdict in _DECISIVE,
        p_adjusted=finding.p_adjusted, df=None if found is None else found.df,
        sd_pooled=None if found is None else found.sd, equivalence=finding.equivalence,
        excluded=counted(case.arms, "excluded") | counted(case.arms, "cut"),
        counted_as_worst=counted(case.arms, "worst"),
        violations=(*case.violations, *case.threats), exploratory=case.exploratory,
        scope=finding.scope, collapses=_rates(case),
    )  # fmt: skip


def _inputs(case: JudgeInput, outside: str) -> str:
    """Return the sha256 of everything the verdict follows from; the order of runs and arms does not matter.

    Of violations it holds the codes: a linter that finds better words for them takes back no verdict.
    """
    design = case.design.model_dump(mode="json")
    rules = {name: design.get(name) for name in (
        "test", "alpha", "looks", "noise", "equivalence_margin", "multiplicity", "exclusions", "counted_as_worst",
        "most_excluded", "metric", "seeds", "control_arm", "arms", "hypotheses", "replication",
    )}  # fmt: skip
    if case.design.collapse is not None:
        rules |= {"collapse": design["collapse"], "shared_seeds": case.design.shared_seeds}
    earlier = {name: [verdict.verdict, verdict.p, verdict.p_adjusted] for name, verdict in case.earlier.items()}
    value: dict[str, Any] = {
        "rules": rules, "hypothesis": case.claim.id, "look": case.look, "phase": case.phase,
        "data": {name: arm.as_json() for name, arm in case.data.items()},
        "violations": sorted(line.partition(":")[0] for line in case.violations), "accepted": sorted(case.accepted),
        "earlier": earlier, "exploratory": case.exploratory, "outside": outside,
    }  # fmt: skip
    if case.barred:
        value["barred"] = sorted(case.barred)
    return digest(value)


def _claim(design: Design, hypothesis: str) -> Hypothesis:
    claim = next((claim for claim in design.hypotheses if claim.id == hypothesis), None)
    if claim is None:
        raise ValueError(f"the design has no hypothesis {hypothesis!r}; found {[c.id for c in design.hypotheses]}")
    return claim


def _check(case: JudgeInput) -> None:
    looks = max(1, len(case.design.looks)) if case.phase == "confirm" else 1
    if not 1 <= case.look <= looks:
        raise ValueError(f"the look must lie between 1 and {looks}; found {case.look}")
    if twice := overlapping(case.data):
        raise ValueError(f"a run belongs to one arm, and counts once; found {twice} more than once")
    for arm in case.data.values():
        if stray := sorted(arm.collapsed.keys() - arm.values.keys()):
            raise ValueError(f"a run that collapsed is one that was measured; found {stray} without a value")
        for run, value in arm.values.items():
            if not math.isfinite(value):
                raise ValueError(f"the value of run {run} must be finite; found {value}")
