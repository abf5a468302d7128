"""Remarks on the measure, other measures.

Other measures, of every kind that the runs' files give, are exploratory: no lock names them, nothing is corrected for
their number, and no claim rests on them. A surprise is one whose interval leaves zero out where the verdict found
nothing, or that points the other way than the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    count_of,
    format_mean,
    format_spread,
    is_mostly_cut,
    is_rate,
    table,
    threat,
)
from studies.report.evidence import Evidence
from studies.report.wording import NONE, format_signed, in_unit, number, percent, plural, setting, span
from studies.statistics.comparison import contrast, is_constant, welch
from studies.statistics.proportions import difference as exact_difference
from studies.verdicts.scope import find_unobserved_misses

SIMULATED_KINDS: Final = frozenset({"", "success", "gain", "area", "episodes", "seconds", "collapse"})
"""Kinds on which somebody measured how often a verdict is wrong; the empty one is of designs that knew success and its
gain alone."""
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
    design, rows = state.design, []
    if design is None:
        return None
    for metric, arms in _list_measures(state, evidence):
        whole = metric.kind == "area" and metric.threshold is None
        row = [f"{metric_name(metric)} (speed and level together)" if whole else metric_name(metric)]
        for values in arms.values():
            mean, sd = format_mean(metric, values), format_spread(metric, values)
            row.append(mean if sd == NONE else f"{mean} ({sd})")
        found = (_contrast(design, claim, metric, arms) for claim in design.hypotheses)
        rows.append([*row, *(_format_difference(other, metric) for other in found)])
    columns = ["Measure", *(f"{arm.name}: mean (SD)" for arm in design.arms)]
    columns += [f"{claim.id}: difference, 95 % interval" for claim in design.hypotheses]
    return table(columns, rows, range(1, len(columns)))


def facts_table(state: StudyState) -> Table | None:
    """Return what the environment said of plays after training, as means over each arm's runs; None for nothing."""
    arms = [arm.name for arm in state.design.arms] if state.design is not None else []
    values: dict[str, dict[str, list[float]]] = {arm: {} for arm in arms}
    for arm in arms:
        for run in state.runs_of(arm):
            for name, value in (run.collected or {}).get("facts", {}).items():
                values[arm].setdefault(name, []).append(float(value))

    names = sorted({name for known in values.values() for name in known})
    rows = [[name, *(number(fmean(v)) if (v := values[arm].get(name)) else NONE for arm in arms)] for name in names]
    return table(("Mean per play", *arms), rows, range(1, len(arms) + 1))


def surprises(state: StudyState, evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each verdict that other measures of its runs say something else than."""
    design = state.design
    if design is None:
        return
    measures = list(_list_measures(state, evidence))
    for verdict in state.verdicts:
        claim = design.hypothesis(verdict.hypothesis)
        pairs = ((metric, _contrast(design, claim, metric, arms)) for metric, arms in measures)
        apart = [(metric, other) for metric, other in pairs if other is not None and other.apart]
        if against := [(metric, other) for metric, other in apart if _against(design, verdict, metric, other)]:
            said = "; ".join(
                f"{metric_name(metric)} differs by {_format_difference(o, metric)}" for metric, o in against
            )
            yield (
                f"{claim.id}: other measures of the same runs {_against(design, verdict, *against[0])}, with "
                f"{setting(claim, claim.treatment)}: {said}. None of them is in the lock, and one in twenty leaves "
                "zero out by chance."
            )


def _list_measures(state: StudyState, evidence: Evidence) -> Iterator[tuple[Metric, Arms]]:
    """Yield each measure that all runs give, by arm; those that only repeat another one are left out."""
    design = state.design
    if design is None:
        return
    own = {arm.name: state.values(arm.name) for arm in design.arms}
    seen = [[value for values in own.values() for value in values.values()]]
    for metric in evidence.others:
        arms = {
            arm: [found[metric.key] for run in runs if metric.key in (found := evidence.runs[run].others)]
            for arm, runs in own.items()
        }
        flat = [value for values in arms.values() for value in values]
        repeats = any(all(abs(x - y) < 1e-9 for x, y in zip(flat, other, strict=False)) for other in seen)
        if flat and len(flat) == len(seen[0]) and not repeats:
            seen.append(flat)
            yield metric, arms


def _contrast(design: Design, claim: Hypothesis, metric: Metric, arms: Arms) -> OtherDifference | None:
    """Return what a claim's comparison is by another measure; None where an arm has too few runs to tell."""
    if claim.kind != "difference":
        values = [arms[name] for name in design.contrast_of(claim)]
        if min(map(len, values)) < 2 or is_rate(metric) or any(is_mostly_cut(metric, numbers) for numbers in values):
            return None
        found = contrast(values, claim.weights)
        return None if found is None else OtherDifference(found.estimate, *found.interval(LEVEL))
    control, treatment = arms[design.control_arm], arms[design.arm_with(claim.variable, claim.treatment).name]
    if not control or not treatment or any(is_mostly_cut(metric, values) for values in (control, treatment)):
        return None
    estimate = fmean(treatment) - fmean(control)
    if is_rate(metric):
        return OtherDifference(estimate, *exact_difference(count_of(control), count_of(treatment), LEVEL))
    if min(len(control), len(treatment)) < 2 or (is_constant(control) and is_constant(treatment)):
        return OtherDifference(estimate)
    return OtherDifference(estimate, *welch(control, treatment).interval(LEVEL))


def _format_difference(found: OtherDifference | None, metric: Metric) -> str:
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


def warn_measure(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield what weakens conclusions because of what was measured."""
    if state.design is None:
        return
    metric = state.design.metric
    if metric.kind == "area" and metric.threshold is None:
        yield threat(
            "The whole area under a curve confounds speed with the level that is reached: an arm that ends higher has "
            "more of it, however fast it was. Below a threshold (area:0.7) it is mostly of speed."
        )
    if metric.cut_at is not None:
        yield from _warn_cut(state, state.design)
    for verdict in state.verdicts if state.design.collapse is None else ():  # which has its own rates, and scope
        for one in find_unobserved_misses(metric, verdict):
            if one.breaking_share is not None and one.breaking_share <= one.upper:
                yield threat(
                    f"{verdict.hypothesis}: every run with {one.arm} got there. What is claimed would not hold of all "
                    f"trainings if {percent(round(one.breaking_share, 3))} of them never did, and so few runs leave up "
                    f"to {percent(round(one.upper, 2))} open."
                )
    if metric.kind not in SIMULATED_KINDS:
        yield threat(
            f"How often a verdict on {metric_name(metric)} is wrong was not measured over simulated studies, as it was "
            "for hidden success: its error rate is that of the test's assumptions."
        )
    yield from (threat(said) for said in surprises(state, evidence))


def _warn_cut(state: StudyState, design: Design) -> Iterator[Remark]:
    """Tell of arms that stood at the threshold before training, and of comparisons in which runs of one arm alone
    never got there."""
    for arm in design.arms:
        values = list(state.values(arm.name).values())
        if begun := sum(value <= 0 for value in values):
            yield threat(
                f"{begun} of {plural(len(values), 'run')} with {arm.name} stood at the threshold before training: of "
                "them the time says nothing."
            )
    cut = in_unit(f"{design.metric.cut_at:,.0f}", design.metric)
    for verdict in state.verdicts:
        missing = [rate for rate in verdict.reached if rate.count < rate.of]
        if len(missing) == 1 and (rate := missing[0]).count:
            yield threat(
                f"{verdict.hypothesis}: {rate.of - rate.count} of {plural(rate.of, 'run')} with {rate.arm} never got "
                f"there, and no run of the other arm: {cut} stand in for their time. The difference is in part one of "
                f"how often trainings get there (95 % limits with {rate.arm}: {number(rate.low, 2)} to "
                f"{number(rate.high, 2)}), and not of speed alone."
            )
