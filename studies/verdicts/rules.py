"""The verdict on one hypothesis at one look, by the rules its design locked; pure functions of values.

The first that holds: *invalid* (a run without a place in the analysis, too many exclusions, a confound violation, or no
test for want of runs or variance), *equivalent* (two one-sided tests inside the margin, at the look's level),
*supported* or *refuted* (the whole interval at the effective level beyond zero), else *inconclusive*. The effective
level is the look's, shared among the families of claims (`multiplicity`); the interval is the repeated one of Jennison
& Turnbull 1989 (JRSS B 51). With a rule of collapse the test is of trainings that did not collapse
(`studies.verdicts.scope`); of a time to a threshold it is of the mean restricted to the horizon.

Mediators are tested by fixed-sequence gatekeeping: only where the claim's difference was shown, in their order, up to
one that does not move as expected, each with an equal part of the level for every look. The first of claim and
mediators whose null hypothesis holds is so rejected with no more than the claim's level (Hung, Wang & O'Neill 2007, J
Biopharm Stat 17:1201; Glimm, Maurer & Bretz 2010, Stat Med 29:219). That one did *not* move has its part of the level
of a claim of no difference (`Design.likenesses`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from studies.metrics.base import MetricKind
from studies.records.alpha import planned_looks
from studies.records.base import digest
from studies.records.design import Hypothesis, Mediator
from studies.records.procedure import Prediction
from studies.records.verdict import ArmMean, Equivalence, Mediation, Moved, Verdict, VerdictName
from studies.statistics import comparison, power
from studies.statistics.proportions import boschloo, rate_interval
from studies.verdicts import scope, wording
from studies.verdicts.inputs import Finding, JudgeInput, count_codes, find_unaccounted
from studies.verdicts.scope import collapse_rates, limit_scope

LEAST_KEPT = 3
"""Fewest trainings of an arm that did not collapse: with two, collapses bring nearly all false claims."""
_LEAST_LEVEL = 1e-3
"""Level below which the interval of a last look is shown to nobody: of so few runs it may be wider than the metric."""
_DECISIVE = frozenset({"supported", "refuted", "equivalent"})


def judge(case: JudgeInput) -> Verdict:
    """Return the verdict on a claim at a look. Raise ValueError for a look or a hypothesis that the design does not
    have, a value that is not finite, or a run in two places."""
    looks = max(1, len(case.design.looks)) if case.phase == "confirm" else 1
    if not 1 <= case.look <= looks:
        raise ValueError(f"the look must lie between 1 and {looks}; found {case.look}")
    places = Counter(
        run for arm in case.data.values() for runs in (arm.values, arm.excluded, arm.worst, arm.cut) for run in runs
    )
    if twice := sorted(run for run, count in places.items() if count > 1):
        raise ValueError(f"a run belongs to one arm, and counts once; found {twice} more than once")
    for arm in case.data.values():
        if stray := sorted(arm.collapsed.keys() - arm.values.keys()):
            raise ValueError(f"a run that collapsed is one that was measured; found {stray} without a value")
        for run, value in arm.values.items():
            if not math.isfinite(value):
                raise ValueError(f"the value of run {run} must be finite; found {value}")
    finding = _find(case)
    if finding.verdict != "invalid" and (apart := wording.explain_apart(case.claim, case.design.metric)):
        finding = replace(finding, reason=finding.reason + apart)
    shown = finding.verdict in ("supported", "refuted")
    level, mediators = _gate_level(case) if shown and case.claim.mediators else None, list[Mediation]()
    stopped = "" if level is not None else "the claim's own difference was not shown"
    for mediator in case.claim.mediators:
        if level is None or stopped:
            own = Mediation(metric=mediator.metric, expected=mediator.direction, result="untested", why=stopped)
        elif (own := _judge_mediator(case, mediator, level)).result != "moved":
            stopped = f"{mediator.metric}, which comes before it, did not move as expected"
        mediators.append(own)
    return _verdict(case, finding, mediators=tuple(mediators))


def _gate_level(case: JudgeInput) -> float:
    """Return the level at which a claim's mediators are tested at any one look: an equal part of the round's for each
    look, less what false ones of several claims spend; where a hand chose the moment, no more than the claim has."""
    level, family = case.design.alpha / _claims(case), _family_sizes(case) if case.shares_level else [1]
    if len(family) > 1:
        n = len(case.runs()[0].values)
        df = float(sum(family) + n - len(family) - 1)
        bound = power.dunnett_critical(1 - level, df, n, family)
        level = max(1e-12, level - power.dunnett_p(bound, df, n, family[1:]))
    level /= len(planned_looks(case.design, case.phase))
    return min(level, case.alpha) if case.ended == "hand" else level


def _judge_mediator(case: JudgeInput, mediator: Mediator, level: float) -> Mediation:
    own = {name: replace(arm, values=arm.beside.get(mediator.metric, {}), worst={}) for name, arm in case.arms.items()}
    runs, counted = replace(case, data={**case.data, **own}).runs(), sum(len(arm.values) for arm in case.runs())
    told = Mediation(
        metric=mediator.metric, expected=mediator.direction, result="untested",
        n_control=len(runs[0].values), n_treatment=len(runs[-1].values),
    )  # fmt: skip
    if (lost := counted - sum(len(arm.values) for arm in runs)) > 0:
        return told.model_copy(update={"why": f"{lost} of the {counted} runs that the claim rests on do not tell it"})
    if case.design.test == "contrast":
        result = comparison.contrast([arm.numbers for arm in runs], case.weights)
    else:
        result = comparison.compare("paired" if case.design.test == "paired" else "welch", *runs)
    if result is None:
        return told.model_copy(update={"result": "open", "why": "no run differs from its arm: there is no test"})
    (low, high), metric = result.interval(1 - level), case.design.metric.beside[mediator.metric]
    margin = mediator.smallest_effect or MetricKind.effect * abs(metric.best - metric.worst)
    same, moved = comparison.two_one_sided(result, margin, case.alpha_alike), "increase" if low > 0 else "decrease"
    found: Moved = "open" if low <= 0 <= high else "moved" if moved == mediator.direction else "opposite"
    return told.model_copy(update={
        "result": "alike" if comparison.is_equivalent(same) else found, "equivalence": same,
        "estimate": result.estimate, "low": low, "high": high, "level": 1 - level, "p": result.p,
    })  # fmt: skip


def invalid(case: JudgeInput, reason: str) -> Verdict:
    """Return the final verdict `invalid` for a `reason` from outside the numbers, such as a lock that was edited."""
    return _verdict(case, Finding("invalid", reason), outside=reason)


def _find(case: JudgeInput) -> Finding:
    if (reason := _find_obstacle(case)) is not None:
        return Finding("invalid", reason)
    if _has_few_runs(case):
        left = " and ".join(f"{rate.of - rate.count} of {rate.of}" for rate in collapse_rates(case))
        reason = f"A mean is judged from {LEAST_KEPT} trainings of each arm that did not collapse; found {left}."
        return Finding("inconclusive", reason, scope="not_collapsed")
    if scope.is_mostly_cut(reached := scope.reached_rates(case)):
        return Finding("inconclusive", wording.explain_not_reached(reached, case.design.metric), measured=False)
    if case.design.test == "boschloo":
        level, family = _level(case)
        return scope.judge_exactly(case, level, len(family))
    result = _compare_arms(case)
    if result is None:
        return limit_scope(case, _without_variance(case))
    alike = case.alpha_alike
    level, family = _level(case)
    adjusted = power.dunnett_p(result.t, result.df, result.n_control, family) if len(family) > 1 else None
    low, high = result.within(power.dunnett_critical(1 - level, result.df, result.n_control, family))
    margin = case.design.equivalence_margin
    same = None if margin is None else comparison.two_one_sided(result, margin, alike)
    unit, kind = case.design.metric.unit, case.claim.kind
    look = wording.name_look(case.design, case, case.counts)
    how = wording.TestUsed(result.test, result.instead, len(family), _claims(case), look, unit, kind)
    told = margin if case.design.spending == "reached" else None  # sentences of older designs stay as they were
    verdict, reason = _by_intervals(case.claim, (low, high), 1 - level, same, alike, how, told)
    if verdict in ("supported", "refuted"):
        reason = wording.describe_effect(case.claim, result.estimate, case.design.metric) + reason
    if verdict == "inconclusive" and case.last is not None and case.last.alpha < _LEAST_LEVEL:
        reason = f"Ended by hand so early that the level of this look, {level:.1g}, tells nothing apart."
        return limit_scope(case, Finding(verdict, reason, result, 1 - level, p_adjusted=adjusted))
    finding = Finding(verdict, reason, result, 1 - level, low, high, p_adjusted=adjusted, equivalence=same)
    return limit_scope(case, finding)


def _find_obstacle(case: JudgeInput) -> str | None:
    if (reason := find_unaccounted(case.design, case.arms, case.accepted)) is not None:
        return reason
    if case.violations:
        more = f" (and {len(case.violations) - 1} more)" if len(case.violations) > 1 else ""
        return (
            f"The arms differ in more than the hypothesis declares{more}, and no amendment accepts it: "
            f"{case.violations[0]}."
        )
    counts = [len(arm.values) + len(arm.worst) for arm in case.arms.values()]
    if min(counts) >= 2:
        return None
    two = len(counts) == 2
    found = "{} in the control arm and {} in the treatment arm".format(*counts) if two else ", ".join(map(str, counts))
    return f"The test needs at least 2 valid runs in each arm; found {found}."


def _has_few_runs(case: JudgeInput) -> bool:
    if case.design.collapse is None:
        return False
    runs = case.runs()
    left = [len(arm.values) for arm in runs]
    if case.design.test == "paired":  # a collapse takes its pair with it
        left.append(len(comparison.differences(*runs)))
    return min(left) < LEAST_KEPT


def _compare_arms(case: JudgeInput) -> comparison.Comparison | None:
    if case.design.test == "contrast":
        return comparison.contrast([arm.numbers for arm in case.runs()], case.weights)
    control, treatment = case.runs()
    if case.design.test == "boschloo" or (
        comparison.is_constant(control.numbers) and comparison.is_constant(treatment.numbers)
    ):
        return None
    others = [case.select_runs(arm).numbers for name, arm in sorted(case.data.items()) if name not in case.arms]
    noise = case.design.noise if case.phase == "confirm" else None  # the bank's word is on the design's own setting
    return comparison.compare(case.design.test, control, treatment, others=others, noise=noise)


def _level(case: JudgeInput) -> tuple[float, list[int]]:
    if not case.shares_level:
        return case.alpha, [len(case.runs()[1].values)]
    if case.design.multiplicity == "dunnett_bonferroni":
        return case.alpha / _claims(case), _family_sizes(case)
    smallest: dict[str, float] = {}  # corrected p of the claims on each variable
    for claim in case.design.hypotheses:
        smallest[claim.family] = min(_p_in_family(case.of(claim)), smallest.get(claim.family, 1.0))
    return comparison.effective_level(list(smallest.values()), case.alpha), _family_sizes(case)


def _by_intervals(
    claim: Hypothesis, ends: tuple[float, float], level: float, same: Equivalence | None, alike: float,
    how: wording.TestUsed, margin: float | None,
) -> tuple[VerdictName, str]:  # fmt: skip
    (low, high), span = ends, how.span(ends, level)
    if same is not None and comparison.is_equivalent(same):
        told = wording.explain_equivalence(same, 1 - 2 * alike, how)
        beside = f" It is smaller than what matters, and not zero: the {span} leaves 0 out."
        return "equivalent", told if low <= 0 <= high else told + beside
    if low <= 0 <= high:
        return "inconclusive", f"The {span} holds 0."
    predicted, side = (low > 0) == (claim.direction == "increase"), "above" if low > 0 else "below"
    beyond, short = "", "" if margin is None else "; a difference by the margin is not shown"
    if margin is not None and min(abs(low), abs(high)) > margin:
        beyond, short = " and beyond the margin", ""
    told = f"The whole {span} lies {side} 0{beyond}, {wording.SIDES[predicted]}{short}."
    return ("supported" if predicted else "refuted"), told


def _p_in_family(case: JudgeInput) -> float:
    """Return the p of a claim corrected within its family: of its own look, once settled; 1 where none can be made."""
    settled = case.earlier.get(case.claim.id)
    if settled is not None:
        p = settled.p if settled.p_adjusted is None else settled.p_adjusted
        return 1.0 if p is None or settled.verdict == "invalid" or settled.exploratory else p
    if case.claim.id in case.barred:
        return 1.0
    case = replace(case, violations=())
    if _find_obstacle(case) is not None or _has_few_runs(case) or scope.is_mostly_cut(scope.reached_rates(case)):
        return 1.0
    if case.design.test == "boschloo":
        return min(1.0, boschloo(*scope.counts(case)) * len(_family_sizes(case)))
    found = _compare_arms(case)
    return 1.0 if found is None else power.dunnett_p(found.t, found.df, found.n_control, _family_sizes(case))


def _family_sizes(case: JudgeInput) -> list[int]:
    family = [claim for claim in case.design.hypotheses if claim.family == case.claim.family]
    return [len(case.of(claim).runs()[1].values) for claim in family]


def _claims(case: JudgeInput) -> int:
    return len({claim.family for claim in case.design.hypotheses}) if case.shares_level else 1


def _without_variance(case: JudgeInput) -> Finding:
    effect, test = _weighted_effect(case) or 0.0, wording.TESTS[case.design.test]
    a, *_, b = (runs.numbers for runs in case.runs())
    if case.design.test == "contrast":
        same = "No run differs from its arm, and the arms' values amount to no effect."
        unlike = f"No run differs from its arm (effect {effect:+.3f})"
    elif comparison.is_constant(a) and comparison.is_constant(b):
        same = f"Every run of both arms gave the same value ({a[0]:.3f}); there is no difference to test."
        unlike = f"No run differs from its arm (control {a[0]:.3f}, treatment {b[0]:.3f})"
    else:
        same = "Every pair of runs with one seed gave the same value; there is no difference to test."
        unlike, test = f"Every pair of runs with one seed differs by the same ({effect:+.3f})", "the paired test"
    if abs(effect) <= comparison.SAME:
        return Finding("inconclusive", same)
    return Finding("invalid", f"{unlike}: without variance {test} does not exist, so the locked rule cannot decide.")


def _verdict(
    case: JudgeInput, finding: Finding, *, outside: str = "", mediators: tuple[Mediation, ...] = ()
) -> Verdict:
    runs = case.runs()
    a, b = runs[0].numbers, runs[-1].numbers
    used = finding.comparison
    estimate = used.estimate if used is not None else _weighted_effect(case) if finding.measured else None
    last = case.phase != "confirm" or case.look >= len(case.design.looks)
    expected = case.claim.prediction

    def mean(values: list[float]) -> float | None:
        return fmean(values) if values and finding.measured else None

    return Verdict(
        hypothesis=case.claim.id, verdict=finding.verdict, reason=finding.reason,
        estimate=estimate, low=finding.low, high=finding.high,
        level=1 - case.alpha if finding.level is None else finding.level,
        p=finding.p if used is None else used.p,
        n_control=len(a), n_treatment=len(b),
        mean_control=mean(a), mean_treatment=mean(b),
        sd_control=comparison.spread(a) if finding.measured else None,
        sd_treatment=comparison.spread(b) if finding.measured else None,
        test=case.design.test if used is None else used.test,
        inputs_sha256=_inputs(case, outside),
        within_prediction=None if estimate is None else expected.low <= estimate <= expected.high,
        brier=brier(expected.probability, finding.verdict),
        phase=case.phase, look=case.look, final=last or bool(outside) or finding.verdict in _DECISIVE,
        p_adjusted=finding.p_adjusted, df=None if used is None else used.df,
        sd_pooled=None if used is None else used.sd, equivalence=finding.equivalence,
        excluded=count_codes(case.arms, "excluded") | count_codes(case.arms, "cut"),
        counted_as_worst=count_codes(case.arms, "worst"),
        violations=(*case.violations, *case.threats), exploratory=case.exploratory,
        scope=finding.scope, last=case.last, collapses=collapse_rates(case), starts=scope.start_rates(case),
        reached=scope.reached_rates(case), mediators=mediators,
        arms=() if case.claim.kind == "difference" else tuple(
            ArmMean(
                arm=name, weight=weight, n=len(arm.values), mean=mean(arm.numbers),
                sd=comparison.spread(arm.numbers) if finding.measured else None,
            )
            for name, weight, arm in zip(case.arms, case.weights, runs, strict=True)
        ),
    )  # fmt: skip


def _weighted_effect(case: JudgeInput) -> float | None:
    numbers = [runs.numbers for runs in case.runs()]
    if not all(numbers):
        return None
    if case.claim.kind == "difference":
        return fmean(numbers[1]) - fmean(numbers[0])
    return math.fsum(weight * fmean(values) for weight, values in zip(case.weights, numbers, strict=True))


def _inputs(case: JudgeInput, outside: str) -> str:
    """Return the sha256 of everything the verdict follows from; of violations the codes alone."""
    design = case.design.model_dump(mode="json")
    rules = {name: design.get(name) for name in (
        "test", "alpha", "looks", "noise", "equivalence_margin", "multiplicity", "exclusions", "counted_as_worst",
        "most_excluded", "metric", "seeds", "control_arm", "arms", "hypotheses", "replication",
    )}  # fmt: skip
    if case.design.collapse is not None:
        rules |= {"collapse": design["collapse"], "shared_seeds": case.design.shared_seeds}
    if case.design.scope_reached:
        rules["scope_reached"] = True
    if case.design.start is not None:
        rules["start"] = design["start"]
    if case.design.inquiry is not None:
        rules["inquiry"] = design["inquiry"]
    earlier = {name: [verdict.verdict, verdict.p, verdict.p_adjusted] for name, verdict in case.earlier.items()}
    value: dict[str, Any] = {
        "rules": rules, "hypothesis": case.hypothesis, "look": case.look, "phase": case.phase,
        "data": {name: arm.as_json() for name, arm in case.data.items()},
        "violations": sorted(line.partition(":")[0] for line in case.violations), "accepted": sorted(case.accepted),
        "earlier": earlier, "exploratory": case.exploratory, "outside": outside,
    }  # fmt: skip
    if case.design.spending != "planned":
        value |= {"spending": case.design.spending, "ended": case.ended}
    if case.barred:
        value["barred"] = sorted(case.barred)
    return digest(value)


_OUTCOMES: Final[Mapping[VerdictName, float]] = {"supported": 1.0, "refuted": 0.0}


@dataclass(frozen=True, slots=True)
class Calibration:
    """What became of a planner's predictions. The constant forecaster says the share of supported claims for every one,
    knowing that share beforehand: a planner with skill above 0 tells claims apart, and does not only know how often
    they come true."""

    predictions: int
    verdicts: Mapping[VerdictName, int]
    """How many ended in each verdict; those that did not occur are left out."""
    scored: int
    """Predictions that were supported or refuted: the others have no outcome to score a probability by."""
    brier: float | None
    constant: float | None
    """Brier score of the constant forecaster on the same claims."""
    skill: float | None
    """1 - brier / constant: 1 is perfect, 0 no better than a constant; None where every outcome was the same."""
    mean_probability: float | None
    supported: comparison.Interval | None
    """Share of the scored that were supported, with its Wilson interval; beside `mean_probability` it shows bias."""
    intervals: int
    """Predicted intervals that can be compared with an estimate."""
    mean_level: float | None
    coverage: comparison.Interval | None
    """Share of them that hold the estimate, with its Wilson interval."""


def brier(probability: float, verdict: VerdictName) -> float | None:
    """Return (probability - outcome)^2, outcome 1 for supported and 0 for refuted (Brier 1950); None for others."""
    return (probability - _OUTCOMES[verdict]) ** 2 if verdict in _OUTCOMES else None


def calibration(predicted: Iterable[tuple[Prediction, Verdict]]) -> Calibration:
    """Return how well predictions came true, given with final verdicts; an invalid one is counted, and tests none."""
    pairs = list(predicted)
    scored = [(p.probability, _OUTCOMES[v.verdict]) for p, v in pairs if v.verdict in _OUTCOMES]
    compared = [
        (p.level, p.low <= v.estimate <= p.high) for p, v in pairs if v.verdict != "invalid" and v.estimate is not None
    ]
    outcomes = [outcome for _, outcome in scored]
    score = fmean((probability - outcome) ** 2 for probability, outcome in scored) if scored else None
    constant = fmean(outcomes) * (1 - fmean(outcomes)) if scored else None
    return Calibration(
        predictions=len(pairs), verdicts=dict(Counter(verdict.verdict for _, verdict in pairs)),
        scored=len(scored), brier=score, constant=constant,
        skill=None if score is None or constant is None or constant <= comparison.SAME else 1 - score / constant,
        mean_probability=fmean(probability for probability, _ in scored) if scored else None,
        supported=rate_interval(sum(outcome == 1 for outcome in outcomes), len(outcomes)),
        intervals=len(compared),
        mean_level=fmean(level for level, _ in compared) if compared else None,
        coverage=rate_interval(sum(held for _, held in compared), len(compared)),
    )  # fmt: skip
