"""Topics as busy people phrase them: `topics.json` says what the grammar understands, leaves and refuses."""

from __future__ import annotations

import json
import re
import shlex
import string
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.controller.options import ResearchOptions, ask_on_terminal, make_request, require_understood
from research.design.comparison import DesignDraft, StatisticalRequirements, draft_design
from research.design.compiler import accept_hypotheses
from research.errors import BadInput, BadTopic, DesignRefused
from research.planners.context import PlannerContext, PlannerTurn, known_environments
from research.planners.lexicon import name_environments
from research.planners.rules import RulesPlanner
from research.planners.topic import judge_by, parse_topic
from research.proposals.actions import Propose, ProposeDesign
from research.proposals.flags import ParsedTopic, RequestedComparison
from research.proposals.metric_choice import RequestedMetric
from studies.records.design import Hypothesis
from swarm.job import tunables
from tests.research.factories import make_environment

TOPICS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("topics.json").read_text())
PLANNED = [topic for topic, row in TOPICS.items() if not row.keys() & {"left", "refused"}]
NAMES = [(field, name) for field, mark in tunables().items() for name in (field, *mark.synonyms)]
NO_FLAGS = RequestedComparison()


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

    def claims(self) -> list[tuple[Any, ...]]:
        """Return of each claim variable, sides and what is unusual: open, equivalence, decrease."""
        claims = []
        for entry, accepted in zip(self.proposed.hypotheses, self.hypotheses, strict=True):
            words = (entry.direction, accepted.sought, "open" if entry.probability == 0.5 else "")
            unusual = [word for word in words if word in ("decrease", "equivalence", "open")]
            claims.append((entry.variable, entry.control, entry.treatment, *unusual))
        return claims


def plan(topic: str, **facts: Any) -> Plan:
    facts = {"parsed": parse_topic(topic, wanted=facts.get("wanted")), **facts} if "wanted" not in facts else facts

    def act(**more: Any) -> PlannerTurn:
        return RulesPlanner().act(PlannerContext(topic, 720.0, 58.0, 2, **facts, **more), lambda action: None)

    proposing = act()
    hypotheses = accept_hypotheses(proposing.action)
    return Plan(proposing, act(hypotheses=hypotheses, search=proposing.action.search), hypotheses)


def refused(topic: str, metric: RequestedMetric | None = None) -> str:
    with pytest.raises(BadTopic) as caught:
        RulesPlanner().act(PlannerContext(topic, 720.0, 58.0, 2, requested_metric=metric), lambda action: None)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_understood_as_the_table_says(topic: str) -> None:
    row = TOPICS[topic]
    if "refused" in row:
        message = refused(topic)
        assert re.search(r"expected .*; found .*; |cannot be switched off; expected", message)
        assert [name for name in row["refused"] if name not in message] == [], message
        return
    parsed = parse_topic(topic)
    claims = " ".join(filter(None, (parsed.claim, "equivalence" if parsed.equivalence else "")))
    assert (parsed.command(NO_FLAGS), claims, parsed.left) == (
        f"ajet research {row['asks']}", row.get("claims", ""), tuple(row.get("left", ()))
    )  # fmt: skip
    assert ParsedTopic.of(json.loads(json.dumps(parsed.settings()))) == parsed
    if parsed.left:
        message = refused(topic, parsed.metric)
        assert [text for text in (*parsed.left, row["asks"]) if text[:70] not in message] == []
        return
    found = plan(topic)
    assert f"ajet research {row['asks']}" in found.proposing.note
    assert {entry.sought for entry in found.proposed.hypotheses} <= (
        {"equivalence"} if parsed.equivalence else {"difference"} if parsed.claim else {"either"}
    )
    arms = found.shape().comparison  # all are valid jobs, with what is held
    assert all(getattr(arms.base, name) == value for name, value in parsed.held.items())


@pytest.mark.parametrize("topic", PLANNED)
def test_what_a_topic_is_understood_as_asks_the_same_when_it_is_pasted(topic: str) -> None:
    parsed, words = parse_topic(topic), shlex.split(TOPICS[topic]["asks"])
    if words[0] != "--vary":
        said = parse_topic(words[0])
    else:
        flags = [(flag, value) for flag, value in zip(words[::2], words[1::2], strict=True)]
        given = {name: [value for flag, value in flags if flag == name] for name in ("--vary", "--set", "--env")}
        wanted = RequestedComparison.parse(given["--vary"], given["--set"])
        said = ParsedTopic.from_flags(replace(wanted, environment=next(iter(given["--env"]), None)))
    ignored = {"claim": None, "equivalence": False, "metric": None}
    assert said.model_copy(update=ignored) == parsed.model_copy(update=ignored)


@pytest.mark.parametrize(("said", "left"), [(None, True), (False, True), (True, False)])
def test_a_topic_that_is_half_understood_is_studied_after_a_yes_alone(said: bool | None, left: bool) -> None:
    topic = "Does group size 16 outperform 4 at equal wall-clock time on guess?"
    request = make_request(ResearchOptions(topic=topic), lambda line: None)
    asked: list[str] = []

    def ask(parsed: ParsedTopic, command: str) -> bool:
        asked.append(command)
        return bool(said)

    if left:
        with pytest.raises(
            BadTopic,
            match=r"found 'at equal'; if the rest, asked openly for either direction, .* run: "
            r"ajet research --vary group_size=4,16 --env guess",
        ):
            require_understood(request, None if said is None else ask)
    else:
        require_understood(request, ask)
        assert plan(topic, parsed=request.parsed).proposing.not_tested == ("'at equal'",)
    assert len(asked) == (said is not None)


def test_an_effect_is_one_of_the_metric_that_the_topic_asks_for() -> None:
    asked = ResearchOptions(topic="Does a larger group size make GRPO learn the guessing game faster?", effect=728)
    assert make_request(asked, print).requirements.effect == 728
    named = (make_request(asked.model_copy(update={"power": power}), print) for power in (None, 0.8))
    assert [request.requirements.power_named for request in named] == [False, True]
    with pytest.raises(DesignRefused):
        make_request(ResearchOptions(topic="group size 4 vs 16", effect=728), print)


def test_what_is_asked_by_flags_says_how_long_runs_may_become() -> None:
    asked = ResearchOptions(vary=["group_size=4,16"], env="guess", metric=["success"], extend_to=90)
    told = "--vary group_size=4,16 --env guess --metric success --extend-to 90"
    assert make_request(asked, lambda line: None).topic == told


def test_fewer_runs_than_any_study_has_are_refused_wherever_they_are_said() -> None:
    with pytest.raises(BadInput, match="--max-runs: expected at least 4; found 3"):
        make_request(ResearchOptions(topic="group size 4 vs 16", max_runs=3), lambda line: None)


@pytest.mark.parametrize(
    ("topic", "more", "told"),
    [
        ("best learning rate on guess", {}, "--vary learning_rate=0.0003,0.001,0.003 --env guess --explore"),
        ("group size 4 vs 16", {"rounds": 3}, "--explore without --rounds"),
        ("group size 4 vs 16", {"extend_to": 90}, "--explore without --extend-to"),
        ("group size 4 vs 16", {"mediator": ["logged:actor/entropy:last=increase"]}, "--explore without --mediator"),
    ],
)
def test_what_makes_no_sense_where_nothing_is_tested_is_refused(topic: str, more: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=re.escape(told)) as refused:
        make_request(ResearchOptions(topic=topic, explore=True, **more), lambda line: None)
    assert "\n" not in refused.value.message
    assert make_request(ResearchOptions(topic="group size 4 vs 16", explore=True, effect=0.2), print).explore


@pytest.mark.parametrize(("terminal", "yes"), [(False, True), (True, True), (True, False)])
def test_a_person_at_a_terminal_is_shown_both_parts_and_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, yes: bool
) -> None:
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("typer.confirm", lambda question, **how: yes and question == "Study this?")
    parsed = parse_topic("do groups of 16 beat groups of 4 after lunch")
    assert ask_on_terminal(parsed, parsed.command(NO_FLAGS)) == (terminal and yes)
    shown = capsys.readouterr().err
    assert ("ajet research --vary group_size=4,16" in shown and "'after lunch'" in shown) == terminal
    assert ("what is tried is better" in shown) == terminal


def test_what_is_pasted_keeps_all_else_that_was_asked() -> None:
    asked = ResearchOptions(
        topic="group size 4 vs 16 after lunch", env="arith", budget="2h", metric=["episodes:0.9"], max_runs=8
    )
    request = make_request(asked, lambda line: None)
    flags = "--vary group_size=4,16 --env arith --budget 2h --max-runs 8 --metric episodes:0.9"
    for verb in ("research", "study plan"):
        with pytest.raises(BadTopic, match=f"what you mean, run: ajet {verb} {flags}; else"):
            require_understood(request, None, asked, verb)


def test_what_cannot_be_planned_is_neither_pasted_nor_asked() -> None:
    request = make_request(ResearchOptions(topic="group size 4 vs -16 after lunch"), lambda line: None)
    with pytest.raises(BadTopic) as caught:
        require_understood(request, lambda parsed, command: pytest.fail("asked"))
    assert "run: ajet" not in caught.value.message
    assert "not understood besides: " in caught.value.message


@pytest.mark.parametrize(
    ("topic", "metric", "left"),
    [
        ("Does a larger group size make GRPO learn the guessing game faster?", "episodes:0.6", ()),
        ("does RLOO reach 80 percent in fewer episodes than GRPO?", "episodes:0.8", ()),
        ("is lr 1e-3 faster than 3e-3 to 0.9?", "episodes:0.9", ()),
        ("which needs the fewest episodes to reach 85 % hidden success, lr 1e-3 or 3e-3?", "episodes:0.85", ()),
        ("group size 4 vs 16, wall-clock to 0.7 on guess", "seconds:0.7", ()),
        ("group size 4 vs 16 by area under the learning curve", "area", ("by",)),
        ("is a larger group more expensive?", "tokens", ()),
        ("are larger groups less stable on arith?", "collapse", ()),
        ("does a larger group on guess generalise better to arith?", "transfer:arith", ()),
        ("does a larger group raise the final score?", None, ()),
        ("does a larger group learn faster and end higher?", "episodes:0.6", ("higher",)),
        ("is a larger group cheaper and more stable?", "tokens", ("more stable",)),
        ("does a larger group reach 70 %?", None, ("reach 70 %",)),
        ("does a larger group learn 20 % faster?", "episodes:0.6", ("20 %",)),
    ],
)
def test_a_topic_is_judged_by_the_first_metric_that_it_names(
    topic: str, metric: str | None, left: tuple[str, ...]
) -> None:
    parsed = parse_topic(topic)
    assert (None if parsed.metric is None else parsed.metric.text, parsed.left) == (metric, left)
    other = judge_by(parsed, RequestedMetric.parse("reward"))
    assert (other.metric, len(other.left)) == (None, len(left) + (metric is not None))


@pytest.mark.parametrize(
    ("topic", "told"), [("group size " + "9" * 400, "group_size"), ("larger lr " * 400, "2000 characters")]
)
def test_a_topic_of_any_length_is_refused_by_what_is_long(topic: str, told: str) -> None:
    assert told in refused(topic)


def test_batches_at_equal_episodes_need_whole_steps() -> None:
    with pytest.raises(DesignRefused, match="whole steps"):
        plan("batch size 48 vs 72 with 40 steps at the same number of episodes").shape()


UNKNOWN = st.from_regex(r"\A[bcdfgjkqvxz][aeiou][bcdfgjkqvxz]{2}[aeiou][bcdfgjkqvxz]\Z")
PLACES = st.sampled_from((
    "{} group size 4 vs 16", "group size 4 vs 16 {}", "does {} help with group size 4 vs 16 on guess?",
    "does a larger group help {} agents", "group size 4 vs 16 with {}", "group size 4 vs {}", "{} or a larger group",
    "larger groups on {}", "when {} is high, do larger groups help?", "do larger groups raise {} on sums?",
    "best group size for {}", "which {} is best, group size 4, 8 or 16?", "does guess learn faster to {} with lr 3e-3?",
))  # fmt: skip
DANGEROUS = st.sampled_from((
    "only", "if", "when", "after", "until", "equal", "per", "without", "decay", "schedule", "not", "never", "except",
    "unless", "while", "before", "each", "7b", "10x", "first", "half", "twice", "same", "fixed", "total", "too", "most",
))  # fmt: skip


@given(UNKNOWN | DANGEROUS, PLACES)
def test_no_word_is_passed_over(word: str, place: str) -> None:
    try:
        left = " ".join(parse_topic(place.format(word)).left)
    except BadTopic as error:
        left = error.message
    assert word in left


@given(st.integers(17, 10_000).filter(lambda number: number not in (32, 64, 128, 256)), PLACES)
def test_no_number_is_passed_over(number: int, place: str) -> None:
    try:
        parsed = parse_topic(place.format(number))
    except BadTopic:
        return
    values = [value for values in parsed.vary.values() for value in values]
    assert number in [*values, *parsed.held.values()] or str(number) in " ".join(parsed.left)


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


@pytest.mark.parametrize(("topic", "claim", "design"), [
    ("group size 3 vs 6", ("group_size", 3, 6, "open"), {"held": {"episodes_per_step": 126}}),
    ("batch size 100 vs 50", ("episodes_per_step", 100, 50, "open"), {"held": {"group_size": 5}}),
    ("Does clip-higher help?", ("clip_ratio_high", 0.2, 0.4), {"held": {"minibatches": 4}}),
    ("Is GSPO better than GRPO with 2 epochs on arith?", ("algorithm", "grpo", "gspo"),
     {"environment": "arith", "held": {"epochs": 2}}),
    ("k1 vs k3 estimator", ("kl_estimator", "k3", "k1", "open"), {"held": {"kl_coef": 0.1}}),
    ("batch size 64 vs 256 at equal episodes", ("episodes_per_step", 64, 256, "open"), {"steps": 80}),
    ("larger lr on arith, replicated in guess", ("learning_rate", 0.0003, 0.003, "open"),
     {"environment": "arith", "replication": {"environment": "guess"}}),
    ("do larger groups hurt", ("group_size", 4, 16, "decrease"), {}),
    ("a larger group makes no difference", ("group_size", 4, 16, "equivalence", "open"), {}),
])  # fmt: skip
def test_a_comparison_has_what_it_takes_to_show_anything(
    topic: str, claim: tuple[Any, ...], design: dict[str, Any]
) -> None:
    found = plan(topic)
    assert found.claims() == [claim]
    designed = found.designed.model_dump(exclude_defaults=True)
    held = {entry["field"]: entry["value"] for entry in designed.pop("constants", ())}
    assert designed | ({"held": held} if held else {}) == {"environment": "guess", **design}


def test_a_search_goes_over_the_ladder_and_confirms_as_many_as_are_asked_for() -> None:
    screen = plan("find the two best group sizes").designed.screen
    assert [(knob.field, knob.values) for knob in screen.knobs] == [("group_size", (2, 4, 8, 16))]
    assert screen.confirm == 2


TWO = ["group_size=4,16", "learning_rate=0.001,0.003"]


@pytest.mark.parametrize(("vary", "shape", "kinds"), [
    (TWO, "together", [("", ())]), (TWO, "interaction", [("learning_rate", ())]), (TWO, "apart", [("", ())] * 2),
    (["group_size=4,8,16"], "trend", [("", (4, 8, 16))]),
])  # fmt: skip
def test_flags_say_how_fields_go_together(vary: list[str], shape: str, kinds: list[tuple[str, Any]]) -> None:
    wanted = RequestedComparison.parse(vary, [], shape=shape)
    assert RequestedComparison.of(wanted.settings()) == wanted
    said = "" if shape == "apart" else f" --as {shape}"
    assert wanted.text() == " ".join(f"--vary {entry}" for entry in vary) + said
    found = plan(wanted.text(), wanted=wanted)
    assert [(entry.moderator, entry.ladder) for entry in found.proposed.hypotheses] == kinds
    assert found.proposing.not_tested == ()


@pytest.mark.parametrize(("vary", "shape", "found"), [
    (["group_size=4,16"], "interaction", "expected two --vary with two values each; found 2 values of group_size"),
    (["group_size=4,8,16", "epochs=1,2"], "interaction", "found 3 values of group_size and 2 values of epochs"),
    (["group_size=4,16"], "together", "expected --vary of 2 to 4 fields with as many values"),
    (["group_size=4,8,16", "epochs=1,2"], "together", "with as many values"),
    (["group_size=4,16", "epochs=1,2"], "trend", "expected one --vary"), ([], "trend", "found no --vary"),
    (["group_size=4,16"], "trend", "found 2 values"), (["algorithm=grpo,rloo,gspo"], "trend", "3 to 8 numbers"),
    (["group_size=4,16"], "interacton", "apart, together, interaction or trend; found 'interacton'"),
])  # fmt: skip
def test_flags_that_do_not_go_together_are_refused_by_name(vary: list[str], shape: str, found: str) -> None:
    with pytest.raises(BadTopic, match=re.escape(found)):
        RequestedComparison.parse(vary, [], shape=shape)


STOCK, SHOP = "stock@9ee1c0bc8381", "shop@123456789012"
LAKE = "gymnasium-frozenlake-v1-is_slippery-false@0123456789ab"
KNOWN = (
    *known_environments(), make_environment(STOCK, "counting a stock", ("counting", "stock"), "the number is right"),
    make_environment(SHOP, "a shop", ("shop",), "sold"), make_environment(LAKE, "a lake", (), "crossed"),
)  # fmt: skip
MODEL = "SmolLM2-135M"


@pytest.mark.parametrize(("env", "words", "played", "left"), [
    *((STOCK, words, STOCK, ()) for words in (
        "in this game?", "on these tasks", "in my environment?", "in my own environment",
        "on this benchmark", "in stock", f"in {STOCK}?", "with my model", "SmolLM2-135M",
    )),
    (LAKE, "in FrozenLake", LAKE, ()), (LAKE, "on FrozenLake-v1", LAKE, ()),
    (LAKE, "in FrozenLake8x8", LAKE, ("FrozenLake8x8",)), (None, f"in {SHOP}", SHOP, ()),
    (None, "in the shop", SHOP, ()), (None, "in my environment", None, ("my",)),
    (STOCK, "in my gsm8k environment", STOCK, ("my gsm8k",)),
    (STOCK, "in another environment", STOCK, ("another",)),
    (None, "with a 7B model", None, ("with", "7B model")), (None, "in guess and arith", "guess", ("arith",)),
])  # fmt: skip
def test_general_words_mean_what_flags_name_and_no_other(
    env: str | None, words: str, played: str | None, left: tuple[str, ...]
) -> None:
    wanted = RequestedComparison(environment=env)
    parsed = parse_topic(f"does a higher learning rate help {words}", environments=KNOWN, wanted=wanted, model=MODEL)
    assert (parsed.environment, parsed.left) == (played, left)


@pytest.mark.parametrize(("topic", "named"), [
    ("in other words, does a higher learning rate help?", ()), ("In a word: larger groups on guess", ("guess",)),
    ("do larger groups help with fewer words?", ()), ("do larger groups help in words?", ("words",)),
    ("larger groups on the words tasks", ("words",)), ("larger groups for words", ("words",)),
    ("larger groups on the words benchmark", ("words",)), ("larger groups on last words", ("words",)),
])  # fmt: skip
def test_an_ordinary_word_names_an_environment_only_where_a_place_is_named(topic: str, named: tuple[str, ...]) -> None:
    assert name_environments(topic) == named


def test_a_topic_and_a_flag_name_one_environment() -> None:
    with pytest.raises(BadTopic, match=f"found --env or a job with {STOCK} and a topic that names arith"):
        parse_topic("larger groups on arith", environments=KNOWN, wanted=RequestedComparison(environment=STOCK))
