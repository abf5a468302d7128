"""The first lines of a report: asked, tested, verdict, in practice, ending.

Every sentence is written by code from the state, or of an inquiry its rounds' states; what was decided is quoted.
Nothing is said to be known that no locked test came to, and no recipe that the last confirmation of a comparison did
not show. Whether files still are what was collected comes in as `lock_error`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from studies.checks.training import unequal_drops
from studies.log.study import StudyState
from studies.records.design import Design, Hypothesis
from studies.records.verdict import Verdict
from studies.report.design_tables import describe_scope
from studies.report.elements import every_state
from studies.report.evidence import Evidence
from studies.report.next_question import LESS, NextQuestion, ask_next, format_gain, in_practice
from studies.report.rounds import list_surprises
from studies.report.wording import (
    describe_comparison,
    describe_reached,
    finding,
    format_size,
    label,
    one_line,
    percent,
    plural,
    setting,
)
from studies.verdicts.recipe import BetterValue, SettingRecipe, find_untested_pairs, format_fields, recipes
from studies.verdicts.wording import Question, deciding_interval, find_unequal_training, question_of

SPOILT: Final = frozenset({"evidence_missing", "evidence_changed"})
"""Codes of runs whose files were no longer what was collected."""


@dataclass(frozen=True, slots=True)
class HeadlineAnswer:
    """What the study says about one hypothesis: label, a sentence bound to its numbers, what a reader may do."""

    hypothesis: str
    verdict: str
    label: str
    sentence: str
    practice: str


@dataclass(frozen=True, slots=True)
class Headline:
    """The first lines of a report, in the order they are read."""

    warnings: tuple[str, ...]
    """What was changed after it was fixed: said before anything else."""
    question: Question
    answers: tuple[HeadlineAnswer, ...]
    """One for each hypothesis of the design; one that says why there is none otherwise."""
    next: NextQuestion


def headline(state: StudyState, lock_error: str | None = None) -> Headline:
    """Return the first lines on a state; `lock_error` is what is wrong with the lock's file, None if nothing is."""
    return Headline(
        warnings=tuple(_warnings(state, lock_error)),
        question=question_of(state),
        answers=_answers(state),
        next=ask_next(state),
    )


def _warnings(state: StudyState, lock_error: str | None) -> list[str]:
    found = []
    if lock_error is not None:
        rests = "No verdict below can be relied on" if state.verdicts else "No verdict will be claimed on it"
        found.append(f"{lock_error[0].upper()}{lock_error[1:]}. {rests} until the file is restored.")
    spoilt = [run for run in state.runs.values() if run.invalid is not None and run.invalid[0] in SPOILT]
    if spoilt:
        names = ", ".join(run.run_id for run in spoilt)
        found.append(f"Files of {plural(len(spoilt), 'run')} were changed or lost after they were collected: {names}.")
    return found


def _answers(state: StudyState) -> tuple[HeadlineAnswer, ...]:
    design = state.design
    if design is None or not design.hypotheses:
        why = _why_no_design(state) if design is None else _why_no_claim(state)
        return (HeadlineAnswer("", "none", "No verdict", why, "nothing follows yet: no comparison has been judged."),)
    return tuple(_answer(state, design, claim) for claim in design.hypotheses)


def _answer(state: StudyState, design: Design, claim: Hypothesis) -> HeadlineAnswer:
    verdict = state.verdict_on(claim.id)
    clauses = (*find_unequal_training(state, claim), *unequal_drops(state, claim))
    differ = f" The arms differ in {'; in '.join(clauses)}." if clauses else ""
    if verdict is None:
        sentence = _why_no_verdict(state, design, claim) + differ
        yet = "nothing follows yet: the comparison is not judged."
        return HeadlineAnswer(claim.id, "none", "No verdict", sentence, yet)
    found = finding(claim, verdict, design.metric, deciding_interval(design, verdict)) + describe_scope(claim, verdict)
    said = found + describe_reached(claim, verdict, design.metric) + differ + _standing(state, claim, verdict)
    practice = in_practice(state, design, claim, verdict)
    return HeadlineAnswer(claim.id, verdict.verdict, label(claim, verdict), said, practice)


def _standing(state: StudyState, claim: Hypothesis, verdict: Verdict) -> str:
    """Return what a reader must know of a verdict besides its numbers; empty for a plain one."""
    said = []
    if not state.is_settled(claim.id):
        over = state.status in ("stopped", "concluded")
        said.append(f"This is look {verdict.look}; the study {'ended before the next' if over else 'goes on'}.")
    if claim.id in state.vetoed:
        said.append("It was vetoed before its last look and rests on what was there.")
    if verdict.exploratory:
        said.append("Exploratory: an amendment after the first result touched it.")
    return "".join(f" {sentence}" for sentence in said)


def _why_no_design(state: StudyState) -> str:
    if state.stopped_reason is not None:
        return f"the study was stopped before a design was locked ({one_line(state.stopped_reason)})."
    if state.concluded_reason is not None:
        return f"the study ended without a design ({one_line(state.concluded_reason)})."
    return "no design is locked yet; the study is still being planned."


def _why_no_claim(state: StudyState) -> str:
    if state.stopped_reason is not None:
        return f"the study was stopped before its screen led to a claim ({one_line(state.stopped_reason)})."
    if state.concluded_reason is not None:
        return f"the screen led to no claim ({one_line(state.concluded_reason)})."
    return "the screen has not led to a claim yet."


def _why_no_verdict(state: StudyState, design: Design, claim: Hypothesis) -> str:
    counts = [
        f"{plural(len(state.values(design.arm_with(claim.variable, value).name)), 'valid run')} with "
        f"{setting(claim, value)}"
        for value in reversed(claim.settings)
    ]
    have = f"{' and '.join(counts)} so far, of {len(design.seeds)} planned for each"
    if state.stopped_reason is not None:
        return f"the study is stopped ({one_line(state.stopped_reason)}), with {have}."
    if state.concluded_reason is not None:
        return f"the study ended before this hypothesis was judged ({one_line(state.concluded_reason)}), with {have}."
    return f"the study is not finished; there are {have}."


ASK_RULE: Final = "ask on while level and budget tell something"
"""The rule of the decision that no further question is asked, as the loop writes it down."""
IN_WORDS: Final = "nothing more is asked, in the words of "
"""How its reason begins where a planner ends the inquiry; what follows is the planner's."""


def why_ended(state: StudyState) -> str:
    """Return why no further round followed, with the words in which it was decided; or how far the inquiry is."""
    asked = f"round {state.round} of at most {state.most_rounds}"
    if state.concluded_reason is None:
        if state.stopped_reason is not None:
            return f"The inquiry was stopped in {asked} ({one_line(state.stopped_reason)})."
        return f"The inquiry is in {asked}; nobody has said yet that it is the last."
    if state.given_up:
        return f'The next round was given up: "{one_line(state.concluded_reason)}".'
    if words_at_end(state):
        return f"After {asked}, its planner asked no further one, in words that stand below the rounds."
    if (reason := _decision_reason(state, ASK_RULE, "end")) is not None:
        return f'After {asked}, no further one was asked: "{reason}".'
    if state.round >= state.most_rounds:
        return f"All {plural(state.most_rounds, 'round')} that the first lock allows were asked."
    return f"After {asked}, no further one was asked: {_exhausted_limit(state)}."


def words_at_end(state: StudyState) -> str:
    reason = _decision_reason(state, ASK_RULE, "end") or ""
    return reason.removeprefix(IN_WORDS) if reason.startswith(IN_WORDS) else ""


def ask_on(state: StudyState) -> NextQuestion:
    """Return what to ask next: how the inquiry goes on, or what its last judged round leaves open."""
    return ask_next(state if state.concluded_reason is None or state.asked_next is not None else last_judged(state))


def last_judged(state: StudyState) -> StudyState:
    judged = next((each for each in reversed(state.rounds) if each.verdicts), state)
    return replace(judged, declined=False) if judged.verdicts else judged


def _exhausted_limit(state: StudyState) -> str:
    stops = [d.reason for d in state.decisions if d.hypothesis is None and d.action == "stop"]
    if stops:
        return f'the budget was used up ("{one_line(stops[-1])}")'
    most = state.settings.get("max_runs")
    if most is not None and len(state.every_run) >= int(most):
        return f"all {plural(int(most), 'run')} that were allowed are used up"
    return f'"{one_line(str(state.concluded_reason))}"'


def _decision_reason(state: StudyState, rule: str, action: str) -> str | None:
    found = [one_line(d.reason) for d in state.decisions if (d.rule, d.action) == (rule, action)]
    return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class KnownClaim:
    """What one claim of a round came to, in code's words with its numbers."""

    round: int
    verdict: str
    label: str
    sentence: str


@dataclass(frozen=True, slots=True)
class CampaignAnswer:
    """The first lines of a report on an inquiry, in the order in which they are read."""

    warnings: tuple[str, ...]
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


def campaign_answer(state: StudyState, evidence: Mapping[int, Evidence]) -> CampaignAnswer:
    """Return the first lines; `evidence` is that of each round by its number."""
    heads = [headline(each, _of(each, evidence).lock_error) for each in every_state(state)]
    return CampaignAnswer(
        warnings=tuple(dict.fromkeys(line for head in heads for line in head.warnings)),
        asked=heads[0].question.asked,
        not_tested=tuple(dict.fromkeys(line for head in heads for line in head.question.not_tested)),
        known=tuple(_list_known_claims(state)),
        ruled_out=tuple(_list_ruled_out(state)),
        surprises=tuple(
            f"Round {each.round}: {said}" for each in state.rounds for said in list_surprises(each, _of(each, evidence))
        ),
        recipe=describe_recipe(state),
        next=ask_on(state),
        ended=why_ended(state),
        over=state.concluded_reason is not None,
    )


def describe_recipe(state: StudyState) -> tuple[str, ...]:
    designs = {each.round: each.design for each in state.rounds if each.design is not None}
    told = [line for recipe in recipes(state.rounds) for line in _recipe(recipe, designs)]
    confirmed = any(recipe.values for recipe in recipes(state.rounds))
    none = "Nothing was confirmed: no comparison whose last round showed that one value is better."
    return (*told, f"{LESS.capitalize()}.") if confirmed else (none, *told)


def _of(state: StudyState, evidence: Mapping[int, Evidence]) -> Evidence:
    return evidence.get(state.round, Evidence({}))


def _list_known_claims(state: StudyState) -> Iterator[KnownClaim]:
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
    sentence = f"in {design.environment}, {said[:1].lower()}{said[1:]}"
    return KnownClaim(state.round, verdict.verdict, label(claim, verdict), sentence)


def _list_ruled_out(state: StudyState) -> Iterator[str]:
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
        margin = format_size(verdict.equivalence.margin, design.metric)
        yield f"{where}: a difference of {margin} or more by {describe_comparison(claim)}{sure}."
    if verdict.verdict == "refuted":
        article = "an" if claim.direction == "increase" else "a"
        yield f"{where}: {article} {claim.direction} by {describe_comparison(claim)}{sure}."


def _recipe(recipe: SettingRecipe, designs: Mapping[int, Design]) -> Iterator[str]:
    where = f"In {recipe.environment}"
    values = recipe.values
    for value in values:
        yield f"{where}: {_better(value)}."
    if len(values) > 1:
        yield (
            f"{where}, these values were not all tried together: that their effects add up was not tested."
            if any(find_untested_pairs(values, designs))
            else "Each later one was compared with the earlier ones in place."
        )
    for left in recipe.left:
        yield f"{where}: what round {left.round} showed of {describe_comparison(left.claim)} {left.why}."


def _better(value: BetterValue) -> str:
    verdict, design = value.verdict, value.design
    interval = deciding_interval(design, verdict)
    assert verdict.estimate is not None  # what shows a difference has one
    assert interval is not None
    sign = 1 if (verdict.estimate > 0) == design.metric.higher_is_better else -1
    low, high = sorted((sign * interval.low, sign * interval.high))
    seeds = plural(min(verdict.n_control, verdict.n_treatment), "fresh seed")
    return (
        f"{format_fields(value.fields)} rather than {format_fields(value.over)}: "
        f"{format_gain(design.metric, sign * verdict.estimate, low, high)} was measured (round {value.round}, "
        f"{percent(interval.level)} interval, {seeds} of each arm)"
    )
