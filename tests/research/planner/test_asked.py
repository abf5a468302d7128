"""The question asked is the question planned; or what is missing is refused by its name; or what is left out is said.

The topics are phrased as busy people would.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.design.comparison import unsized_design
from research.design.compiler import accept_hypotheses
from research.design.requirements import StatisticalRequirements
from research.errors import BadTopic
from research.planner import Digest
from research.planner.protocol import PlannerTurn
from research.proposals.actions import Propose, ProposeDesign
from research.proposals.flags import RequestedComparison
from research.rule_planner.planner import RulesPlanner
from research.topic.leftover import ASKING, GRAMMAR
from research.topic.lexicon import stem
from studies.records.sentences import sentences


def turn_on(topic: str, **facts: Any) -> PlannerTurn:
    digest = Digest(topic=topic, seconds_left=720.0, seconds_per_run=58.0, parallel=2, **facts)
    return RulesPlanner().act(digest, lambda action: None)


def planned(topic: str, **facts: Any) -> tuple[Propose, ProposeDesign, tuple[str, ...]]:
    proposing = turn_on(topic, **facts)
    proposed = proposing.action
    assert isinstance(proposed, Propose)
    hypotheses = accept_hypotheses(proposed)
    designed = turn_on(topic, hypotheses=hypotheses, search=proposed.search, **facts).action
    assert isinstance(designed, ProposeDesign)
    return proposed, designed, proposing.not_tested


def compared(topic: str, **facts: Any) -> list[tuple[str, Any, Any]]:
    proposed, _, _ = planned(topic, **facts)
    return [(entry.variable, entry.control, entry.treatment) for entry in proposed.hypotheses]


def refused(topic: str, **facts: Any) -> str:
    with pytest.raises(BadTopic, match=r"^expected .*; found .*; ") as caught:
        planned(topic, **facts)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("does 16 rollouts per prompt beat 4?", [("group_size", 4, 16)]),
        ("Does a group size of 16 beat 4?", [("group_size", 4, 16)]),
        ("does training for 100 steps beat 50?", [("steps", 50, 100)]),
        ("LoRA rank 4 vs 16 vs full finetuning on guess", [("lora_rank", 4, 16), ("lora_rank", 4, 0)]),
        ("Does removing the std normalization in GRPO help?", [("normalize_advantage", True, False)]),
        ("does KL penalty of 0.1 hurt compared to none?", [("kl_coef", 0.0, 0.1)]),
        ("two epochs vs four epochs", [("epochs", 2, 4)]),
        ("does more training help?", [("steps", 20, 80)]),
        ("is lr=0.001 good?", [("learning_rate", 0.001, 0.0003), ("learning_rate", 0.001, 0.003)]),
        ("Is a learning rate of 3e-3 too high?", [("learning_rate", 0.003, 0.001), ("learning_rate", 0.003, 0.009)]),
        ("does success depend on the group size?", [("group_size", 4, 16)]),
        ("group size 4 vs 16 at the same temperature", [("group_size", 4, 16)]),
        ("is 0.2 a good clip ratio", [("clip_ratio", 0.2, 0.1), ("clip_ratio", 0.2, 0.4)]),
        ("is 80 steps enough?", [("steps", 80, 40), ("steps", 80, 160)]),
        ("double the batch size", [("episodes_per_step", 128, 256)]),
        ("does a 10x smaller learning rate help", [("learning_rate", 0.001, 0.0001)]),
        ("Compare temperatures 0.7 & 1.3", [("temperature", 0.7, 1.3)]),
        ("group size 16 > 4?", [("group_size", 4, 16)]),
        ("batch=32..256", [("episodes_per_step", 32, 256)]),
        ("async vs sync rollouts", [("max_staleness", 0, 4)]),
        ("learning rate three times the default", [("learning_rate", 0.001, 0.003)]),
        ("cosine vs constant schedule over 80 steps in arith", [("lr_schedule", "constant", "cosine")]),
    ],
)
def test_arms_are_those_that_the_topic_names(topic: str, expected: list[tuple[str, Any, Any]]) -> None:
    assert compared(topic) == expected
    assert planned(topic)[2] == ()


def test_what_is_named_beside_the_comparison_is_held() -> None:
    _, designed, left = planned("learning rate 1e-2 vs 1e-3 on guess with 80 steps")
    assert (designed.environment, designed.steps, left) == ("guess", 80, ())


@pytest.mark.parametrize(
    ("topic", "held"),
    [
        ("group size 4 vs 16 with a KL penalty", {"kl_coef": 0.1}),
        ("group size 4 vs 16 without a KL penalty", {"kl_coef": 0.0}),
        ("larger groups with cosine decay", {"lr_schedule": "cosine"}),
        ("with RLOO, does a larger group help?", {"algorithm": "rloo"}),
        ("is lr 0.01 better than 0.001, with entropy coef 0.01", {"entropy_coef": 0.01}),
        ("is 2 epochs better than 1, with 2 minibatches, on sums", {"minibatches": 2}),
        ("don't change the learning rate, just try group size 16 against 4", {}),
        ("without changing group size, compare lr 1e-3 and 3e-3", {}),
        ("does lr 1e-3 beat 3e-4 with 4 epochs and group size 16", {"epochs": 4, "group_size": 16}),
    ],
)
def test_a_condition_is_held_in_all_arms_and_not_compared(topic: str, held: dict[str, Any]) -> None:
    proposed, designed, left = planned(topic)
    assert {constant.field: constant.value for constant in designed.constants} == held
    assert (len(proposed.hypotheses), left) == (1, ())


@pytest.mark.parametrize(
    "topic",
    [
        "does a higher learning rate help more with small groups?",
        "Is the effect of lr the same for small and large groups?",
        "does lr 3e-3 beat 1e-3 for both group size 4 and 16?",
        "train longer with a larger batch",
    ],
)
def test_a_condition_without_one_value_is_asked_for(topic: str) -> None:
    assert "where it is a condition of the comparison" in refused(topic)


@pytest.mark.parametrize(
    ("topic", "missing"),
    [
        ("group size 4 vs 16 with Qwen2.5-0.5B", ["a model, Qwen2.5-0.5B", "--model-path DIR"]),
        ("Is Qwen2.5-7B better than Llama at GSM8K?", ["Qwen2.5-7B", "Llama", "an environment, GSM8K"]),
        ("does a 7B model need larger groups?", ["a model, 7B model"]),
        ("does a larger model learn better with lr 1e-3 than 3e-3", ["a model, larger model"]),
        ("my environment in /home/me: does a larger group help?", ["my environment", "/home/me", "guess or arith"]),
        ("group size 4 vs 16 on chess", ["an environment, chess"]),
        ("group size 4 vs 16 on tasks.jsonl", ["tasks.jsonl"]),
        ("do larger groups help our agent?", ["an agent, our agent"]),
        ("does bigger hidden size help?", ["hidden size", "same model"]),
        ("group size 4 vs 16 with dropout 0.1", ["dropout"]),
        ("Does warm start steps 200 vs 400 change the final score?", ["warm start steps", "head start"]),
        ("which is less likely to collapse, grpo or reinforce++?", ["a measure, collapse"]),
        ("does a KL penalty prevent forgetting?", ["a measure, forgetting"]),
        ("group size 4 vs 16 by area under the curve", ["a measure, area under the curve"]),
        ("which needs the fewest episodes to 70 %, lr 1e-3 or 3e-3?", ["a measure, fewest episodes"]),
        ("training is unstable at high learning rate, does clip-higher fix it?", ["a measure, unstable"]),
        ("does a higher entropy bonus keep exploration up (entropy at the end)?", ["entropy at the end"]),
        ("group size 4 vs 16 at the same number of tokens", ["the same number of tokens", "cannot be held equal"]),
        ("grpo vs ppo", ["grpo, rloo, dr_grpo", "'ppo'"]),
        ("lr 3e-4, 1e-3, 3e-3 on arith and guess", ["arith and guess"]),
        ("group size 4 vs 16 with weight tying", ["'weight tying'", "condition"]),
        ("does temperature matter when the number of tasks is small?", ["'small'", "condition"]),
        ("larger groups vs curriculum learning", ["'curriculum'", "arms"]),
        ("larger groups and layer freezing", ["'layer freezing'", "arms"]),
        ("batch size 64 vs 256 for 1000 episodes", ["'1000'", "belongs to none"]),
        ("group size 4 vs 16 with 10x data", ["'10x"]),
        ("does gradient accumulation help larger groups", ["'gradient accumulation'"]),
        ("group size 4 vs 16 on gues", ["did you mean guess"]),
        ("a larger lerning rate, and larger groups", ["did you mean learning"]),
        ("does my reward function with a format bonus help on guess?", ["--planner llm", "--sandbox docker"]),
        ("更大的组大小会让GRPO学得更快吗？", ["English", "--vary"]),
        ("学习率 0.001 和 0.003 哪个好？", ["English", "--vary"]),
        ("Lernt GRPO mit einer höheren Lernrate schneller?", ["English", "--vary"]),
        ("¿Aprende GRPO más rápido con grupos más grandes?", ["English", "--vary"]),
        ("Est-ce qu'un learning rate plus grand aide ?", ["English", "--vary"]),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused_by_its_name_with_the_way_to_it(topic: str, missing: list[str]) -> None:
    message = refused(topic)
    assert all(text in message for text in missing), message


@pytest.mark.parametrize(
    ("topic", "left"),
    [
        ("Does a larger group size make GRPO learn the guessing game faster?", ["'faster'", "not how long it takes"]),
        ("Do larger groups raise the reward?", ["'reward'", "share of hidden tasks"]),
        ("Does a larger group help because of lower variance?", ["'lower variance'"]),
        ("does curriculum learning with temperature 0.7 vs 1.3 help?", ["'curriculum'"]),
        (
            "is it better to train longer or use a larger batch?",
            ["steps against episodes_per_step", "with the control"],
        ),
        ("Do larger groups raise success, and lower the latency?", ["'latency'"]),
        ("learning rate between 1e-4 and 1e-2", ["'between'", "no value between them"]),
    ],
)
def test_what_is_read_as_something_near_or_left_out_is_said(topic: str, left: list[str]) -> None:
    said = " ".join(planned(topic)[2])
    assert all(text in said for text in left), said


@pytest.mark.parametrize(
    ("topic", "batches", "steps"),
    [
        ("is a batch of 256 better than 64 at the same number of episodes?", (64, 256), (80, 20)),
        ("Does training longer help more than a larger batch at the same number of episodes?", (256, 64), (20, 80)),
        ("steps 20 vs 80 with equal episodes", (256, 64), (20, 80)),
        ("batch size 64 vs 128 vs 256 with 40 steps for a fixed number of episodes", (64, 128, 256), (40, 20, 10)),
    ],
)
def test_equal_episodes_are_equal_in_all_arms(topic: str, batches: tuple[int, ...], steps: tuple[int, ...]) -> None:
    proposed, designed, left = planned(topic)
    hypotheses = accept_hypotheses(proposed)
    jobs = unsized_design(hypotheses, designed, None, StatisticalRequirements()).comparison.jobs
    assert tuple(job.episodes_per_step for job in jobs) == batches
    assert tuple(job.steps for job in jobs) == steps
    assert left == ()
    assert all("after as many training episodes" in text for text in sentences(hypotheses))


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("steps 20 vs 80 or batch size 64 vs 256 at the same number of episodes", "found values beside both"),
        ("what is the best batch size at the same number of episodes?", "found a search"),
        ("what is the best learning rate with larger groups?", "one value of group_size where it is a condition"),
    ],
)
def test_what_equal_episodes_or_a_search_cannot_hold_is_refused_and_not_dropped(topic: str, told: str) -> None:
    assert told in refused(topic)


def test_what_a_search_is_asked_to_hold_is_no_knob_and_steps_that_follow_are_not_said_to_be_equal() -> None:
    _, designed, _ = planned("what is the best learning rate with a KL penalty?")
    assert designed.screen is not None
    assert [knob.field for knob in designed.screen.knobs] == ["learning_rate"]
    assert {constant.field for constant in designed.constants} == {"kl_coef"}
    topic = "batch size 64 vs 256 at the same number of episodes"
    proposed, _, _ = planned(topic)
    note = turn_on(topic, hypotheses=accept_hypotheses(proposed)).note
    assert "steps is 80 in the control; in the others it follows the batch" in note


def test_a_batch_that_gives_no_whole_number_of_steps_is_refused() -> None:
    assert "whole steps" in wrong_shape("batch size 48 vs 72 with 40 steps at the same number of episodes")


def wrong_shape(topic: str) -> str:
    from research.errors import DesignRefused

    proposed, designed, _ = planned(topic)
    with pytest.raises(DesignRefused) as caught:
        unsized_design(accept_hypotheses(proposed), designed, None, StatisticalRequirements())
    return caught.value.message


@pytest.mark.parametrize("topic", ["show that entropy bonus does not help", "a larger group makes no difference"])
def test_who_asks_for_no_difference_is_answered_by_equivalence(topic: str) -> None:
    proposed, _, _ = planned(topic)
    (hypothesis,) = accept_hypotheses(proposed)
    assert hypothesis.sought == "equivalence"
    assert "Equivalent is what is asked for" in sentences([hypothesis])[0]


def test_more_values_than_a_study_compares_one_by_one_are_searched_as_named() -> None:
    _, designed, left = planned("group size 4 vs 8 vs 16 vs 32 vs 64")
    assert designed.screen is not None
    assert [knob.values for knob in designed.screen.knobs] == [(4, 8, 16, 32, 64)]
    assert left == ()


def test_a_question_for_what_helps_searches_what_is_expected_to_matter() -> None:
    _, designed, _ = planned("what helps most on guess?")
    assert designed.screen is not None
    assert [knob.field for knob in designed.screen.knobs] == [
        "learning_rate",
        "episodes_per_step",
        "epochs",
        "group_size",
    ]


UNKNOWN = st.from_regex(r"\A[bcdfgjkqvxz][aeiou][bcdfgjkqvxz]{2}[aeiou][bcdfgjkqvxz]\Z")
"""Words that nobody has written down."""
PLACES = (
    "{} group size 4 vs 16", "group size 4 vs 16 {}", "does {} help with group size 4 vs 16 on guess?",
    "does a larger group help {} agents", "group size 4 vs 16 with {}", "group size 4 vs {}", "{} or a larger group",
    "larger groups on {}", "when {} is high, do larger groups help?", "do larger groups raise {} on sums?",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(UNKNOWN, st.sampled_from(PLACES))
def test_no_word_is_passed_over(word: str, place: str) -> None:
    topic = place.format(word)
    try:
        left = " ".join(planned(topic)[2])
    except BadTopic as error:
        left = error.message
    assert word in left


@settings(max_examples=100, deadline=None)
@given(st.integers(17, 10_000).filter(lambda number: number not in (32, 64, 128, 256)), st.sampled_from(PLACES))
def test_no_number_is_passed_over(number: int, place: str) -> None:
    topic = place.format(number)
    try:
        proposed, designed, left = planned(topic)
    except BadTopic:
        return
    held = [*(entry.treatment for entry in proposed.hypotheses), *(entry.control for entry in proposed.hypotheses)]
    held += [designed.steps, *(constant.value for constant in designed.constants)]
    assert number in held or str(number) in " ".join(left)


def test_the_closed_lists_hold_no_name_and_no_direction() -> None:
    digest = Digest(topic="", seconds_left=1.0, seconds_per_run=1.0, parallel=1)
    single = {stem(text) for facts in (*digest.fields, *digest.environments) for text in (facts.name, *facts.synonyms)}
    assert not (GRAMMAR | ASKING) & (single - {"step"})


def by_flags(*vary: str, held: tuple[str, ...] = (), env: str | None = None) -> RequestedComparison:
    return replace(RequestedComparison.asked(list(vary), list(held)), environment=env)


def test_a_comparison_by_flags_needs_no_reading() -> None:
    wanted = by_flags("group_size=4,16", held=("steps=80",), env="arith")
    proposed, designed, left = planned(wanted.text(), wanted=wanted)
    assert [(entry.control, entry.treatment) for entry in proposed.hypotheses] == [(4, 16)]
    assert (designed.environment, designed.steps, left) == ("arith", 80, ())
    assert RequestedComparison.of(wanted.settings()) == wanted
    assert wanted.text() == "--vary group_size=4,16 --set steps=80 --env arith"


def test_flags_say_how_fields_go_together() -> None:
    vary = ["group_size=4,16", "learning_rate=0.001,0.003"]
    for shape, claims in (("together", 1), ("interaction", 1), ("apart", 2)):
        wanted = RequestedComparison.asked(vary, [], shape=shape)
        proposed, _, left = planned(wanted.text(), wanted=wanted)
        assert (len(proposed.hypotheses), left) == (claims, ())
        assert RequestedComparison.of(wanted.settings()) == wanted
    crossed = RequestedComparison.asked(vary, [], shape="interaction")
    assert planned(crossed.text(), wanted=crossed)[0].hypotheses[0].moderator == "learning_rate"
    assert crossed.text() == "--vary group_size=4,16 --vary learning_rate=0.001,0.003 --as interaction"
    rising = RequestedComparison.asked(["group_size=4,8,16"], [], shape="trend")
    assert planned(rising.text(), wanted=rising)[0].hypotheses[0].ladder == (4, 8, 16)


@pytest.mark.parametrize(
    ("vary", "shape", "found"),
    [
        (["group_size=4,16"], "interaction", "expected two --vary with two values each; found 2 values of group_size"),
        (["group_size=4,8,16", "epochs=1,2"], "interaction", "found 3 values of group_size and 2 values of epochs"),
        (["group_size=4,16"], "together", "expected --vary of 2 to 4 fields with as many values"),
        (["group_size=4,8,16", "epochs=1,2"], "together", "with as many values"),
        (["group_size=4,16", "epochs=1,2"], "trend", "expected one --vary"),
        ([], "trend", "found no --vary"),
        (["group_size=4,16"], "interacton", "apart, together, interaction or trend; found 'interacton'"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_by_name(vary: list[str], shape: str, found: str) -> None:
    with pytest.raises(BadTopic, match=re.escape(found)):
        RequestedComparison.asked(vary, [], shape=shape)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_flags_say_what_they_said(data: st.DataObject) -> None:
    digest = Digest(topic="", seconds_left=1.0, seconds_per_run=1.0, parallel=1)
    facts = data.draw(st.sampled_from(digest.fields))
    values = data.draw(st.lists(st.sampled_from(facts.ladder), min_size=2, max_size=3, unique=True))
    wanted = RequestedComparison({facts.name: tuple(values)})
    assert RequestedComparison.asked([wanted.text().removeprefix("--vary ")], []) == wanted
    assert [value for _, _, value in compared(wanted.text(), wanted=wanted)] == values[1:]


def test_a_flag_names_the_environment_of_a_topic_that_names_none() -> None:
    assert planned("group size 4 vs 16", wanted=by_flags(env="arith"))[1].environment == "arith"
    assert planned("group size 4 vs 16 on sums", wanted=by_flags(env="arith"))[1].environment == "arith"
    assert "found --env arith and a topic that names guess" in refused(
        "group size 4 vs 16 on guess", wanted=by_flags(env="arith")
    )


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("is group size 4 as good as 16?", [("group_size", 4, 16)]),
        ("does group size 4 match group size 16?", [("group_size", 4, 16)]),
        ("should group size be 4 or 16", [("group_size", 4, 16)]),
        ("try lr 1e-3 3e-3", [("learning_rate", 0.001, 0.003)]),
        ("does doubling the group size help?", [("group_size", 8, 16)]),
        ("does halving the temperature hurt?", [("temperature", 1.0, 0.5)]),
        ("does doubling the group size from 4 to 8 help?", [("group_size", 4, 8)]),
        ("does a small KL penalty hurt?", [("kl_coef", 0.0, 0.01)]),
        ("does a lower KL penalty help?", [("kl_coef", 0.1, 0.0)]),
        ("is a larger group size good with lr 1e-3?", [("group_size", 4, 16)]),
        ("does training with lr 3e-3 need KL?", [("kl_coef", 0.0, 0.1)]),
        ("does GRPO need std normalization?", [("normalize_advantage", False, True)]),
        ("does training with larger groups and higher temperature help?",
         [("group_size", 4, 16), ("temperature", 0.7, 1.3)]),
        ("with RLOO, does a larger group help?", [("group_size", 4, 16)]),
        ("lr 1e-3 vs 3e-3 and group size 4 vs 16", [("learning_rate", 0.001, 0.003), ("group_size", 4, 16)]),
    ],
)  # fmt: skip
def test_words_of_degree_and_of_likeness_are_read_as_they_are_meant(
    topic: str, expected: list[tuple[str, Any, Any]]
) -> None:
    assert compared(topic) == expected


@pytest.mark.parametrize("topic", ["does group size 8 beat 4 or 16?", "is a group size of 8 better than 4 and 16?"])
def test_a_value_said_to_beat_several_is_claimed_to_be_the_better_one(topic: str) -> None:
    proposed, _, _ = planned(topic)
    claims = [(entry.control, entry.treatment, entry.direction) for entry in proposed.hypotheses]
    assert claims == [(8, 4, "decrease"), (8, 16, "decrease")]


@pytest.mark.parametrize("topic", ["what's the best learning rate for guess?", "what\u2019s the best learning rate?"])
def test_a_search_is_one_with_an_apostrophe_too(topic: str) -> None:
    assert planned(topic)[0].search


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("at a high learning rate, does clip-higher help?", "one value of learning_rate where it is a condition"),
        ("does group size help only at high temperature?", "one value of temperature where it is a condition"),
        ("does a larger group size help with more steps?", "one value of steps where it is a condition"),
        ("anything but learning rate: what is the best hyperparameter?", "'but learning rate'"),
        ("rloo without kl vs grpo with kl 0.1", "algorithm and kl_coef together"),
        ("is entropy higher with entropy bonus 0.01", "a measure, entropy higher"),
        ("how long does training take with group size 4 vs 16", "a measure, how long does training take"),
        ("group size 4 vs 16, not on guess", "'not on guess'"),
        ("group size 4 vs 16 except in arith", "'except in arith'"),
        ("does the group size interact with the learning rate and the kl penalty?", "two fields where the effect"),
        ("does the effect of group size 4 vs 8 vs 16 depend on the learning rate?", "3 values of group_size"),
        ("is there a trend over learning rate 1e-3, 3e-3?", "3 or 4 values of learning_rate"),
        ("is there a trend of the learning rate and the group size?", "the numbers of one field"),
        ("group size 4 with lr 1e-3 vs group size 16 with lr 3e-3 for 40 vs 80 steps", "together beside steps"),
        ("is a group size of 16 cheaper?", "a measure, cheaper"),
    ],
)
def test_a_condition_without_its_value_becomes_no_comparison_of_its_own(topic: str, named: str) -> None:
    assert named in refused(topic)


@pytest.mark.parametrize(
    ("topic", "control", "treatment"),
    [
        (
            "does a group size of 16 with lr 1e-3 beat group size 4 with lr 3e-3?",
            {"group_size": 4, "learning_rate": 0.003},
            {"group_size": 16, "learning_rate": 0.001},
        ),
        (
            "batch size 64 for 80 steps vs batch size 256 for 20 steps",
            {"episodes_per_step": 64, "steps": 80},
            {"episodes_per_step": 256, "steps": 20},
        ),
        (
            "batch size 64 with 80 steps vs batch size 256 with 20 steps at the same number of episodes",
            {"episodes_per_step": 64, "steps": 80},
            {"episodes_per_step": 256, "steps": 20},
        ),
        (
            "is 80 steps with 64 episodes per step better than 20 steps with 256 episodes per step",
            {"steps": 20, "episodes_per_step": 256},
            {"steps": 80, "episodes_per_step": 64},
        ),
        (
            "rloo with kl 0 vs grpo with kl 0.1",
            {"algorithm": "rloo", "kl_coef": 0.0},
            {"algorithm": "grpo", "kl_coef": 0.1},
        ),
    ],
)
def test_what_a_topic_sets_against_each_other_as_wholes_goes_together(
    topic: str, control: dict[str, Any], treatment: dict[str, Any]
) -> None:
    proposed, designed, left = planned(topic)
    (entry,) = proposed.hypotheses
    assert (entry.variable, *entry.sides) == ("configuration", control, treatment)
    assert designed.steps is None
    assert not left
    assert "the fields differ together" in turn_on(topic).note


@pytest.mark.parametrize(
    ("topic", "control", "treatment"),
    [
        (
            "does the effect of group size depend on the learning rate?",
            {"group_size": 4, "learning_rate": 0.0003},
            {"group_size": 16, "learning_rate": 0.003},
        ),
        (
            "does the effect of group size 4 vs 16 depend on learning rate 1e-3 vs 3e-3 with 40 steps in arith?",
            {"group_size": 4, "learning_rate": 0.001},
            {"group_size": 16, "learning_rate": 0.003},
        ),
        (
            "is there an interaction between group size and learning rate?",
            {"group_size": 4, "learning_rate": 0.0003},
            {"group_size": 16, "learning_rate": 0.003},
        ),
        (
            "how does group size interact with learning rate",
            {"group_size": 4, "learning_rate": 0.0003},
            {"group_size": 16, "learning_rate": 0.003},
        ),
        (
            "does higher temperature need a lower learning rate?",
            {"temperature": 0.7, "learning_rate": 0.003},
            {"temperature": 1.3, "learning_rate": 0.0003},
        ),
    ],
)
def test_whether_an_effect_depends_on_another_field_is_asked_of_four_arms(
    topic: str, control: dict[str, Any], treatment: dict[str, Any]
) -> None:
    proposed, designed, left = planned(topic)
    (entry,) = proposed.hypotheses
    assert (entry.variable, *entry.sides) == ("configuration", control, treatment)
    assert entry.moderator == "learning_rate"
    assert "than with learning_rate" in entry.falsifier
    assert designed.environment == ("arith" if "arith" in topic else "guess")
    assert not left
    assert "four arms, and twice the variance" in turn_on(topic).note


@pytest.mark.parametrize(
    ("topic", "field", "ladder"),
    [
        ("is there a trend over learning rate 3e-4, 1e-3 and 3e-3?", "learning_rate", (0.0003, 0.001, 0.003)),
        ("does success rise steadily with group size 16, 4, 8?", "group_size", (4, 8, 16)),
        ("dose-response of the learning rate on guess", "learning_rate", (0.0003, 0.001, 0.003)),
    ],
)
def test_a_trend_is_one_claim_over_a_ladder(topic: str, field: str, ladder: tuple[float, ...]) -> None:
    proposed, _, left = planned(topic)
    (entry,) = proposed.hypotheses
    assert (entry.variable, entry.ladder, entry.control, entry.treatment) == (field, ladder, ladder[0], ladder[-1])
    assert not left


def test_no_worse_is_a_question_for_likeness() -> None:
    assert {entry.sought for entry in planned("is group size 4 no worse than 16?")[0].hypotheses} == {"equivalence"}
