"""Remarks on the measure, other measures.

Other measures, of every kind that the runs' files give, are exploratory: no lock names them, nothing is corrected for
their number, and no claim rests on them. A surprise is one whose interval leaves zero out where the verdict found
nothing, or that points the other way than the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from studies.log.study import StudyState
from studies.records.design import Design, Hypothesis, Metric
from studies.records.statements import metric_name
from studies.records.verdict import Verdict
from studies.report.elements import (
    Remark,
    Table,
    cell,
    count_of,
    format_mean,
    format_spread,
    is_mostly_cut,
    is_rate,
    table,
)
from studies.report.evidence import Evidence
from studies.report.wording import NONE, format_signed, in_unit, number, percent, plural, setting, span
from studies.statistics.comparison import contrast, is_constant, welch
from studies.statistics.proportions import difference as exact_difference
from studies.verdicts.scope import find_unobserved_misses

SIMULATED_KINDS: Final = frozenset({"", "success", "gain", "area", "episodes", "seconds", "collapse"})
"""Kinds by name; the empty one is of designs that knew success and its gain alone."""


def is_simulated(metric: Metric) -> bool:
    """Return whether somebody measured how often a verdict on this kind of metric is wrong."""
    return metric.kind in SIMULATED_KINDS


LEVEL = 0.95
Arms = dict[str, list[float]]
"""Values of each arm's runs."""


@dataclass(frozen=True, slots=True)
class OtherDifference:
    """Treatment less control in a measure that nobody asked for; the ends are None where no interval exists."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def apart(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def others_table(state: StudyState, evidence: Evidence) -> Table | None:
    """Return each other measure: the arms' means and spreads, the differences with intervals; None for none."""
    design = state.design
    told = list(_list_measures(state, evidence))
    if design is None or not told:
        return None
    columns = (
        "Measure", *(f"{arm.name}: mean (SD)" for arm in design.arms),
        *(f"{claim.id}: difference, 95 % interval" for claim in design.hypotheses),
    )  # fmt: skip
    rows = [
        [
            cell(_measure_name(metric)), *(cell(_arm(metric, values)) for values in arms.values()),
            *(cell(_difference(_contrast(design, claim, metric, arms), metric)) for claim in design.hypotheses),
        ]
        for metric, arms in told
    ]  # fmt: skip
    return table(columns, rows, numeric=range(1, len(columns)), cards=True)


def facts_table(state: StudyState, evidence: Evidence) -> Table | None:
    """Return what the environment said of plays after training, as means over each arm's runs; None for nothing."""
    arms = [arm.name for arm in state.design.arms] if state.design is not None else []
    said = {arm: _facts(state, arm) for arm in arms}
    names = sorted({name for facts in said.values() for name in facts})
    lacking = {arm: _unsaid(state, evidence, arm) for arm in arms}
    rows = [
        [cell(name), *(cell(_mean_fact(said[arm].get(name, []), lacking[arm].get(name, 0))) for arm in arms)]
        for name in names
    ]
    return table(("Mean per play", *arms), rows, numeric=range(1, len(arms) + 1)) if rows else None


def surprises(state: StudyState, evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each verdict that other measures of its runs say something else than."""
    design = state.design
    if design is None:
        return
    told = list(_list_measures(state, evidence))
    for verdict in state.verdicts:
        claim = design.hypothesis(verdict.hypothesis)
        pairs = ((metric, _contrast(design, claim, metric, arms)) for metric, arms in told)
        found = [(metric, other) for metric, other in pairs if other is not None and other.apart]
        if against := [(metric, other) for metric, other in found if _against(design, verdict, metric, other)]:
            said = "; ".join(f"{metric_name(metric)} differs by {_difference(o, metric)}" for metric, o in against)
            yield (
                f"{claim.id}: other measures of the same runs {_against(design, verdict, *against[0])}, with "
                f"{setting(claim, claim.treatment)}: {said}. None of them is in the lock, and one in twenty leaves "
                "zero out by chance."
            )


def _facts(state: StudyState, arm: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in state.runs_of(arm):
        for name, value in (run.collected or {}).get("facts", {}).items():
            found.setdefault(name, []).append(float(value))
    return found


def _unsaid(state: StudyState, evidence: Evidence, arm: str) -> Counter[str]:
    runs = (evidence.runs[run.run_id] for run in state.runs_of(arm) if run.run_id in evidence.runs)
    return sum((Counter(run.unsaid) for run in runs), Counter[str]())


def _mean_fact(values: Sequence[float], lacking: int) -> str:
    mean = number(fmean(values)) if values else NONE
    return f"{mean} (of {plural(lacking, 'play')} not said)" if lacking else mean


def _list_measures(state: StudyState, evidence: Evidence) -> Iterator[tuple[Metric, Arms]]:
    """Yield each measure that all runs give, by arm; those that only repeat another one are left out."""
    design = state.design
    if design is None:
        return
    seen = [[value for arm in design.arms for value in state.values(arm.name).values()]]
    for metric in evidence.others:
        arms = {arm.name: _values(state, evidence, arm.name, metric) for arm in design.arms}
        flat = [value for values in arms.values() for value in values]
        runs = sum(len(state.values(arm.name)) for arm in design.arms)
        if flat and len(flat) == runs and not any(_same(flat, other) for other in seen):
            seen.append(flat)
            yield metric, arms


def _values(state: StudyState, evidence: Evidence, arm: str, metric: Metric) -> list[float]:
    runs = (evidence.runs[run].others for run in state.values(arm))
    return [found[metric.key] for found in runs if metric.key in found]


def _same(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and all(abs(x - y) < 1e-9 for x, y in zip(a, b, strict=True))


def _measure_name(metric: Metric) -> str:
    name = metric_name(metric)
    whole = metric.kind == "area" and metric.threshold is None
    return f"{name} (speed and level together)" if whole else name


def _arm(metric: Metric, values: Sequence[float]) -> str:
    said = format_mean(metric, values)
    return said if format_spread(metric, values) == NONE else f"{said} ({format_spread(metric, values)})"


def _contrast(design: Design, claim: Hypothesis, metric: Metric, arms: Arms) -> OtherDifference | None:
    if claim.kind != "difference":
        return _weighted_difference([arms[name] for name in design.contrast_of(claim)], claim.weights, metric)
    control, treatment = arms[design.control_arm], arms[design.arm_with(claim.variable, claim.treatment).name]
    if not control or not treatment or any(is_mostly_cut(metric, values) for values in (control, treatment)):
        return None
    estimate = fmean(treatment) - fmean(control)
    if is_rate(metric):
        return OtherDifference(estimate, *exact_difference(count_of(control), count_of(treatment), LEVEL))
    if min(len(control), len(treatment)) < 2 or (is_constant(control) and is_constant(treatment)):
        return OtherDifference(estimate)
    return OtherDifference(estimate, *welch(control, treatment).interval(LEVEL))


def _weighted_difference(
    values: Sequence[list[float]], weights: Sequence[float], metric: Metric
) -> OtherDifference | None:
    """Return what an interaction or a trend is by another measure; None where an arm has too few runs to tell."""
    if min(map(len, values)) < 2 or is_rate(metric) or any(is_mostly_cut(metric, numbers) for numbers in values):
        return None
    found = contrast(values, weights)
    return None if found is None else OtherDifference(found.estimate, *found.interval(LEVEL))


def _difference(found: OtherDifference | None, metric: Metric) -> str:
    if found is None:
        return NONE
    said = in_unit(format_signed(found.estimate, unit=metric.unit), metric)
    return said if found.low is None else f"{said} ({span(found.low, found.high, unit=metric.unit)})"


def _against(design: Design, verdict: Verdict, metric: Metric, found: OtherDifference) -> str:
    """Return how a difference stands to the verdict; empty where it agrees with it, or there is none."""
    if verdict.verdict in ("inconclusive", "equivalent"):
        return "tell the arms apart, where the verdict does not"
    if verdict.verdict not in ("supported", "refuted") or verdict.estimate is None:
        return ""
    better = (verdict.estimate > 0) == design.metric.higher_is_better
    other = (found.estimate > 0) == metric.higher_is_better
    return "" if better == other else "point the other way than the verdict"


def measure_remarks(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield what weakens conclusions because of what was measured."""
    yield from _warn_area(state)
    yield from _at_once(state)
    yield from _warn_one_sided_misses(state)
    yield from _unseen(state)
    yield from _warn_not_simulated(state)
    yield from (Remark("threat", said) for said in surprises(state, evidence))


def _warn_area(state: StudyState) -> Iterator[Remark]:
    metric = state.design.metric if state.design is not None else None
    if metric is not None and metric.kind == "area" and metric.threshold is None:
        yield Remark(
            "threat",
            "The whole area under a curve confounds speed with the level that is reached: an arm that ends higher has "
            "more of it, however fast it was. Below a threshold (area:0.7) it is mostly of speed.",
        )


def _at_once(state: StudyState) -> Iterator[Remark]:
    """Tell of arms that stood at the threshold before training: their time says nothing."""
    if state.design is None or state.design.metric.cut_at is None:
        return
    for arm in state.design.arms:
        values = list(state.values(arm.name).values())
        if begun := sum(value <= 0 for value in values):
            yield Remark(
                "threat",
                f"{begun} of {plural(len(values), 'run')} with {arm.name} stood at the threshold before training: of "
                "them the time says nothing.",
            )


def _warn_one_sided_misses(state: StudyState) -> Iterator[Remark]:
    """Tell of comparisons in which a few runs of one arm alone never got there."""
    if state.design is None or state.design.metric.cut_at is None:
        return
    cut = in_unit(f"{state.design.metric.cut_at:,.0f}", state.design.metric)
    for verdict in state.verdicts:
        missing = [rate for rate in verdict.reached if rate.count < rate.of]
        if len(missing) == 1 and (rate := missing[0]).count:
            yield Remark(
                "threat",
                f"{verdict.hypothesis}: {rate.of - rate.count} of {plural(rate.of, 'run')} with {rate.arm} never got "
                f"there, and no run of the other arm: {cut} stand in for their time. The difference is in part one of "
                f"how often trainings get there (95 % limits with {rate.arm}: {number(rate.low, 2)} to "
                f"{number(rate.high, 2)}), and not of speed alone.",
            )


def _unseen(state: StudyState) -> Iterator[Remark]:
    """Tell of claims that trainings which never get there would undo, where so few runs leave them open."""
    if state.design is None or state.design.collapse is not None:  # which has its own rates, and scope
        return
    for verdict in state.verdicts:
        for one in find_unobserved_misses(state.design.metric, verdict):
            if one.breaking_share is not None and one.breaking_share <= one.upper:
                yield Remark(
                    "threat",
                    f"{verdict.hypothesis}: every run with {one.arm} got there. What is claimed would not hold of all "
                    f"trainings if {percent(round(one.breaking_share, 3))} of them never did, and so few runs leave up "
                    f"to {percent(round(one.upper, 2))} open.",
                )


def _warn_not_simulated(state: StudyState) -> Iterator[Remark]:
    metric = state.design.metric if state.design is not None else None
    if metric is not None and not is_simulated(metric):
        yield Remark(
            "threat",
            f"How often a verdict on {metric_name(metric)} is wrong was not measured over simulated studies, as it was "
            "for hidden success: its error rate is that of the test's assumptions.",
        )
