"""What a reader may do with a verdict, in one sentence by code: prefer, choose by cost, wait, or leave it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from studies.log.study_state import StudyState
from studies.question import unequal
from studies.records.design import Design, Hypothesis, Metric
from studies.records.sentences import effect_of, metric_name
from studies.records.verdict import Verdict
from studies.report.parts.deciding_interval import deciding_interval
from studies.report.parts.wording import (
    duration,
    number,
    one_line,
    percent,
    plural,
    setting,
    signed,
    sized,
    span,
    value_of,
)
from studies.verdicts.judge import gather
from studies.verdicts.verdict import LEAST_KEPT

POWER: Final = 0.8
"""Probability with which a difference counts as seen, where the design promised none."""


LESS: Final = "expect less, as differences that are large enough to be claimed are on average measured too large"
"""Of every estimate that a reader may want to rely on because it was claimed."""


@dataclass(frozen=True, slots=True)
class ReachedPower:
    """What a comparison of this spread can see, by the test's power."""

    detectable: float
    """The smallest true difference that is seen with probability `power`."""
    power: float
    wanted: float | None
    """The smallest difference that matters, where somebody said."""
    seeds: int | None
    """Seeds of each arm that would see `wanted`; None where nobody said, or where 200 are too few."""


def in_practice(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    """Return what to do with a verdict; where trainings collapsed, with what they do to it."""
    if not any(rate.count for rate in verdict.collapses) or verdict.verdict == "invalid" or verdict.low is None:
        return _of_those_that_held(state, design, claim, verdict)
    whole = _with_collapsed(state, design, claim, verdict)
    counted = f"with the trainings that collapsed counted, the difference is {signed(whole, unit=design.metric.unit)}"
    broken = [rate.count / max(1, rate.of) for rate in verdict.collapses]
    if verdict.verdict == "equivalent" and min(broken) < max(broken):
        return f"do not choose by cost: this is of trainings that do not collapse, and {counted}."
    if verdict.verdict in ("supported", "refuted") and whole * (verdict.estimate or 0.0) <= 0:
        return f"prefer neither by this: it is of trainings that do not collapse, and {counted}."
    held = _of_those_that_held(state, design, claim, verdict)
    return f"{held} That is of trainings that do not collapse; {counted}."


def _with_collapsed(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> float:
    """Return the difference with every training counted by its value, and one that broke down by the worst."""
    arms = gather(state, look=verdict.look)
    runs = {name: arms[name].runs(design.metric.worst).values for name in design.contrast_of(claim)}
    return sum(weight * fmean(runs[name].values()) for name, weight in design.contrast_of(claim).items())


def _of_those_that_held(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    if verdict.verdict == "invalid":
        return "conclude nothing: what stands above has to be mended, and the comparison run again."
    if verdict.exploratory:
        return "treat it as a lead: a claim needs a study of its own, locked before its data."
    if verdict.verdict == "equivalent":
        return _by_cost(state, design, claim, verdict)
    if verdict.verdict == "inconclusive":
        return _not_seen(design, claim, verdict)
    return _prefer(state, design, claim, verdict)


def sight(design: Design, claim: Hypothesis, verdict: Verdict) -> ReachedPower | None:
    """Return what the comparison behind a verdict could see at the spread it met.

    None where there is no spread, or where the locked rule judges no mean of so few runs.
    """
    from studies.statistics.power import detectable, seeds_needed, shape_of  # needs scipy, which takes a while

    sd, runs = _spread(verdict), fewest(verdict)
    if not sd or runs < (2 if design.collapse is None else LEAST_KEPT) or design.test == "boschloo":
        return None
    whole = shape_of(design, claim)
    shape = whole if runs == whole.seeds else whole.with_seeds(runs)
    promise = design.promise
    power, wanted = (promise.power, promise.effect) if promise is not None else (POWER, claim.smallest_effect)
    needed = seeds_needed(shape, wanted, sd, promised=power) if wanted is not None else None
    return ReachedPower(detectable(shape, sd, promised=power), power, wanted, needed)


def fewest(verdict: Verdict) -> int:
    """Return the runs of the arm that has fewest."""
    return min([arm.n for arm in verdict.arms] or [verdict.n_control, verdict.n_treatment])


def _by_contrast(design: Design, claim: Hypothesis, verdict: Verdict, caution: str) -> str:
    """Return what to do with an interaction or a trend that was found."""
    interval = deciding_interval(design, verdict)
    assert interval is not None
    ends = span(interval.low, interval.high, unit=design.metric.unit)
    size = f"{signed(verdict.estimate, unit=design.metric.unit)} (from {ends}) of {metric_name(design.metric)}"
    if claim.kind == "trend":
        first, last = (value_of(value) for value in (claim.control, claim.treatment))
        return (
            f"in this setting, read it as a direction: from {claim.variable} = {first} to {last}, {size} was measured "
            f"along a straight line{caution}; {LESS}; which value between is best was not tested."
        )
    low, high = (value_of(value) for value in claim.varied[claim.moderator])
    return (
        f"in this setting, choose {claim.moderated} anew for each {claim.moderator}: its effect with {high} differs "
        f"from that with {low} by {size} as measured{caution}; {LESS}; whether either effect is above zero was not "
        "tested."
    )


def _prefer(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    if claim.kind != "difference":
        return _by_contrast(design, claim, verdict, _caution(state, claim) + _again(state, claim))
    interval = deciding_interval(design, verdict)
    assert verdict.estimate is not None  # supported and refuted have one
    assert interval is not None
    treatment_wins = (verdict.estimate > 0) == design.metric.higher_is_better
    better, other = (claim.treatment, claim.control) if treatment_wins else (claim.control, claim.treatment)
    sign = 1 if treatment_wins else -1
    low, high = sorted((sign * interval.low, sign * interval.high))
    caution = _caution(state, claim) + _again(state, claim)
    return (
        f"in this setting, prefer {setting(claim, better)} to {setting(claim, other)}: "
        f"{gain_said(design.metric, sign * verdict.estimate, low, high)} was measured{caution}; {LESS}"
        f"{', those at an early look most' if verdict.look < len(design.looks) else ''}."
    )


def gain_said(metric: Metric, value: float, low: float, high: float) -> str:
    """Return what the better arm was measured to have more of, or fewer where a name begins with what is counted."""
    name, unit = metric_name(metric), metric.unit
    if metric.cut_at is not None and name.startswith(unit) and high < 0:
        return f"{number(-value, unit=unit)} fewer ({number(-high, unit=unit)} to {number(-low, unit=unit)}) {name}"
    return f"{signed(value, unit=unit)} (from {span(low, high, unit=unit)}) of {name}"


def _caution(state: StudyState, claim: Hypothesis) -> str:
    return ", part of which may come from the unequal training" if unequal(state, claim) else ""


def _again(state: StudyState, claim: Hypothesis) -> str:
    """Return how a replication in another setting went; empty where there was none."""
    found = next((entry for entry in state.replications if entry.hypothesis == claim.id), None)
    if found is None or state.design is None or state.design.replication is None:
        return ""
    return f"; in {state.design.replication.environment} the same comparison was {found.verdict}"


def _by_cost(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    assert verdict.equivalence is not None  # equivalent is what two one-sided tests say
    margin = sized(verdict.equivalence.margin, design.metric)
    if claim.kind == "interaction":
        return (
            f"take the {effect_of(claim)} to be the same with both values of {claim.moderator}: what they differ by "
            f"lies within ±{margin}."
        )
    lead = f"choose by cost: what difference there is lies within ±{margin}"
    if verdict.nonzero and verdict.estimate is not None:
        lead += f", though it is not zero ({signed(verdict.estimate, unit=design.metric.unit)})"
    costs = [
        (setting(claim, value), _mean_seconds(state, design.arm_with(claim.variable, value).name))
        for value in (claim.treatment, claim.control)
    ]
    told = [f"{duration(seconds)} with {name}" for name, seconds in costs if seconds is not None]
    return f"{lead}; a run took {' and '.join(told)}." if len(told) == len(costs) else f"{lead}."


def _mean_seconds(state: StudyState, arm: str) -> float | None:
    """Return how long the trainings that were collected took on average; None where none was timed."""
    seconds = [
        sum(attempt.seconds or 0.0 for attempt in run.lineage)
        for run in state.runs_of(arm)
        if run.status == "collected" and run.attempts and run.attempts[-1].seconds is not None
    ]
    return fmean(seconds) if seconds else None


def _not_seen(design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    lead = "do not read it as no difference"
    if verdict.collapses and verdict.low is None and any(rate.count for rate in verdict.collapses):
        said = one_line(verdict.reason)
        return f"{lead}: {said[0].lower()}{said[1:]}"
    if verdict.reached and verdict.estimate is None and design.metric.threshold is not None:
        return f"{lead}: too few trainings got there; ask for a threshold that most reach, or train longer."
    if design.test == "boschloo":
        return f"{lead}: {_rates_seen(design, claim, verdict)}"
    found = sight(design, claim, verdict)
    if found is None:
        return f"{lead}: of so few runs, or without any spread, nothing is known of what could have been seen."
    least, wanted = sized(found.detectable, design.metric), sized(found.wanted, design.metric)
    could = f"differences of about {least} or more are seen here with {percent(found.power)}"
    if found.wanted is None:
        return f"{lead}: {could} probability."
    if found.seeds is None:
        return f"{lead}: {could} probability; one of {wanted} takes more than 200 seeds of each arm."
    if found.seeds <= fewest(verdict):
        return f"{lead}: {could} probability, so that one of {wanted} or more is unlikely, not excluded."
    return f"{lead}: {could} probability; one of {wanted} takes {plural(found.seeds, 'seed')} of each arm."


def _rates_seen(design: Design, claim: Hypothesis, verdict: Verdict) -> str:
    """Return which rates so few runs tell apart, and how many runs a difference that matters would take."""
    from studies.statistics.exact_rates import rate_seen, seeds_for_rates  # needs scipy, which takes a while

    power = design.promise.power if design.promise is not None else POWER
    least = rate_seen(min(verdict.n_control, verdict.n_treatment), promised=power, alpha=design.alpha)
    could = "no rates are told apart here" if least is None else f"0 against {percent(round(least, 2))} is seen here"
    wanted = design.promise.effect if design.promise is not None else claim.smallest_effect
    if wanted is None:
        return f"{could} with {percent(power)} probability."
    needed = seeds_for_rates(0.0, min(1.0, wanted), promised=power, alpha=design.alpha)
    takes = "more than 200 seeds" if needed is None else plural(needed, "seed")
    return f"{could} with {percent(power)} probability; 0 against {percent(wanted)} takes {takes} of each arm."


def _spread(verdict: Verdict) -> float | None:
    if verdict.sd_pooled is not None:
        return verdict.sd_pooled
    known = [arm.sd for arm in verdict.arms] or [verdict.sd_control, verdict.sd_treatment]
    sds = [sd for sd in known if sd is not None]
    return math.sqrt(fmean(sd * sd for sd in sds)) if sds else None
