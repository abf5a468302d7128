"""The rule planner: what it reads in a topic, what it compares, and what it refuses."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.design.comparison import UnsizedDesign, unsized_design
from research.design.compiler import accept_hypotheses
from research.design.pricing import make_pricing
from research.design.requirements import StatisticalRequirements
from research.errors import BadTopic, DesignRefused
from research.planner import Digest
from research.proposals.actions import Action, Conclude, Propose, ProposeDesign
from research.rule_planner.planner import RulesPlanner
from research.rule_planner.priors import predict
from research.topic.lexicon import DOWN, UP
from studies.records.design import Budget
from studies.records.verdict import Verdict
from swarm.environments.registry import environments
from swarm.job import tunables
from tests.research.compiling import refusal

MakeDigest = Callable[..., Digest]
NAMES = [(field, name) for field, mark in tunables().items() for name in (field, *mark.synonyms)]
DIRECTIONS = {
    "": None, "larger": True, "more": True, "a higher": True, "increasing the": True,
    "smaller": False, "fewer": False, "lower": False, "decreasing the": False,
}  # fmt: skip
"""Words of direction, and whether they lead upwards."""


def accepts(action: Action) -> str | None:
    return None


def make(topic: str, **facts: Any) -> Digest:
    return Digest(**{"topic": topic, "seconds_left": 600.0, "seconds_per_run": 58.0, "parallel": 2, **facts})


def proposed(topic: str) -> Propose:
    action = RulesPlanner().act(make(topic), accepts).action
    assert isinstance(action, Propose)
    return action


def designed(topic: str) -> tuple[ProposeDesign, str]:
    proposal = proposed(topic)
    hypotheses = accept_hypotheses(proposal)
    turn = RulesPlanner().act(make(topic, hypotheses=hypotheses, search=proposal.search), accepts)
    assert isinstance(turn.action, ProposeDesign)
    return turn.action, turn.note


def compared(topic: str) -> list[tuple[str, Any, Any]]:
    return [(entry.variable, entry.control, entry.treatment) for entry in proposed(topic).hypotheses]


def shape_of(topic: str) -> UnsizedDesign:
    """The whole way from topic to arms that are valid jobs and differ in what is declared; not yet sized."""
    return unsized_design(accept_hypotheses(proposed(topic)), designed(topic)[0], None, StatisticalRequirements())


def refused(topic: str) -> str:
    with pytest.raises(BadTopic) as caught:
        proposed(topic)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_topic_of_the_readme_compares_a_small_with_a_large_group_in_the_guessing_game() -> None:
    topic = "Does a larger group size make GRPO learn the guessing game faster?"
    (hypothesis,) = proposed(topic).hypotheses
    assert (hypothesis.variable, hypothesis.control, hypothesis.treatment) == ("group_size", 4, 16)
    assert hypothesis.direction == "increase"
    action, note = designed(topic)
    assert (action.environment, action.steps, action.constants) == ("guess", None, ())
    assert "names no environment" not in note


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("group size 4 vs 16", [("group_size", 4, 16)]),
        ("group_size=4 vs group_size=16", [("group_size", 4, 16)]),
        ("16 rollouts per prompt rather than 4", [("group_size", 4, 16)]),
        ("Does a group size of 16 learn better than 4?", [("group_size", 4, 16)]),
        ("Does group size matter: 4 vs 16?", [("group_size", 4, 16)]),
        ("a smaller groupsize: 4 vs 16", [("group_size", 16, 4)]),
        ("learning rates 1e-3, 3e-3 and 1e-2", [("learning_rate", 1e-3, 3e-3), ("learning_rate", 1e-3, 1e-2)]),
        ("lr of 0.001 or 0.01", [("learning_rate", 0.001, 0.01)]),
        ("2, 4 and 8 epochs", [("epochs", 2, 4), ("epochs", 2, 8)]),
        ("a learning rate of 3e-3", [("learning_rate", 1e-3, 3e-3)]),
        ("lr 1e-3 and 4 epochs", [("learning_rate", 1e-3, 3e-4), ("epochs", 1, 4)]),
        ("normalize_advantage true vs false", [("normalize_advantage", True, False)]),
        ("larger group sizes and batches", [("group_size", 4, 16), ("episodes_per_step", 64, 256)]),
        ("batch-size 64/256", [("episodes_per_step", 64, 256)]),
        ("temperature 0.7 -> 1.3", [("temperature", 0.7, 1.3)]),
        ("without KL penalty", [("kl_coef", 0.1, 0.0)]),
        ("without KL penalty 0.0", [("kl_coef", 0.1, 0.0)]),
        ("learning with a KL penalty of 0.05", [("kl_coef", 0.0, 0.05)]),
        ("turning off advantage normalisation", [("normalize_advantage", True, False)]),
        ("without normalising advantages", [("normalize_advantage", True, False)]),
        ("train longer", [("steps", 20, 80)]),
        ("larger group size of 8", [("group_size", 4, 8)]),
        ("with group size increased", [("group_size", 4, 16)]),
        ("does a decrease in temperature help", [("temperature", 1.3, 0.7)]),
    ],
)
def test_values_and_directions_choose_control_and_treatment(topic: str, expected: list[tuple[str, Any, Any]]) -> None:
    assert compared(topic) == expected


@pytest.mark.parametrize(
    ("topic", "direction"),
    [
        ("do larger groups help", "increase"),
        ("do larger groups hurt", "decrease"),
        ("do larger groups make learning slower", "decrease"),
        ("does group size increase success", "increase"),
        ("does a higher group size reduce the success rate", "decrease"),
        ("does a higher learning rate make learning worse faster", "decrease"),
        ("does an entropy bonus prevent harm", "increase"),
    ],
)
def test_the_effect_asked_about_is_the_direction(topic: str, direction: str) -> None:
    (hypothesis,) = proposed(topic).hypotheses
    assert hypothesis.direction == direction
    assert hypothesis.probability != 0.5 or hypothesis.variable == "learning_rate"


@pytest.mark.parametrize(
    "topic", ["does group size matter", "do larger groups help or hurt", "larger groups do not hurt", "group size"]
)
def test_an_open_question_is_predicted_at_even_odds(topic: str) -> None:
    (hypothesis,) = proposed(topic).hypotheses
    assert (hypothesis.direction, hypothesis.probability) == ("increase", 0.5)


def test_effects_belong_to_their_own_field() -> None:
    first, second = proposed("do larger groups help and does a higher learning rate hurt").hypotheses
    assert (first.variable, first.direction) == ("group_size", "increase")
    assert (second.variable, second.direction) == ("learning_rate", "decrease")


@pytest.mark.parametrize(
    "topic",
    [
        "does Group Relative Policy Optimization learn with a larger lr",
        "larger lr in multi-step reasoning",
        "does a larger lr learn in fewer steps",
        "larger lr, reward per step",
    ],
)
def test_common_phrases_are_not_taken_for_fields(topic: str) -> None:
    assert [variable for variable, _, _ in compared(topic)] == ["learning_rate"]


def test_single_values_beside_a_comparison_are_held_constant() -> None:
    action, note = designed("Does a larger group help at learning rate 3e-3 with 20 training steps?")
    assert action.steps == 20
    assert [(constant.field, constant.value) for constant in action.constants] == [("learning_rate", 3e-3)]
    assert "learning_rate is 0.003 in all arms." in note


@pytest.mark.parametrize(
    ("topic", "constants"),
    [
        ("group size 3 vs 6", {"episodes_per_step": 126}),
        ("group size 7 vs 13", {"episodes_per_step": 91}),
        ("batch size 100 vs 50", {"group_size": 5}),
        ("group size 4 vs 16", {}),
    ],
)
def test_batches_are_made_to_divide_into_groups(topic: str, constants: dict[str, int]) -> None:
    jobs = shape_of(topic).comparison.jobs
    assert all(getattr(job, name) == value for job in jobs for name, value in constants.items())
    assert all(job.episodes_per_step % job.group_size == 0 for job in jobs)


def test_environments_are_read_by_their_synonyms() -> None:
    assert designed("larger lr on sums")[0].environment == "arith"
    assert designed("larger lr in the higher/lower game")[0].environment == "guess"


def test_an_environment_that_is_not_named_is_chosen_and_said() -> None:
    action, note = designed("larger lr")
    assert action.environment == "guess"
    assert "names no environment; guess" in note


@pytest.mark.parametrize(
    ("topic", "played", "again"),
    [
        ("larger lr on guess, replicated on sums", "guess", "arith"),
        ("larger lr on sums, and repeat it in the guessing game", "arith", "guess"),
        ("larger lr, replicate on arith", "guess", "arith"),
        ("larger lr, replicated in guess", "arith", "guess"),
    ],
)
def test_an_environment_to_replicate_in_is_read_apart(topic: str, played: str, again: str) -> None:
    action, note = designed(topic)
    assert action.replication is not None
    assert (action.environment, action.replication.environment) == (played, again)
    assert f"tried once more in {again}" in note


def test_numbers_without_a_field_are_refused() -> None:
    assert "found '5', which belongs to none that is named" in refused("larger lr, 5 guesses")


@pytest.mark.parametrize("topic", ["", "   ", "\n\t"])
def test_an_empty_topic_is_refused_with_what_can_be_studied(topic: str) -> None:
    message = refused(topic)
    assert "found an empty one" in message
    assert all(name in message for name in [*tunables(), *environments()])


@pytest.mark.parametrize("topic", ["Does the guessing game work?", "4 vs 16"])
def test_an_unreadable_topic_is_refused_with_what_can_be_studied_and_how_to_ask_a_model(topic: str) -> None:
    message = refused(topic)
    assert all(name in message for name in [*tunables(), *environments()])
    assert all(word in message for word in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "--planner llm", "--planner-model"))


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("group size 4 vs 4", "expected different values"),
        ("group size 1 vs 4", "greater than or equal to 2"),
        ("group size 4.5 vs 8", "integer"),
        ("learning rate -1", "greater than 0"),
        ("learning rate 1e999", "less than or equal to 1"),
        ("group size " + "9" * 400, "group_size"),
        ("temperature 9 vs 1", "less than or equal to 5"),
        ("group size 127 vs 128", "divide"),
        ("group size 300", "divide"),
        ("batch size 100 or 50, group size 8 or 16", "divide"),
        ("without clipping", "cannot be switched off"),
        ("larger group size of 2", "expected two values"),
        ("larger groups, group size 2, 4, 8, 16 and 32, and a larger lr", "at most 3"),
        ("steps, lr, kl, entropy", "at most 3"),
        ("larger lr in guess and arith", "expected one environment"),
        ("larger lr " * 400, "at most 2000 characters"),
    ],
)
def test_what_cannot_be_run_is_refused_and_named(topic: str, told: str) -> None:
    assert told in refused(topic)


def test_a_refusal_of_the_design_is_passed_on_with_its_price() -> None:
    hypotheses = accept_hypotheses(proposed("larger groups"))
    budget = Budget(wall_clock_s=60)

    def check(action: Action) -> DesignRefused | None:
        return refusal(action, hypotheses, price=make_pricing(2), budget=budget)

    turn = RulesPlanner().act(make("larger groups", hypotheses=hypotheses), check)
    assert turn.refused is not None
    assert "use --budget" in turn.refused.message


def test_verdicts_are_concluded() -> None:
    verdict = Verdict(
        hypothesis="h1", verdict="supported", reason="r", estimate=0.1, low=0.05, high=0.15, level=0.95, p=0.01,
        n_control=3, n_treatment=3, mean_control=0.4, mean_treatment=0.5, sd_control=0.01, sd_treatment=0.01,
        test="welch", inputs_sha256="0" * 64, within_prediction=True, brier=0.4,
    )  # fmt: skip
    hypotheses = accept_hypotheses(proposed("larger groups"))
    turn = RulesPlanner().act(make("larger groups", hypotheses=hypotheses, verdicts=(verdict,)), accepts)
    assert isinstance(turn.action, Conclude)
    assert "h1 is supported" in turn.action.reason


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([name for _, name in NAMES] + ["best", "larger", "vs", "hurt", "use seed 3"]), max_size=8)
)
def test_the_same_topic_gives_the_same_actions(words: list[str]) -> None:
    topic = " ".join(words)

    def said() -> Any:
        try:
            return proposed(topic), designed(topic)
        except BadTopic as error:
            return error.message

    assert said() == said()


def test_every_field_has_a_prior_of_its_own() -> None:
    unknown = predict("no such field", rises=True, claim="increase")
    assert all(predict(field, rises=True, claim="increase") != unknown for field in tunables())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(tunables())), st.booleans(), st.sampled_from(["increase", "decrease", None]))
def test_lowering_a_field_mirrors_raising_it(field: str, rises: bool, claim: Any) -> None:
    opposite = {"increase": "decrease", "decrease": "increase", None: None}[claim]
    low, high, probability = predict(field, rises=rises, claim=claim)
    assert high > 0 or claim == "decrease", "a prediction reaches into what is claimed"
    assert low < 0 or claim == "increase"
    mirrored = predict(field, rises=not rises, claim=opposite)  # type: ignore[arg-type]
    assert mirrored == (-high, -low, probability)
    assert -1 <= low <= high <= 1


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(sorted(DIRECTIONS)), st.booleans(), st.sampled_from(["", " on sums"]))
def test_any_field_by_any_name_in_any_direction_gives_a_design(
    named: tuple[str, str], direction: str, loud: bool, tail: str
) -> None:
    field, name = named
    topic = f"Does {direction} {name} learn{tail}?"
    (hypothesis,) = proposed(topic.upper() if loud else topic).hypotheses
    assert hypothesis.variable == field
    rises = DIRECTIONS[direction]
    if rises is not None and not isinstance(hypothesis.control, bool | str):
        assert (hypothesis.treatment > hypothesis.control) == rises
    arms = shape_of(topic).comparison.arms
    assert hypothesis.treatment in [arm.overrides[field] for arm in arms]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_two_values_on_the_ladder_are_compared_as_written(data: st.DataObject) -> None:
    numeric = [entry for entry in NAMES if not isinstance(tunables()[entry[0]].ladder[0], bool | str)]
    field, name = data.draw(st.sampled_from(numeric))
    control, treatment = data.draw(
        st.lists(st.sampled_from(tunables()[field].ladder), min_size=2, max_size=2, unique=True)
    )
    joint = data.draw(st.sampled_from(["vs", "versus", "or", "and", "to", "vs."]))
    if (UP | DOWN) & set(name.split()):
        return  # `longer training` is a direction: it orders the values
    assert compared(f"{name} {control} {joint} {treatment}") == [(field, control, treatment)]


VALUES = [text for mark in tunables().values() for texts in mark.values.values() for text in texts]
WORDS = [word for _, name in NAMES for word in name.split()] + VALUES + [
    "larger", "smaller", "without", "with", "no", "vs", "and", "or", "than", "of", "in", "faster", "hurt", "off", ",",
    "guess", "sums", "best", "tune", "which", "optimal",
    "4", "16", "0.5", "1e-3", "-2", "1e400", "0", "true", "false", "10x", "higher/lower",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_any_mixture_of_known_words_gives_a_design_or_a_clear_refusal(topic: str) -> None:
    outcome = outcome_of(topic)
    assert outcome.arms >= 2 if isinstance(outcome, UnsizedDesign) else "\n" not in outcome.message


def outcome_of(topic: str) -> UnsizedDesign | BadTopic:
    try:
        return shape_of(topic)
    except BadTopic as error:
        return error


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80) | st.text(alphabet=string.printable, max_size=80))
def test_random_text_is_never_more_than_refused(topic: str) -> None:
    outcome = outcome_of(topic)
    assert isinstance(outcome, UnsizedDesign) or "\n" not in outcome.message


def test_the_refusal_of_an_unreadable_topic_can_be_taken_in_at_a_glance() -> None:
    message = refused("the meaning of life")
    assert len(message) < 600
    assert "kl_coef (kl penalty)" in message
    assert "group_size," in message, "a name that says it all needs no synonym"


def test_a_topic_about_a_reward_function_is_told_who_writes_and_who_runs_one() -> None:
    message = refused("Does a dense reward function help?")
    assert "--planner llm" in message
    assert "--sandbox docker" in message
    assert "--sandbox" not in refused("Does the weather help?")


def test_a_field_beside_a_reward_function_is_compared_and_the_rest_said() -> None:
    _, note = designed("Do larger groups help with reward shaping?")
    assert "No reward is compared: a reward function is code" in note
    assert all(entry.code is None for entry in proposed("Do larger groups help with reward shaping?").hypotheses)


def test_a_topic_that_only_measures_reward_says_nothing_of_code() -> None:
    _, note = designed("Do larger groups raise the reward?")
    assert "code" not in note
