"""Topics about choices of words: which value is tried, which is the control, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.planner.digest import tunable_facts
from swarm.job import Job, tunables
from tests.research.rule_planner.test_planner import compared, designed, proposed, refused, shape_of

OF_WORDS = [facts for facts in tunable_facts() if facts.of_words]
NAMED = [(facts.name, value, text) for facts in OF_WORDS for value, texts in facts.values.items() for text in texts]
ALGORITHMS = [entry for entry in NAMED if entry[0] == "algorithm"]


@pytest.mark.parametrize(
    ("topic", "control", "treatment", "direction"),
    [
        ("Does RLOO beat GRPO on guess?", "grpo", "rloo", "increase"),
        ("Is GSPO better than GRPO on arith?", "grpo", "gspo", "increase"),
        ("Does GRPO beat RLOO?", "rloo", "grpo", "increase"),
        ("Is Dr. GRPO better than GRPO?", "grpo", "dr_grpo", "increase"),
        ("Does Dr. GRPO hurt compared with GRPO?", "grpo", "dr_grpo", "decrease"),
        ("training without Dr. GRPO", "dr_grpo", "grpo", "increase"),
        ("RLOO rather than Dr. GRPO", "dr_grpo", "rloo", "increase"),
        ("RLOO vs GRPO", "grpo", "rloo", "increase"),
        ("GSPO vs RLOO", "gspo", "rloo", "increase"),
        ("Does switching from RLOO to GRPO help?", "rloo", "grpo", "increase"),
        ("Does REINFORCE++ with baseline beat plain REINFORCE++?", "reinforce_pp", "reinforce_pp_baseline", "increase"),
        ("leave-one-out against GRPO", "grpo", "rloo", "increase"),
        ("algorithm=reinforce_pp", "grpo", "reinforce_pp", "increase"),
        ("does the choice of algorithm matter", "grpo", "rloo", "increase"),
    ],
)
def test_the_wording_decides_which_algorithm_is_tried(topic: str, control: str, treatment: str, direction: str) -> None:
    (hypothesis,) = proposed(topic).hypotheses
    assert (hypothesis.variable, hypothesis.control, hypothesis.treatment) == ("algorithm", control, treatment)
    assert hypothesis.direction == direction


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("cosine learning rate schedule vs constant", [("lr_schedule", "constant", "cosine")]),
        ("Does linear decay beat cosine decay?", [("lr_schedule", "cosine", "linear")]),
        ("without learning rate decay", [("lr_schedule", "cosine", "constant")]),
        ("Does off-policy training hurt?", [("max_staleness", 0, 4)]),
        ("staleness 0, 1 and 4", [("max_staleness", 0, 1), ("max_staleness", 0, 4)]),
        ("Does off-policy correction help?", [("rollout_correction", "off", "truncate")]),
        ("TIS vs token masking", [("rollout_correction", "truncate", "mask")]),
        ("without importance sampling correction", [("rollout_correction", "truncate", "off")]),
        ("Does LoRA learn as well as full training?", [("lora_rank", 0, 64)]),
        ("a larger LoRA rank", [("lora_rank", 4, 64)]),
        ("a smaller LoRA rank", [("lora_rank", 64, 4)]),
        ("LoRA rank 4 vs 16", [("lora_rank", 4, 16)]),
        ("training without LoRA", [("lora_rank", 64, 0)]),
        ("Does clip-higher help?", [("clip_ratio_high", 0.2, 0.4)]),
        ("k1 vs k3 estimator", [("kl_estimator", "k3", "k1")]),
    ],
)
def test_other_fields_are_read_by_what_people_call_them(topic: str, expected: list[tuple[str, Any, Any]]) -> None:
    assert compared(topic) == expected


@pytest.mark.parametrize(
    "topic",
    [
        "Does a larger group size make GRPO learn the guessing game faster?",
        "Does a larger GRPO group help?",
        "Does a larger group size improve the training algorithm?",
        "larger groups in GRPO at a constant learning rate",
    ],
)
def test_an_algorithm_or_schedule_that_is_only_mentioned_is_not_compared(topic: str) -> None:
    assert compared(topic) == [("group_size", 4, 16)]


def test_another_algorithm_named_beside_a_comparison_is_held_constant() -> None:
    topic = "Does a larger group size help RLOO?"
    assert compared(topic) == [("group_size", 4, 16)]
    action, note = designed(topic)
    assert [(constant.field, constant.value) for constant in action.constants] == [("algorithm", "rloo")]
    assert "algorithm is rloo in all arms." in note
    assert shape_of(topic).comparison.base.algorithm == "rloo"


def test_who_is_said_to_beat_several_is_their_control_and_the_claim_turned_round() -> None:
    hypotheses = proposed("Does RLOO outperform GRPO and Dr. GRPO?").hypotheses
    assert [(entry.control, entry.treatment) for entry in hypotheses] == [("rloo", "grpo"), ("rloo", "dr_grpo")]
    assert {entry.direction for entry in hypotheses} == {"decrease"}


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("Does PPO beat GRPO on guess?", "ppo"),
        ("Does DAPO beat RLOO?", "dapo"),
        ("Is REINFORCE enough?", "reinforce"),
        ("algorithm=foo vs grpo", "foo"),
    ],
)
def test_an_algorithm_that_does_not_exist_is_refused_with_those_that_do(topic: str, found: str) -> None:
    message = refused(topic)
    assert f"found {found!r}" in message
    assert all(name in message for name in tunables()["algorithm"].ladder)


@pytest.mark.parametrize(
    "topic",
    [
        "Does learning rate warmup help?",
        "Does a learning-rate warm-up help?",
        "warmup steps 0 vs 10",
        "Does dual clip help?",
        "LoRA alpha 16 vs 64",
        "micro-batch size 4 vs 16",
        "a larger off-policy correction cap",
    ],
)
def test_what_no_study_varies_is_not_read_as_the_field_whose_name_is_in_it(topic: str) -> None:
    assert "names something to vary" in refused(topic)


@pytest.mark.parametrize("topic", ["larger groups with linear warmup", "linear warmup and cosine decay"])
def test_what_no_study_varies_is_not_passed_over_beside_a_question(topic: str) -> None:
    assert "found 'linear warmup', which it does not" in refused(topic)


@pytest.mark.parametrize("topic", ["larger clip in PPO", "group size 4 vs 16 with PPO"])
def test_a_foreign_algorithm_beside_another_question_is_refused(topic: str) -> None:
    assert "expected an algorithm among" in refused(topic)


@pytest.mark.parametrize(
    ("topic", "constants", "why"),
    [
        ("Is GSPO better than GRPO on arith?", {"minibatches": 4}, "nothing to clip"),
        ("Is GSPO better than GRPO with 2 epochs on arith?", {"epochs": 2}, ""),
        ("larger clip range", {"minibatches": 4}, "nothing to clip"),
        ("Does off-policy correction help at staleness 2?", {"max_staleness": 2}, ""),
        ("Does off-policy correction help?", {"max_staleness": 1}, "no token is stale"),
        ("does the KL estimator matter", {"kl_coef": 0.1}, "nothing is estimated"),
    ],
)
def test_a_comparison_that_could_show_nothing_gets_a_constant_under_which_it_can(
    topic: str, constants: dict[str, Any], why: str
) -> None:
    action, note = designed(topic)
    assert {constant.field: constant.value for constant in action.constants} == constants
    assert why in note
    base = shape_of(topic).comparison.base
    assert all(getattr(base, name) == value for name, value in constants.items())


def test_a_comparison_that_switches_off_what_another_one_needs_is_refused() -> None:
    assert "ask in two studies" in refused("does the KL estimator matter, and a KL penalty")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ALGORITHMS), st.sampled_from(ALGORITHMS), st.booleans())
def test_any_two_algorithms_by_any_name_are_compared_as_asked(
    tried: tuple[str, str, str], control: tuple[str, str, str], loud: bool
) -> None:
    topic = f"Does {tried[2]} beat {control[2]} on sums?"
    if tried[1] == control[1]:
        return
    assert compared(topic.upper() if loud else topic) == [("algorithm", control[1], tried[1])]
    arms = shape_of(topic).comparison.arms
    assert [arm.overrides["algorithm"] for arm in arms] == [control[1], tried[1]]


@pytest.mark.parametrize("facts", OF_WORDS, ids=lambda facts: facts.name)
def test_every_rung_of_words_is_a_value_of_the_job(facts: Any) -> None:
    assert all(getattr(Job.model_validate({facts.name: value}), facts.name) == value for value in facts.ladder)
    assert facts.default in facts.ladder
    assert facts.values.keys() <= set(facts.ladder)
