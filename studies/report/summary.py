"""The first lines of a report: asked, tested, known, whether the topic is answered, in practice, ending.

Every sentence is written by code from the states of a study's rounds; what was decided is quoted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from studies.checks.conditions import unequal_drops
from studies.log.study import ASK_RULE, StudyState
from studies.records.design import MODEL, Design, Hypothesis
from studies.records.runs import EVIDENCE_CODES
from studies.records.statements import format_setting_value, metric_name
from studies.records.verdict import PlannerMessage, one_line, planner_label
from studies.report import wording as report_wording
from studies.report.elements import Point
from studies.report.next_question import LESS, NextQuestion, ask_next, format_gain, in_practice
from studies.report.prose import quote_held
from studies.report.wording import capital, describe_comparison, describe_trainings, finding, label, plural, setting
from studies.verdicts import wording
from studies.verdicts.recipe import BetterValue, find_untested_pairs, format_fields, recipes

IN_WORDS: Final = "nothing more is asked, in the words of "
"""How its reason begins where a planner ends the inquiry; what follows is the planner's."""

_MOST_QUESTIONS: Final = 3
EXPLORED: Final = (
    "this is an exploration: one run of each setting{}, all on one seed, evaluated on search tasks. No verdict "
    "follows, and no level is spent."
)
OF_ONE_RUN: Final = (
    "nothing follows from a difference between single runs: another seed alone may make as large a one. The curves "
    "show whether a training moves at all, and what it costs."
)


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
    """The first lines on a round, in the order they are read."""

    warnings: tuple[str, ...]
    """What was changed after it was fixed: said before anything else."""
    question: wording.StudyQuestion
    answers: tuple[HeadlineAnswer, ...]
    next: NextQuestion


def headline(state: StudyState, lock_error: str | None = None) -> Headline:
    """Return the first lines on a state; `lock_error` is what is wrong with the lock's file, None if nothing is."""
    warnings, design = [], state.design
    if lock_error is not None:
        rests = "No verdict below can be relied on" if state.verdicts else "No verdict will be claimed on it"
        warnings.append(f"{capital(lock_error)}. {rests} until the file is restored.")
    spoilt = [run.run_id for run in state.runs.values() if run.invalid and run.invalid[0] in EVIDENCE_CODES]
    if spoilt:
        said = f"Files of {plural(len(spoilt), 'run')} were changed or lost after they were collected"
        warnings.append(f"{said}: {', '.join(spoilt)}.")
    answers = tuple(_answer(state, design, claim) for claim in design.hypotheses) if design is not None else ()
    if state.explored is not None:
        of, made = len(state.explored.arms), sum(run.status == "collected" for run in state.runs_in("explore"))
        said = EXPLORED.format("" if made == of else f" ({made} of {of} were measured)")
        answers = (HeadlineAnswer("", "none", "Nothing was tested", said, OF_ONE_RUN),)
    elif not answers:
        if state.stopped_reason is not None:
            before = "a design was locked" if design is None else "its screen led to a claim"
            why = f"the study was stopped before {before} ({one_line(state.stopped_reason)})."
        elif state.concluded_reason is not None:
            said = "the study ended without a design" if design is None else "the screen led to no claim"
            why = f"{said} ({one_line(state.concluded_reason)})."
        elif design is None:
            why = "no design is locked yet; the study is still being planned."
        else:
            why = "the screen has not led to a claim yet."
        yet = "nothing follows yet: no comparison has been judged."
        answers = (HeadlineAnswer("", "none", "No verdict", why, yet),)
    return Headline(tuple(warnings), wording.question_of(state), answers, ask_next(state))


def _answer(state: StudyState, design: Design, claim: Hypothesis) -> HeadlineAnswer:
    verdict = state.verdict_on(claim.id)
    clauses = (*(wording.find_unequal_training(verdict) if verdict is not None else ()), *unequal_drops(state, claim))
    differ = f" The arms differ: {'; '.join(clauses)}." if clauses else ""
    if verdict is None:
        yet = "nothing follows yet: the comparison is not judged."
        return HeadlineAnswer(claim.id, "none", "No verdict", _why_no_verdict(state, design, claim) + differ, yet)
    said = finding(claim, verdict, design.metric, wording.deciding_interval(design, verdict))
    said += describe_trainings(verdict, design.metric) + wording.explain_apart(claim, design.metric) + differ
    if verdict.last is not None:
        said += f" This is the {wording.name_judged_look(design, verdict)}."
    elif not state.is_settled(claim.id):
        over = "ended before the next" if state.status in ("stopped", "concluded") else "goes on"
        said += f" This is look {verdict.look}; the study {over}."
    if any(choice.startswith("The metric ") for choice in list_choices(state)):
        said += " It is judged by a metric that the planner chose."
    if claim.id in state.vetoed:
        said += " It was vetoed before its last look and rests on what was there."
    if verdict.exploratory:
        said += " Exploratory: an amendment after the first result touched it."
    said += "".join(f" {capital(challenge)}." for challenge in state.challenges(claim.id))
    practice = in_practice(state, design, claim, verdict)
    return HeadlineAnswer(claim.id, verdict.verdict, label(claim, verdict), said, practice)


def _why_no_verdict(state: StudyState, design: Design, claim: Hypothesis) -> str:
    counts = []
    for value in reversed(claim.settings):
        runs = state.values(design.arm_with(claim.variable, value).name)
        counts.append(f"{plural(len(runs), 'valid run')} with {setting(claim, value)}")
    have = f"{' and '.join(counts)} so far, of {len(design.seeds)} planned for each"
    if state.stopped_reason is not None:
        return f"the study is stopped ({one_line(state.stopped_reason)}), with {have}."
    if state.concluded_reason is not None:
        return f"the study ended before this hypothesis was judged ({one_line(state.concluded_reason)}), with {have}."
    return f"the study is not finished; there are {have}."


def ask_user(state: StudyState) -> Iterator[Point]:
    by = planner_label(str(state.planner["name"]), state.planner.get("model"))
    for note in [note for note in state.notebook if note.kind == "ask"][-_MOST_QUESTIONS:]:
        said = PlannerMessage(by=f"{by} asks", text=note.text, unfounded=())
        answer = f"ajet study amend {state.id} --note '...'"
        yield Point("A question to you", quote_held(said, state.rounds), command=answer)


def describe_reproduction(state: StudyState) -> Iterator[Point]:
    """Yield what a study puts to the test again, and what became of it."""
    for each in wording.list_replications(state):
        told = f"{each['of']}, by its lock on new seeds, nothing pooled: there {each['there']}; here {each['here']}."
        yield Point("Reproduces", told, capital(each["outcome"]))


def describe_setting(state: StudyState) -> Iterator[Point]:
    """Yield by what rounds were judged, where and with which model, and what of it the planner chose unasked."""
    said, chosen = dict[str, None](), dict[str, None]()
    for each, design in ((each, each.design) for each in state.rounds if each.design is not None):
        model = design.base_job.get("model")
        by = f", with the model {format_setting_value(MODEL, model)}" if model else ""
        said[f"{metric_name(design.metric)} in {design.environment}{by}"] = None
        chosen |= dict.fromkeys(list_choices(each))
    if said:
        yield Point("Judged by", " ".join((f"{'; '.join(said)}.", *chosen)))


def list_choices(state: StudyState) -> tuple[str, ...]:
    """Return what of a round its planner chose that nobody asked for, by its last proposal and design."""
    own = {act.action: act.choices for act in state.planner_acts if act.turn.startswith(f"{state.round}/")}
    return tuple(choice for choices in own.values() for choice in choices)


def describe_answer(state: StudyState, *, untested: bool) -> tuple[str, str]:
    """Return by code whether the topic is answered, and the words to lead with: by claims that are decided."""
    claims = [(each, claim.id) for each in state.rounds if each.design for claim in each.design.hypotheses]
    judged = [(name, each.verdict_on(name)) for each, name in claims]
    left = [name for name, v in judged if v is None or v.exploratory or v.verdict in ("inconclusive", "invalid")]
    yet = "" if state.status in ("concluded", "stopped") else " yet"
    if not claims:
        return f"nothing was tested{yet}.", f"Not answered{yet}"
    text = f"{len(claims) - len(left)} of {plural(len(claims), 'claim')} decided"
    text += f", not {', '.join(left)}" if left else ""
    text += "; parts of the topic were not tested." if untested else "."
    if len(left) == len(claims):
        return text, f"Not answered{yet}"
    return text, "Answered in part" if left or untested else "Answered"


def point_out_round(head: Headline, level: str) -> Iterator[Point]:
    """Yield what a round tested, what it came to, and what a reader may do; `level` is what its tests might spend."""
    several = len(head.answers) > 1
    for sentence in head.question.tested:
        yield Point("Tested", sentence)
    for answer in head.answers:
        of = f", {answer.hypothesis}" if several else ""
        yield Point(f"Verdict{of}", answer.sentence, answer.label, answer.verdict)
    for answer in head.answers:
        yield Point(f"In practice{f', {answer.hypothesis}' if several else ''}", capital(answer.practice))
    if level:
        yield Point("Level", level)


def point_out_study(state: StudyState, answer: Point) -> Iterator[Point]:
    """Yield what is known over all rounds and what not, whether that is an answer, and what follows from it."""
    for each in state.rounds:
        name, design = f"Known, round {each.round}", each.design
        for claim in headline(each).answers:
            known, sentence = each.verdict_on(claim.hypothesis), claim.sentence
            if design is not None and known is not None:
                tested = design.hypothesis(claim.hypothesis)
                numbers = finding(tested, known, design.metric, wording.deciding_interval(design, known))
                sentence = f"in {design.environment}, {numbers[:1].lower()}{numbers[1:]}"
            undecided = claim.verdict in ("none", "inconclusive", "invalid")
            yield Point(f"Not known, round {each.round}" if undecided else name, sentence, claim.label, claim.verdict)
    for each in state.given_up:
        yield Point(f"Known, round {each.round}", "it came to no lock: nothing was tested in it.", "Given up", "none")
    yield answer
    yield from (Point("Best recipe", sentence) for sentence in describe_recipe(state))
    yield Point("Why it ended" if state.concluded_reason is not None else "How far it is", why_ended(state))


def describe_recipe(state: StudyState) -> tuple[str, ...]:
    """Return the values to take in each environment, and of what was shown why it is not taken."""
    designs = {each.round: each.design for each in state.rounds if each.design is not None}
    told, confirmed = [], False
    for recipe in recipes(state.rounds):
        where, values = f"In {recipe.environment}", recipe.values
        told += [f"{where}: {_better(value)}." for value in values]
        if any(find_untested_pairs(values, designs)):
            told.append(f"{where}, these values were not all tried together: that their effects add up was not tested.")
        elif len(values) > 1:
            told.append("Each later one was compared with the earlier ones in place.")
        for left in recipe.left:
            told.append(f"{where}: what round {left.round} showed of {describe_comparison(left.claim)} {left.why}.")
        confirmed = confirmed or bool(values)
    none = "Nothing was confirmed: no comparison whose last round showed that one value is better."
    return (*told, f"{LESS.capitalize()}.") if confirmed else (none, *told)


def _better(value: BetterValue) -> str:
    verdict, metric = value.verdict, value.design.metric
    interval = wording.deciding_interval(value.design, verdict)
    assert verdict.estimate is not None  # what shows a difference has one
    assert interval is not None
    seeds = plural(min(verdict.n_control, verdict.n_treatment), "fresh seed")
    return (
        f"{format_fields(value.fields)} rather than {format_fields(value.over)}: "
        f"{format_gain(metric, verdict.estimate, interval)} was measured (round {value.round}, "
        f"{report_wording.percent(interval.level)} interval, {seeds} of each arm)"
    )


def last_judged(state: StudyState) -> StudyState:
    judged = next((each for each in reversed(state.rounds) if each.verdicts), state)
    return replace(judged, declined=False) if judged.verdicts else judged


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
    if reason := _reason_at_end(state):
        return f'After {asked}, no further one was asked: "{reason}".'
    if state.round >= state.most_rounds:
        return f"All {plural(state.most_rounds, 'round')} that the first lock allows were asked."
    stops = [d.reason for d in state.decisions if d.hypothesis is None and d.action == "stop"]
    limit, most = f'"{one_line(state.concluded_reason)}"', state.settings.get("max_runs")
    if stops:
        limit = f'the budget was used up ("{one_line(stops[-1])}")'
    elif most is not None and len(state.every_run) >= int(most):
        limit = f"all {plural(int(most), 'run')} that were allowed are used up"
    return f"After {asked}, no further one was asked: {limit}."


def words_at_end(state: StudyState) -> str:
    """Return the planner's words with which it asked nothing more; empty where it did not end the inquiry."""
    reason = _reason_at_end(state)
    return reason.removeprefix(IN_WORDS) if reason.startswith(IN_WORDS) else ""


def _reason_at_end(state: StudyState) -> str:
    return next((one_line(d.reason) for d in state.decisions[::-1] if (d.rule, d.action) == (ASK_RULE, "end")), "")
