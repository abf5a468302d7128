"""What a report of an inquiry says first: what is known, was ruled out, surprised; the best recipe, and what next.

Every sentence is code's, from the states of the rounds; what was decided is quoted. Nothing is said to be known that no
locked test of a round came to, and no recipe that the last confirmation of a comparison did not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from studies.log.study_state import StudyState
from studies.records.design import Design, Hypothesis
from studies.records.verdict import Verdict
from studies.report.headline.headline import headline
from studies.report.headline.next_question import NextQuestion
from studies.report.headline.practice import LESS, gain_said
from studies.report.parts.deciding_interval import deciding_interval
from studies.report.parts.evidence import Evidence
from studies.report.parts.states import every_state
from studies.report.parts.wording import compared, finding, label, percent, plural, sized
from studies.report.rounds.ending import ask_on, why_ended
from studies.report.rounds.recipe import BetterValue, SettingRecipe, apart, in_words, recipes
from studies.report.rounds.surprises import surprised


@dataclass(frozen=True, slots=True)
class KnownClaim:
    """What one claim of a round came to, in code's words with its numbers."""

    round: int
    verdict: str
    label: str
    sentence: str


@dataclass(frozen=True, slots=True)
class InquiryAnswer:
    """The first lines of a report on an inquiry, in the order in which they are read."""

    warnings: tuple[str, ...]
    """What was changed after it was fixed, in any round: said before anything else."""
    asked: str
    not_tested: tuple[str, ...]
    known: tuple[KnownClaim, ...]
    ruled_out: tuple[str, ...]
    surprises: tuple[str, ...]
    recipe: tuple[str, ...]
    next: NextQuestion
    ended: str
    """Why no further round was asked, or how far it is."""
    over: bool
    """Whether the inquiry is concluded."""


def inquiry_answer(state: StudyState, evidence: Mapping[int, Evidence]) -> InquiryAnswer:
    """Return the first lines; `evidence` is that of each round by its number."""
    heads = [headline(each, _of(each, evidence).lock_error) for each in every_state(state)]
    return InquiryAnswer(
        warnings=tuple(dict.fromkeys(line for head in heads for line in head.warnings)),
        asked=heads[0].question.asked,
        not_tested=tuple(dict.fromkeys(line for head in heads for line in head.question.not_tested)),
        known=tuple(_known(state)),
        ruled_out=tuple(_ruled_out(state)),
        surprises=tuple(
            f"Round {each.round}: {said}" for each in state.rounds for said in surprised(each, _of(each, evidence))
        ),
        recipe=recipe_said(state),
        next=ask_on(state),
        ended=why_ended(state),
        over=state.concluded_reason is not None,
    )


def recipe_said(state: StudyState) -> tuple[str, ...]:
    """Return the best recipe of each setting and how much better it is, a sentence each; that there is none, else."""
    designs = {each.round: each.design for each in state.rounds if each.design is not None}
    told = [line for recipe in recipes(state.rounds) for line in _recipe(recipe, designs)]
    confirmed = any(recipe.values for recipe in recipes(state.rounds))
    none = "Nothing was confirmed: no comparison whose last round showed that one value is better."
    return (*told, f"{LESS.capitalize()}.") if confirmed else (none, *told)


def _of(state: StudyState, evidence: Mapping[int, Evidence]) -> Evidence:
    return evidence.get(state.round, Evidence({}))


def _known(state: StudyState) -> Iterator[KnownClaim]:
    for each in state.rounds:
        if each.design is None or not each.design.hypotheses:
            yield KnownClaim(each.round, "none", "No verdict", headline(each).answers[0].sentence)
            continue
        yield from (_claim(each, each.design, claim) for claim in each.design.hypotheses)
    for each in state.given_up:
        yield KnownClaim(each.round, "none", "Given up", "it came to no lock: nothing was tested in it.")


def _claim(state: StudyState, design: Design, claim: Hypothesis) -> KnownClaim:
    verdict = state.verdict_on(claim.id)
    if verdict is None:
        answer = next(answer for answer in headline(state).answers if answer.hypothesis == claim.id)
        return KnownClaim(state.round, answer.verdict, answer.label, answer.sentence)
    said = finding(claim, verdict, design.metric, deciding_interval(design, verdict))
    return KnownClaim(state.round, verdict.verdict, label(claim, verdict), f"in {design.environment}, {_lower(said)}")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _ruled_out(state: StudyState) -> Iterator[str]:
    """Yield what the rounds showed not to be: a difference that matters, or the direction that was claimed."""
    for each in state.rounds:
        for verdict in each.verdicts:
            if each.design is not None and each.is_settled(verdict.hypothesis):
                claim = each.design.hypothesis(verdict.hypothesis)
                yield from _not_so(each, each.design, claim, verdict)


def _not_so(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> Iterator[str]:
    where = f"Round {state.round}, in {design.environment}"
    level = deciding_interval(design, verdict)
    sure = f" ({percent(level.level)} interval)" if level is not None else ""
    if verdict.verdict == "equivalent" and verdict.equivalence is not None:
        margin = sized(verdict.equivalence.margin, design.metric)
        yield f"{where}: a difference of {margin} or more by {compared(claim)}{sure}."
    if verdict.verdict == "refuted":
        yield f"{where}: {'an' if claim.direction == 'increase' else 'a'} {claim.direction} by {compared(claim)}{sure}."


def _recipe(recipe: SettingRecipe, designs: Mapping[int, Design]) -> Iterator[str]:
    where = f"In {recipe.environment}"
    values = recipe.values
    for value in values:
        yield f"{where}: {_better(value)}."
    if len(values) > 1:
        yield (
            f"{where}, these values were not all tried together: that their effects add up was not tested."
            if any(apart(values, designs))
            else "Each later one was compared with the earlier ones in place."
        )
    for left in recipe.left:
        yield f"{where}: what round {left.round} showed of {compared(left.claim)} {left.why}."


def _better(value: BetterValue) -> str:
    verdict, design = value.verdict, value.design
    interval = deciding_interval(design, verdict)
    assert verdict.estimate is not None  # what shows a difference has one
    assert interval is not None
    sign = 1 if (verdict.estimate > 0) == design.metric.higher_is_better else -1
    low, high = sorted((sign * interval.low, sign * interval.high))
    seeds = plural(min(verdict.n_control, verdict.n_treatment), "fresh seed")
    return (
        f"{in_words(value.fields)} rather than {in_words(value.over)}: "
        f"{gain_said(design.metric, sign * verdict.estimate, low, high)} was measured (round {value.round}, "
        f"{percent(interval.level)} interval, {seeds} of each arm)"
    )
