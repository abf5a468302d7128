"""The sentence beside a verdict, and the question as asked and as tested.

The sentences on what is tested are written by code from typed fields: a planner's own wording is quoted elsewhere, and
decides nothing. Every place that shows an interval beside a verdict shows the one that decided it, with its level.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from studies.log.study import StudyState
from studies.metrics.registry import kinds
from studies.records.alpha import equivalence_level, planned_looks
from studies.records.design import GAIN, Design, Hypothesis, Kind, Metric
from studies.records.statements import along, effect_of, format_setting_value, list_tests, metric_name, setting
from studies.records.verdict import CollapseRate, Equivalence, ReachedRate, Scope, StartRate, Verdict
from studies.statistics.comparison import Test
from studies.verdicts.inputs import JudgeInput, UnobservedMiss

TESTS: Final = {
    "welch": "Welch's test", "common": "the t-test with the variance of all arms",
    "pooled": "the pooled t-test", "paired": "the t-test of runs paired by seed", "boschloo": "Boschloo's exact test",
    "contrast": "Welch's test of the contrast",
}  # fmt: skip
SIDES: Final = {True: "the predicted side", False: "against the prediction"}
_ESTIMANDS: Final = {
    "difference": "difference", "interaction": "difference of differences", "trend": "rise over the ladder",
}  # fmt: skip
_WHOLE: Final = 100
"""Episodes and the like from which on no fractions are told."""


@dataclass(frozen=True, slots=True)
class StudyQuestion:
    """What somebody wanted to know, and what a study can tell them."""

    asked: str
    """The topic, or the flags that stood in its place, word for word on one line."""
    tested: tuple[str, ...]
    """A sentence for each hypothesis or screen; empty while nothing is planned."""
    not_tested: tuple[str, ...]
    """What of the topic is in no field of the plan: its words as written, or a planner's sentence that says so."""


def question_of(state: StudyState) -> StudyQuestion:
    lefts = [act.left for act in state.planner_acts if act.left is not None]  # where code looked for words
    words = [f'"{word}"' for word in (lefts[0] if lefts else ()) if all(word in left for left in lefts)]
    left = [text for act in state.planner_acts for text in act.not_tested]
    if words:
        told = "words of the topic that no tested field, value, environment or metric covers"
        left.insert(0, f"{', '.join(words)}: {told}.")
    return StudyQuestion(
        asked=" ".join(state.topic.split()),
        tested=list_tests(state.design, state.hypotheses),
        not_tested=tuple(dict.fromkeys((*left, *_other_measures(state, left)))),
    )


def _other_measures(state: StudyState, said: Sequence[str]) -> Iterator[str]:
    if state.design is None:
        return
    topic, own = f" {' '.join(re.findall(r'[a-z0-9-]+', state.topic.lower()))} ", state.design.metric
    kind = own.kind or ("gain" if own.key == GAIN else "success")
    if any(f" {word} " in topic for word in (kinds()[kind].words if kind in kinds() else ())):
        return
    for other in kinds().values():
        word = next((word for word in other.words if f" {word} " in topic), None)
        if word is not None and other.name != kind and not any(word in text.lower() for text in said):
            yield f'"{word}" asks for {other.title}; what is compared is {metric_name(own)}.'


def find_unequal_training(verdict: Verdict) -> tuple[str, ...]:
    """Return what of training the arms of a claim did not share, as the confound linter found it: each a clause."""
    pairs = (line.partition(": ") for line in verdict.violations if verdict.verdict != "invalid")
    return tuple(sentence for code, _, sentence in pairs if code.startswith("unequal_") or code == "warm_start")


def unequal_episodes(control: tuple[str, float], treatment: tuple[str, float]) -> str | None:
    (name, left), (other, right) = control, treatment
    return None if left == right else f"training episodes: {left:,.0f} with {name}, {right:,.0f} with {other}"


@dataclass(frozen=True, slots=True)
class DecidingInterval:
    """An interval of the difference, treatment minus control, in the metric's own unit."""

    low: float
    high: float
    level: float


def deciding_interval(design: Design, verdict: Verdict) -> DecidingInterval | None:
    found = verdict.equivalence
    if verdict.verdict == "equivalent" and found is not None:
        last, planned = verdict.last, equivalence_level(design, verdict.look, verdict.phase)
        alike = planned if last is None else last.equivalence
        return DecidingInterval(found.low, found.high, round(1 - 2 * alike, 4))
    if verdict.low is None or verdict.high is None:
        return None
    return DecidingInterval(verdict.low, verdict.high, round(verdict.level, 4))


def list_replications(state: StudyState) -> Iterator[dict[str, str]]:
    """Yield of each claim that a study puts to the test again its name, the outcome, and both results side by side."""
    if (again := state.reproduces) is not None:
        for before in again.verdicts:
            name, verdict = before.hypothesis, state.verdict_on(before.hypothesis)
            over = state.is_settled(name) or state.status in ("concluded", "stopped")
            here = "no verdict" if verdict is None else summarize_verdict(state.design or again.design, verdict)
            yield {
                "of": f"{again.study}/{again.round}/{name}", "there": summarize_verdict(again.design, before),
                "claim": name, "here": here, "outcome": again.outcome(verdict) if over else "open",
            }  # fmt: skip


def summarize_verdict(design: Design, verdict: Verdict) -> str:
    if (interval := deciding_interval(design, verdict)) is None or verdict.estimate is None:
        return verdict.verdict
    ends = f"[{interval.low:.3g}, {interval.high:.3g}] ({100 * interval.level:.4g} %)"
    return f"{verdict.verdict} {verdict.estimate:+.3g} {ends}"


@dataclass(frozen=True, slots=True)
class TestUsed:
    """How the numbers of a sentence came about."""

    test: Test | Literal["boschloo"]
    instead: str
    arms: int
    """Arms that the control was compared with, of the claim's variable."""
    claims: int
    """Variables that the study makes claims about."""
    look: str
    """Which look it is; empty for the only one."""
    unit: str = ""
    kind: Kind = "difference"

    def span(self, ends: tuple[float, float], level: float, *, corrected: bool = True) -> str:
        """Return an interval with its level, estimand and `label`."""
        low, high = ends_in_digits(ends, self.unit)
        return (
            f"{level * 100:.4g} % interval of the {_ESTIMANDS[self.kind]} ({low} to {_with_unit(high, self.unit)}; "
            f"{self.label(corrected=corrected)})"
        )

    def label(self, *, corrected: bool = True) -> str:
        """Return the test, what it is corrected for, and the look; equivalence is not corrected for other claims."""
        parts = [TESTS[self.test] + (f" as {self.instead}" if self.instead else "")]
        parts += [f"corrected for {self.arms} arms"] if corrected and self.arms > 1 else []
        parts += [f"shared among {self.claims} variables"] if corrected and self.claims > 1 else []
        parts += [self.look] if self.look else []
        return ", ".join(parts)


def name_look(design: Design, at: JudgeInput | Verdict, counts: Sequence[int]) -> str:
    """Return which look of how many it is, or where `counts` runs of each arm are the last; empty for the only one."""
    looks = planned_looks(design, at.phase)
    if at.last is None:
        return f"look {at.look} of {len(looks)}" if len(looks) > 1 else ""
    where, level = "", "of the part that was reached"
    if at.last.ended == "budget":
        where, level = ", where the budget ended", "that was left"
    most = "at most " if at.phase == "confirm" and looks[-1].seeds > len(design.seeds) else ""
    return f"last look{where}, at {sum(counts)} of {most}{looks[-1].seeds * len(counts)} runs, with the level {level}"


def name_judged_look(design: Design, verdict: Verdict) -> str:
    return name_look(design, verdict, [arm.n for arm in verdict.arms] or [verdict.n_control, verdict.n_treatment])


def describe_effect(claim: Hypothesis, estimate: float, metric: Metric) -> str:
    """Return what an interaction or a trend was found to be, as a sentence to lead with; empty for a difference."""
    if claim.kind == "difference":
        return ""
    whole = metric.unit and abs(estimate) >= _WHOLE
    size = _with_unit(f"{abs(estimate):,.0f}" if whole else f"{abs(estimate):.3f}", metric.unit)
    if claim.kind == "trend":
        ends = " to ".join(format_setting_value(claim.variable, value) for value in (claim.control, claim.treatment))
        moved = "rises" if estimate > 0 else "falls"
        over = "Over its settings" if claim.contrast else f"From {claim.variable} = {ends}"
        return f"{over} the {metric_name(metric)} {moved} by {size} {along(claim)}. "
    low, high = (setting(claim.moderator, value) for value in claim.varied[claim.moderator])
    larger = "larger" if estimate > 0 else "smaller"
    return f"The {effect_of(claim)} is {larger} by {size} with {high} than with {low}. "


def explain_apart(claim: Hypothesis, metric: Metric) -> str:
    apart = " and ".join(metric.evaluates_apart(claim.declared))
    if metric.evaluate_by:
        return " Hidden tasks were played by each arm's own agent: agent and policy are measured together."
    return f" The task itself differs between the arms: each is evaluated at its own {apart}." if apart else ""


def explain_equivalence(same: Equivalence, level: float, how: TestUsed) -> str:
    return (
        f"The whole {how.span((same.low, same.high), level, corrected=False)} lies inside the equivalence "
        f"margin of {_with_unit(f'{same.margin:g}', how.unit)} to both sides of 0."
    )


def explain_trainings(
    scope: Scope, collapses: Sequence[CollapseRate], starts: Sequence[StartRate], unseen: Sequence[UnobservedMiss],
    *, named: bool = False,
) -> str:  # fmt: skip
    """Return of which trainings a verdict speaks, and what it leaves open; `named` with arms and what is undone."""

    def counts(rates: Iterable[CollapseRate]) -> str:
        return " and ".join(f"{rate.count} of {rate.of}{f' with {rate.arm}' if named else ''}" for rate in rates)

    stuck = " and ".join(f"{rate.count} of {rate.of} with {rate.arm}" for rate in starts if rate.count)
    stuck = f" Never started, and counted with their value: {stuck}." if stuck else ""
    shares = [_share(rate.upper) for rate in collapses]
    fallen = " and ".join(dict.fromkeys(shares) if named else shares)
    every = len(unseen) == len(starts)
    unstarted = " and ".join(dict.fromkeys(_share(one.upper) + ("" if every else f" with {one.arm}") for one in unseen))
    if scope == "all":
        most = "; ".join(filter(None, (fallen, unstarted)))
        return f" It holds for all trainings: others at the highest rates not ruled out ({most}) change nothing.{stuck}"
    whom, parts = list[str](), list[str]()
    if "not_collapsed" in scope:
        whom.append("do not collapse")
        apart = len({(rate.count, rate.of) for rate in collapses}) > 1
        survive = "; which ones survive may differ between the arms" if apart else ""
        parts.append(f"{counts(collapses)} collapsed (up to {fallen} are not ruled out{survive})")
    if "started" in scope:
        whom.insert(0, "start" if every else f"start (with {' and '.join(one.arm for one in unseen)})")
        parts.append(f"up to {unstarted} may never start{_undone(unseen, named)}")
    return f" It speaks of trainings that {' and '.join(whom)}: {', and '.join(parts)}.{stuck}"


def _undone(unseen: Sequence[UnobservedMiss], named: bool) -> str:
    shares = [(one.breaking_share, one.undone) for one in unseen if one.breaking_share is not None]
    least, undone = min(shares, default=(None, ""))
    what = f"that the difference {undone}" if named else "it"  # in a log, whose verdicts keep their words
    return "" if least is None else f", and {_share(least)} would undo {what}"


def explain_reached(unseen: Sequence[UnobservedMiss], metric: Metric, scope: Scope, *, named: bool = False) -> str:
    """Return of which trainings a verdict on a time speaks, and what it leaves open; `named` with what is undone."""
    alone = f" with {unseen[0].arm}" if len(unseen) == 1 else ""
    phrase = "get there" if metric.threshold is not None else "stay below the cut"
    rates = [_share(one.upper) + ("" if alone else f" with {one.arm}") for one in unseen]
    most = f"that up to {' and '.join(rates)}"
    if scope == "all":
        return f" It holds for all trainings: {most}{alone} never {phrase} is not ruled out, and would undo nothing."
    return f" It speaks of trainings{alone} that {phrase}: {most} never do is not ruled out{_undone(unseen, named)}."


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.01 else f"{100 * value:.1f} %"


def explain_not_reached(rates: Sequence[ReachedRate], metric: Metric) -> str:
    """Return why nothing is claimed of a time: who did not get there, and with which limits who did."""
    cut = f"{metric.cut_at:,.0f} {metric.unit}"
    told = " and ".join(
        f"{rate.count} of {rate.of} with {rate.arm} (95 % limits {rate.low:.2f} to {rate.high:.2f})" for rate in rates
    )
    if metric.threshold is None:
        return f"More than half of an arm lies at {cut}, where it is cut, so that no mean is compared; below: {told}."
    within, goal = f"within {cut}", f"hidden success of {metric.threshold:g}"
    if not any(rate.count for rate in rates):
        return f"Not reached by any arm {within}: {goal} was reached by {told}."
    missed = " and ".join(
        f"{rate.of - rate.count} of {rate.of} runs with {rate.arm}" for rate in rates if 2 * rate.count < rate.of
    )
    return f"Not reached by {missed} {within}, so that no time is compared: {goal} was reached by {told}."


def ends_in_digits(ends: tuple[float, float], unit: str = "") -> tuple[str, str]:
    """Return the signed ends of an interval, both with the digits of the larger; more where one would look like 0."""
    places = decimals(max(map(abs, ends))) if unit else 3
    while places < 6 and any(end and abs(end) < 0.5 * 10**-places for end in ends):
        places += 1
    low, high = (f"{end:+,.{places}f}" if end else f"{0:.{places}f}" for end in ends)
    return low, high


def decimals(value: float) -> int:
    """Return the decimals of what is counted in a unit: three digits in all, and every one of a large number's."""
    return next((places for least, places in ((99.95, 0), (9.995, 1), (0.9995, 2)) if abs(value) >= least), 3)


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if unit else value
