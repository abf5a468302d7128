"""What a careful reader would ask of the measure: what it confounds, who stood at its ends, what is not proved."""

from __future__ import annotations

from collections.abc import Iterator

from studies.log.study_state import StudyState
from studies.records.sentences import metric_name
from studies.report.measures.flown import flown
from studies.report.measures.table import surprises
from studies.report.parts.evidence import Evidence
from studies.report.parts.parts import Remark
from studies.report.parts.wording import in_unit, number, percent, plural
from studies.verdicts.scope import unseen_of


def measure_remarks(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield what weakens conclusions because of what was measured."""
    yield from _confounded(state)
    yield from _at_once(state)
    yield from _missed_by_one(state)
    yield from _unseen(state)
    yield from _not_flown(state)
    yield from (Remark("threat", said) for said in surprises(state, evidence))


def _confounded(state: StudyState) -> Iterator[Remark]:
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


def _missed_by_one(state: StudyState) -> Iterator[Remark]:
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
        for one in unseen_of(state.design.metric, verdict):
            if one.undoes is not None and one.undoes <= one.upper:
                yield Remark(
                    "threat",
                    f"{verdict.hypothesis}: every run with {one.arm} got there. What is claimed would not hold of all "
                    f"trainings if {percent(round(one.undoes, 3))} of them never did, and so few runs leave up to "
                    f"{percent(round(one.upper, 2))} open.",
                )


def _not_flown(state: StudyState) -> Iterator[Remark]:
    metric = state.design.metric if state.design is not None else None
    if metric is not None and not flown(metric):
        yield Remark(
            "threat",
            f"How often a verdict on {metric_name(metric)} is wrong was not measured over simulated studies, as it was "
            "for hidden success: its error rate is that of the test's assumptions.",
        )
