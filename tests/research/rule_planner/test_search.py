"""Topics that ask for the best values become a screen; all others do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.design.comparison import UnsizedDesign, unsized_design
from research.design.compiler import seed_source
from research.design.pricing import make_pricing
from research.design.requirements import StatisticalRequirements
from research.errors import BadTopic
from research.planner import Digest
from research.proposals.actions import MOST_KNOBS, Propose, ProposeDesign
from research.rule_planner.planner import RulesPlanner
from studies.records.design import Budget
from swarm.job import Job, tunables
from tests.research.compiling import compile_design

SEARCHED = sorted(name for name in tunables() if name != "steps")


def act(topic: str, **facts: Any) -> tuple[Any, str]:
    known = {"topic": topic, "seconds_left": 600.0, "seconds_per_run": 58.0, "parallel": 2, **facts}
    turn = RulesPlanner().act(Digest(**known), lambda action: None)
    return turn.action, turn.note


def searched(topic: str) -> tuple[dict[str, tuple[Any, ...]], ProposeDesign]:
    proposed, _ = act(topic)
    assert proposed == Propose(search=True), proposed
    designed, _ = act(topic, search=True)
    assert isinstance(designed, ProposeDesign)
    assert designed.screen is not None
    return {knob.field: knob.values for knob in designed.screen.knobs}, designed


def test_the_best_learning_rate_and_group_size_are_searched_over_their_ladders() -> None:
    knobs, design = searched("What is the best learning rate and group size on guess?")
    assert knobs == {"learning_rate": (3e-4, 1e-3, 3e-3), "group_size": (2, 4, 8, 16)}
    assert design.environment == "guess"
    assert design.screen is not None
    assert design.screen.confirm == 1


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("Which temperature works best?", {"temperature": (0.7, 1.0, 1.3)}),
        ("tune the learning rate on sums", {"learning_rate": (3e-4, 1e-3, 3e-3)}),
        ("optimal group size", {"group_size": (2, 4, 8, 16)}),
        ("Which value of the KL penalty should I use?", {"kl_coef": (0.0, 0.01, 0.1)}),
        ("How large a batch size is best?", {"episodes_per_step": (32, 64, 128, 256)}),
        ("sweep lr and temperature", {"learning_rate": (3e-4, 1e-3, 3e-3), "temperature": (0.7, 1.0, 1.3)}),
        ("best learning rate among 1e-4, 1e-3 and 1e-2", {"learning_rate": (1e-4, 1e-3, 1e-2)}),
        ("What is the best learning rate at group size 4?", {"learning_rate": (3e-4, 1e-3, 3e-3)}),
    ],
)  # fmt: skip
def test_questions_for_the_best_are_searched(topic: str, expected: dict[str, tuple[Any, ...]]) -> None:
    assert searched(topic)[0] == expected


@pytest.mark.parametrize(
    "topic",
    [
        "Does a larger group size learn best?",
        "Which works best on guess, RLOO or GRPO?",
        "What is the best: group size 4 or 16?",
        "Is normalising advantages best?",
        "learning rate 1e-3 vs 3e-3",
        "Does fine-tuning with a larger lr help?",
        "which is better, group size 4 or 16",
    ],
)
def test_comparisons_are_not_searched(topic: str) -> None:
    proposed, _ = act(topic)
    assert isinstance(proposed, Propose)
    assert proposed.hypotheses
    assert not proposed.search


def test_single_values_are_constants_and_needs_are_met() -> None:
    _, design = searched("best clip ratio at learning rate 3e-3 with 20 training steps")
    assert design.steps == 20
    assert {entry.field: entry.value for entry in design.constants} == {"learning_rate": 3e-3, "minibatches": 4}


@pytest.mark.parametrize(("words", "count"), [("best", 1), ("two best", 2), ("best three", 3)])
def test_as_many_are_confirmed_as_the_topic_says(words: str, count: int) -> None:
    _, design = searched(f"find the {words} learning rates and temperatures")
    assert design.screen is not None
    assert design.screen.confirm == count


def test_everything_assumed_stands_in_the_note() -> None:
    _, note = act("What is the best learning rate?", search=True)
    for told in (
        "screen that makes no claim",
        "0.0003, 0.001, 0.003 (control 0.001)",
        "fresh seeds",
        "effect",
        "guess",
    ):
        assert told in note


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("What is the best number of training steps?", "other than steps"),
        ("tune lr, kl, entropy, clip and temperature", f"at most {MOST_KNOBS} fields"),
        ("best learning rate among 2, 3 and 4", "less than or equal to 1"),
        ("best learning rate among 1e-3, 1e-3 and 1e-3", "name each once"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(topic: str, told: str) -> None:
    with pytest.raises(BadTopic) as caught:
        act(topic)
    assert told in caught.value.message
    assert "\n" not in caught.value.message


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(SEARCHED), min_size=1, max_size=MOST_KNOBS, unique=True),
    st.sampled_from(["What is the best {}?", "tune {} on sums", "Which {} should I use on guess?", "the optimal {}"]),
)
def test_any_fields_give_a_screen_of_valid_jobs_or_one_clear_line(fields: list[str], question: str) -> None:
    topic = question.format(" and ".join(fields))
    outcome = shape_or_line(topic)
    if isinstance(outcome, str):
        assert "\n" not in outcome
    elif outcome is None:
        assert len(fields) == 1, "two fields always leave something to search"
    else:
        assert outcome.screen is not None
        assert outcome.screen.prediction is not None
        assert [knob.field for knob in outcome.screen.knobs] == fields
        assert outcome.screen.confirmed < outcome.screen.candidates


def shape_or_line(topic: str) -> UnsizedDesign | str | None:
    """What the question for the best leads to: a screen, the refusal's line, or None for a comparison."""
    try:
        proposed, _ = act(topic)
        return unsized_design((), searched(topic)[1], None, StatisticalRequirements()) if proposed.search else None
    except BadTopic as error:
        return error.message


def test_a_question_for_the_best_can_be_locked_with_the_shipped_bank() -> None:
    _, wish = searched("What is the best learning rate and group size on guess?")
    design = compile_design(
        "q", (), wish, price=make_pricing(2), budget=Budget(wall_clock_s=1e9), draw_seed=seed_source("s", b"secret")
    )
    assert design.screen is not None
    assert design.screen.prediction is not None
    Job.model_validate({**design.base_job, **design.arms[0].job_overrides})
