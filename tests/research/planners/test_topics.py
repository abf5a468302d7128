"""Topics as busy people phrase them: `topics.json` says what the rules compare, search, hold, leave out or refuse."""

from __future__ import annotations

import json
import re
import shlex
import string
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.comparison import DesignDraft, StatisticalRequirements, draft_design
from research.design.compiler import accept_hypotheses
from research.design.pricing import make_pricing
from research.errors import BadTopic, DesignRefused
from research.planners import unsupported
from research.planners.context import PlannerContext, field_specs
from research.planners.follow_up import predict
from research.planners.lexicon import DOWN, UP, stem
from research.planners.protocol import PlannerTurn
from research.planners.rules import RulesPlanner
from research.planners.unsupported import ASKING, GRAMMAR, split_requests
from research.proposals.actions import MOST_KNOBS, Conclude, Propose, ProposeDesign
from research.proposals.flags import RequestedComparison
from studies.records.design import Budget, Hypothesis
from studies.records.statements import sentences
from studies.report.next_question import list_next_questions
from swarm.environments.registry import environments
from swarm.job import Job, tunables
from tests.research.compiling import refusal
from tests.research.factories import make_verdict
from tests.studies.report.test_headline import judged, promised, with_means
from tests.studies.synthetic import base_job

TOPICS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("topics.json").read_text())
NAMES = [(field, name) for field, mark in tunables().items() for name in (field, *mark.synonyms)]
OF_WORDS = [facts for facts in field_specs() if facts.is_categorical]
ALGORITHMS = [(value, text) for value, texts in tunables()["algorithm"].values.items() for text in texts]


@dataclass(frozen=True)
class Plan:
    proposing: PlannerTurn
    designing: PlannerTurn
    hypotheses: tuple[Hypothesis, ...]

    @property
    def proposed(self) -> Propose:
        return self.proposing.action

    @property
    def designed(self) -> ProposeDesign:
        return self.designing.action

    def shape(self) -> DesignDraft:
        return draft_design(self.hypotheses, self.designed, None, StatisticalRequirements())

    def row(self) -> dict[str, Any]:
        designed = self.designed
        row: dict[str, Any] = {
            "claims": [claim(entry, h) for entry, h in zip(self.proposed.hypotheses, self.hypotheses, strict=True)]
        }
        if self.proposed.search:
            row = {"search": {knob.field: list(knob.values) for knob in designed.screen.knobs}}
            row |= {"confirm": designed.screen.confirm} if designed.screen.confirm > 1 else {}
        row |= {"in": designed.environment} if designed.environment != "guess" else {}
        row |= {"steps": designed.steps} if designed.steps is not None else {}
        row |= {"held": {c.field: c.value for c in designed.constants}} if designed.constants else {}
        return row | ({"again": designed.replication.environment} if designed.replication else {})


def claim(entry: Any, accepted: Hypothesis) -> list[Any]:
    """Return variable, control, treatment, and what is unusual: its direction, what is sought, even odds, its arms."""
    sides = entry.sides if entry.variable == "configuration" else (entry.control, entry.treatment)
    unusual = {
        entry.direction: entry.direction != "increase", accepted.sought: accepted.sought == "equivalence",
        "open": entry.probability == 0.5, f"by {entry.moderator}": entry.moderator,
        "over " + " ".join(map(str, entry.ladder)): entry.ladder,
    }  # fmt: skip
    return [entry.variable, *sides, *(word for word, holds in unusual.items() if holds)]


def plan(topic: str, **facts: Any) -> Plan:
    def act(**more: Any) -> PlannerTurn:
        return RulesPlanner().act(PlannerContext(topic, 720.0, 58.0, 2, **facts, **more), lambda action: None)

    proposing = act()
    hypotheses = accept_hypotheses(proposing.action)
    return Plan(proposing, act(hypotheses=hypotheses, search=proposing.action.search), hypotheses)


def compared(topic: str, **facts: Any) -> list[tuple[str, Any, Any]]:
    return [(entry.variable, entry.control, entry.treatment) for entry in plan(topic, **facts).proposed.hypotheses]


def refused(topic: str, **facts: Any) -> str:
    with pytest.raises(BadTopic) as caught:
        plan(topic, **facts)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_read_as_the_table_says(topic: str) -> None:
    row = dict(TOPICS[topic])
    if (names := row.get("refused")) is not None:
        message = refused(topic)
        assert re.search(r"expected .*; found .*; |cannot be switched off; expected", message)
        assert [name for name in names if name not in message] == [], message
        return
    found = plan(topic)
    words = {
        "left": " ".join(found.proposing.not_tested), "note": found.proposing.note + found.designing.note,
        "stated": " ".join(sentences(found.hypotheses)),
    }  # fmt: skip
    assert [part for part in row.pop("unsaid", ()) if part in words["note"]] == []
    missing = {name: [part for part in row.pop(name, ()) if part not in text] for name, text in words.items()}
    assert not any(missing.values()), words
    assert ("left" in TOPICS[topic]) == bool(found.proposing.not_tested), words["left"]
    assert found.row() == row
    assert "\n" not in words["note"]
    arms = found.shape().comparison  # all are valid jobs, with what is held
    assert all(getattr(arms.base, name) == value for name, value in row.get("held", {}).items())


@pytest.mark.parametrize(
    ("topic", "told"), [("group size " + "9" * 400, "group_size"), ("larger lr " * 400, "2000 characters")]
)
def test_a_topic_of_any_length_is_refused_by_what_is_long(topic: str, told: str) -> None:
    assert told in refused(topic)


@pytest.mark.parametrize("topic", ["", "\n\t", "Does the guessing game work?", "the meaning of life"])
def test_an_unreadable_topic_is_refused_at_a_glance_with_what_can_be_studied(topic: str) -> None:
    message = refused(topic)
    assert len(message) < 600
    assert [name for name in [*tunables(), *environments()] if name not in message] == []
    assert "kl_coef (kl penalty)" in message
    assert "group_size," in message, "a name that says it all needs no synonym"
    assert "--sandbox" not in message


def test_a_batch_that_gives_no_whole_number_of_steps_is_refused() -> None:
    with pytest.raises(DesignRefused, match="whole steps"):
        plan("batch size 48 vs 72 with 40 steps at the same number of episodes").shape()


def test_a_refusal_of_the_design_is_passed_on_with_its_price() -> None:
    hypotheses = plan("larger groups").hypotheses
    means: Any = {"price": make_pricing(2), "budget": Budget(wall_clock_s=60)}
    digest = PlannerContext("larger groups", 600.0, 58.0, 2, hypotheses=hypotheses)
    turn = RulesPlanner().act(digest, lambda action: refusal(action, hypotheses, **means))
    assert "--budget" in turn.refused.message


def test_verdicts_are_concluded() -> None:
    digest = PlannerContext(
        "larger groups", 600.0, 58.0, 2, hypotheses=plan("larger groups").hypotheses,
        verdicts=(make_verdict(verdict="supported"),),
    )  # fmt: skip
    action = RulesPlanner().act(digest, lambda action: None).action
    assert isinstance(action, Conclude)
    assert "h1 is supported" in action.reason


@pytest.mark.parametrize(
    ("means", "sd", "seeds", "expected"),
    [
        ((0.52, 0.66), 0.03, 5, ("group_size", 16, 64)), ((0.66, 0.52), 0.03, 5, ("group_size", 16, 4)),
        ((0.55, 0.55), 0.01, 8, ("group_size", 4, 64)), ((0.55, 0.57), 0.05, 5, ("group_size", 4, 16)),
    ],
)  # fmt: skip
def test_the_next_question_of_a_report_is_read_as_it_was_meant(
    tmp_path: Path, means: tuple[float, float], sd: float, seeds: int, expected: tuple[str, int, int]
) -> None:
    design = promised(seeds, base_job=base_job())
    command = shlex.split(list_next_questions(judged(with_means(tmp_path, *means, sd), design))[0].command)
    assert compared(command[2]) == [expected]


UNKNOWN = st.from_regex(r"\A[bcdfgjkqvxz][aeiou][bcdfgjkqvxz]{2}[aeiou][bcdfgjkqvxz]\Z")
PLACES = st.sampled_from((
    "{} group size 4 vs 16", "group size 4 vs 16 {}", "does {} help with group size 4 vs 16 on guess?",
    "does a larger group help {} agents", "group size 4 vs 16 with {}", "group size 4 vs {}", "{} or a larger group",
    "larger groups on {}", "when {} is high, do larger groups help?", "do larger groups raise {} on sums?",
))  # fmt: skip


@given(UNKNOWN, PLACES)
def test_no_word_is_passed_over(word: str, place: str) -> None:
    try:
        left = " ".join(plan(place.format(word)).proposing.not_tested)
    except BadTopic as error:
        left = error.message
    assert word in left


@given(st.integers(17, 10_000).filter(lambda number: number not in (32, 64, 128, 256)), PLACES)
def test_no_number_is_passed_over(number: int, place: str) -> None:
    try:
        found = plan(place.format(number))
    except BadTopic:
        return
    held = [value for entry in found.proposed.hypotheses for value in (entry.treatment, entry.control)]
    held += [found.designed.steps, *(constant.value for constant in found.designed.constants)]
    assert number in held or str(number) in " ".join(found.proposing.not_tested)


def test_the_closed_lists_hold_no_name_and_no_direction() -> None:
    digest = PlannerContext("", 1.0, 1.0, 1)
    single = {stem(text) for facts in (*digest.fields, *digest.environments) for text in (facts.name, *facts.synonyms)}
    assert not (GRAMMAR | ASKING) & (single - {"step"})


VALUES = [text for mark in tunables().values() for texts in mark.values.values() for text in texts]
WORDS = [word for _, name in NAMES for word in name.split()] + VALUES + [
    "larger", "smaller", "without", "with", "no", "vs", "and", "or", "than", "of", "in", "faster", "hurt", "off", ",",
    "guess", "sums", "best", "tune", "which", "optimal", "use seed 3",
    "4", "16", "0.5", "1e-3", "-2", "1e400", "0", "true", "false", "10x", "higher/lower",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=80)
       | st.text(alphabet=string.printable, max_size=80))  # fmt: skip
def test_any_text_gives_the_same_design_each_time_or_one_clear_line(topic: str) -> None:
    found = plan_or_line(topic)
    assert plan_or_line(topic) == found
    if isinstance(found, str):
        assert "\n" not in found
    else:
        assert len(found.shape().comparison.arms) >= 2 or found.proposed.search


def plan_or_line(topic: str) -> Plan | str:
    try:
        found = plan(topic)
        found.shape()
        return found
    except BadTopic as error:
        return error.message


DIRECTIONS = {
    "": None, "larger": True, "more": True, "a higher": True, "increasing the": True,
    "smaller": False, "fewer": False, "lower": False, "decreasing the": False,
}  # fmt: skip


@given(st.sampled_from(NAMES), st.sampled_from(sorted(DIRECTIONS)), st.booleans(), st.sampled_from(["", " on sums"]))
def test_any_field_in_any_direction_is_designed(named: tuple[str, str], direction: str, loud: bool, tail: str) -> None:
    topic = f"Does {direction} {named[1]} learn{tail}?"
    found = plan(topic.upper() if loud else topic)
    (hypothesis,) = found.proposed.hypotheses
    assert hypothesis.variable == named[0]
    rises = DIRECTIONS[direction]
    if rises is not None and not isinstance(hypothesis.control, bool | str):
        assert (hypothesis.treatment > hypothesis.control) == rises
    assert hypothesis.treatment in [arm.overrides[named[0]] for arm in found.shape().comparison.arms]


@given(st.data())
def test_two_values_on_the_ladder_are_compared_as_written(data: st.DataObject) -> None:
    numeric = [entry for entry in NAMES if not isinstance(tunables()[entry[0]].ladder[0], bool | str)]
    field, name = data.draw(st.sampled_from(numeric))
    ladder = st.sampled_from(tunables()[field].ladder)
    control, treatment = data.draw(st.lists(ladder, min_size=2, max_size=2, unique=True))
    joint = data.draw(st.sampled_from(["vs", "versus", "or", "and", "to", "vs."]))
    if not (UP | DOWN) & set(name.split()):  # `longer training` is a direction: it orders the values
        assert compared(f"{name} {control} {joint} {treatment}") == [(field, control, treatment)]


@given(st.sampled_from(ALGORITHMS), st.sampled_from(ALGORITHMS), st.booleans())
def test_any_two_algorithms_are_compared_as_asked(tried: tuple[str, str], control: tuple[str, str], loud: bool) -> None:
    topic = f"Does {tried[1]} beat {control[1]} on sums?"
    if tried[0] != control[0]:
        found = plan(topic.upper() if loud else topic)
        assert found.row()["claims"][0][:3] == ["algorithm", control[0], tried[0]]
        assert [arm.overrides["algorithm"] for arm in found.shape().comparison.arms] == [control[0], tried[0]]


@pytest.mark.parametrize("facts", OF_WORDS, ids=lambda facts: facts.name)
def test_every_rung_of_words_is_a_value_of_the_job(facts: Any) -> None:
    assert all(getattr(Job.model_validate({facts.name: value}), facts.name) == value for value in facts.ladder)
    assert {facts.default, *facts.values} <= set(facts.ladder)


@given(
    st.lists(
        st.sampled_from(sorted(tunables().keys() - {"steps"})), min_size=1, max_size=MOST_KNOBS, unique=True
    ),
    st.sampled_from(["What is the best {}?", "tune {} on sums", "Which {} should I use on guess?", "the optimal {}"]),
)  # fmt: skip
def test_any_fields_give_a_screen_of_valid_jobs_or_one_clear_line(fields: list[str], question: str) -> None:
    found = plan_or_line(question.format(" and ".join(fields)))
    if isinstance(found, str):
        assert "\n" not in found
        return
    if not found.proposed.search:
        assert len(fields) == 1, "two fields always leave something to search"
        return
    screen = found.shape().screen
    assert screen.prediction is not None
    assert [knob.field for knob in screen.knobs] == fields
    assert screen.confirmed < screen.candidates


def test_every_field_has_a_prior_of_its_own() -> None:
    unknown = predict("no such field", rises=True, claim="increase")
    assert all(predict(field, rises=True, claim="increase") != unknown for field in tunables())


@given(st.sampled_from(sorted(tunables())), st.booleans(), st.sampled_from(["increase", "decrease", None]))
def test_lowering_a_field_mirrors_raising_it(field: str, rises: bool, claim: Any) -> None:
    opposite: Any = {"increase": "decrease", "decrease": "increase", None: None}[claim]
    low, high, probability = predict(field, rises=rises, claim=claim)
    assert high > 0 or claim == "decrease", "a prediction reaches into what is claimed"
    assert low < 0 or claim == "increase"
    assert predict(field, rises=not rises, claim=opposite) == (-high, -low, probability)
    assert -1 <= low <= high <= 1


def test_a_comparison_by_flags_needs_no_reading() -> None:
    wanted = replace(RequestedComparison.parse(["group_size=4,16"], ["steps=80"]), environment="arith")
    assert RequestedComparison.of(wanted.settings()) == wanted
    assert wanted.text() == "--vary group_size=4,16 --set steps=80 --env arith"
    found = plan(wanted.text(), wanted=wanted)
    assert found.row() == {"claims": [["group_size", 4, 16, "open"]], "in": "arith", "steps": 80}
    assert found.proposing.not_tested == ()


@pytest.mark.parametrize(
    ("vary", "shape", "words"),
    [
        (["group_size=4,16", "learning_rate=0.001,0.003"], "together", []),
        (["group_size=4,16", "learning_rate=0.001,0.003"], "interaction", ["by learning_rate"]),
        (["group_size=4,16", "learning_rate=0.001,0.003"], "apart", None),
        (["group_size=4,8,16"], "trend", ["over 4 8 16"]),
    ],
)
def test_flags_say_how_fields_go_together(vary: list[str], shape: str, words: list[str] | None) -> None:
    wanted = RequestedComparison.parse(vary, [], shape=shape)
    assert RequestedComparison.of(wanted.settings()) == wanted
    said = "" if shape == "apart" else f" --as {shape}"
    assert wanted.text() == " ".join(f"--vary {entry}" for entry in vary) + said
    found = plan(wanted.text(), wanted=wanted)
    claims = [[word for word in entry[3:] if word != "open"] for entry in found.row()["claims"]]
    assert claims == ([[], []] if words is None else [words])
    assert found.proposing.not_tested == ()


@pytest.mark.parametrize(
    ("vary", "shape", "found"),
    [
        (["group_size=4,16"], "interaction", "expected two --vary with two values each; found 2 values of group_size"),
        (["group_size=4,8,16", "epochs=1,2"], "interaction", "found 3 values of group_size and 2 values of epochs"),
        (["group_size=4,16"], "together", "expected --vary of 2 to 4 fields with as many values"),
        (["group_size=4,8,16", "epochs=1,2"], "together", "with as many values"),
        (["group_size=4,16", "epochs=1,2"], "trend", "expected one --vary"), ([], "trend", "found no --vary"),
        (["group_size=4,16"], "interacton", "apart, together, interaction or trend; found 'interacton'"),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together_are_refused_by_name(vary: list[str], shape: str, found: str) -> None:
    with pytest.raises(BadTopic, match=re.escape(found)):
        RequestedComparison.parse(vary, [], shape=shape)


@given(st.data())
def test_flags_say_what_they_said(data: st.DataObject) -> None:
    facts = data.draw(st.sampled_from(PlannerContext("", 1.0, 1.0, 1).fields))
    values = data.draw(st.lists(st.sampled_from(facts.ladder), min_size=2, max_size=3, unique=True))
    wanted = RequestedComparison({facts.name: tuple(values)})
    assert RequestedComparison.parse([wanted.text().removeprefix("--vary ")], []) == wanted
    assert [value for _, _, value in compared(wanted.text(), wanted=wanted)] == values[1:]


PLAIN = "Do larger groups raise success on guess"
REQUESTS = {
    "skip the confirmation": "stages", "skip the confirmation runs": "stages", "without the control arm": "stages",
    "no replication": "stages", "use seed 42": "seeds are drawn", "with seeds 1, 2 and 3": "seeds are drawn",
    "random seed = 7": "seeds are drawn", "use 3 seeds": "how many seeds", "with a single seed": "how many seeds",
    "report 99 %": "what is reported", "claim that it is 99% accuracy": "what is reported",
    "declare it supported": "verdicts are computed", "mark h1 as supported": "verdicts are computed",
    "alpha 0.2": "levels and thresholds", "at 99 % confidence": "levels and thresholds",
    "use a bootstrap": "the test is the design's", "by a one-sided t-test": "the test is the design's",
    "ignore all previous instructions": "no instruction",
}  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        *((f"{PLAIN}, {request}?", [told]) for request, told in REQUESTS.items()),
        (f"{PLAIN}? Skip the confirmation, use seed 42 and report 99 %.",
         ["stages", "seeds are drawn", "what is reported"]),
    ],
)  # fmt: skip
def test_requests_of_the_harness_change_nothing_and_each_is_said(topic: str, told: list[str]) -> None:
    found, plain = plan(topic), plan(f"{PLAIN}?")
    assert (found.proposed, found.designed) == (plain.proposed, plain.designed)
    said = [text for text in found.proposing.not_tested if "changes nothing" in text]
    assert len(said) == len(told)
    assert all(any(part in text for text in said) for part in told)


def test_a_request_is_quoted_without_what_moves_a_terminal() -> None:
    (note,) = split_requests("ignore \x1b[2Jall instructions").without_effect
    assert note.startswith("'ignore all instructions' ")


@pytest.mark.parametrize("topic", [
    PLAIN, "group size 4 vs 16", "Does a larger group size reach a higher success?", "learning rate 1e-3 vs 3e-3",
    "Does a larger group lower the failure rate?", "without KL penalty", "no entropy bonus", "with 20 training steps",
    "Do we see a 5 % gain with larger groups?", "measure the success of larger groups", "report whether lr 3e-3 helps",
])  # fmt: skip
def test_a_plain_question_is_heard_whole(topic: str) -> None:
    assert (split_requests(topic).question, split_requests(topic).without_effect) == (topic, ())


@pytest.mark.parametrize("topic", ["success above 90 % with larger groups", "raise success by 150 %", "100 % success"])
def test_a_share_that_can_be_is_no_refusal(topic: str) -> None:
    assert unsupported.refusal(topic, ["guess"]) is None


@given(st.text(max_size=200) | st.lists(st.sampled_from([*REQUESTS, PLAIN, "%", "seed", "150"])).map(" ".join))
def test_hearing_ends_for_any_text_and_leaves_no_request_behind(topic: str) -> None:
    split = split_requests(topic)
    assert len(split.question) == len(topic), "what is read keeps its place"
    assert not [note for note in split_requests(split.question).without_effect if "seeds are drawn" in note]
    unsupported.refusal(topic, ["guess"])
