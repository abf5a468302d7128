"""A design answers the topic: what the topic names is in the plan, or is left out in the open."""

from __future__ import annotations

from typing import Any

import pytest

from research.design.compiler import accept_hypotheses
from research.llm_planner.coverage import left_out
from research.planner import Digest
from research.proposals.actions import (
    Constant,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedKnob,
    ProposedReplication,
    ProposedScreen,
)

BATCH = Constant(field="episodes_per_step", value=32)


def claims(variable: str = "group_size", control: Any = 8, treatment: Any = 16) -> Propose:
    claim = ProposedHypothesis(
        mechanism="", variable=variable, control=control, treatment=treatment, direction="increase", predicted_low=0.0,
        predicted_high=0.2, probability=0.5,
    )  # fmt: skip
    return Propose(hypotheses=(claim,))


def found(topic: str, proposal: Propose | None = None, **wish: Any) -> str | None:
    """Return what a plan for a topic leaves out: by default 8 against 16 in a group, played as `guess`."""
    proposed = claims() if proposal is None else proposal
    digest = Digest(
        topic=topic, seconds_left=600.0, seconds_per_run=58.0, parallel=2, hypotheses=accept_hypotheses(proposed),
        not_tested=proposed.not_tested,
    )  # fmt: skip
    return left_out(digest, ProposeDesign(**{"environment": "guess", **wish}))


@pytest.mark.parametrize(
    ("topic", "wish"),
    [
        ("Does a larger group help?", {}),
        ("group size 8 vs 16 on guess", {}),
        ("group size 8 vs 16 with 32 episodes per step", {"constants": (BATCH,)}),
        ("group size 8 vs 16, trained for 20 steps", {"steps": 20}),
        ("Compare 2 values: group size 8 vs 16", {}),
        ("group size 8 vs 16; use seed 42", {}),
        ("group size 8 vs 16 at learning rate 0.001", {}),
        ("group size 8 vs 16 on guess, replicated on arith", {"replication": ProposedReplication(environment="arith")}),
    ],
)
def test_what_the_topic_names_and_the_plan_has_is_not_left_out(topic: str, wish: dict[str, Any]) -> None:
    assert found(topic, **wish) is None


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("group size 4 vs 16", "group_size 4"),
        ("group size 8 vs 16 at learning rate 0.003", "learning_rate 0.003"),
        ("Does a hotter temperature help larger groups?", "temperature"),
        ("group size 8 vs 16 with 128 frobs", "128"),
        ("group size 8 vs 16 on guess, replicated on arith", "the environment arith"),
    ],
)
def test_what_the_topic_names_and_the_plan_has_not_is_said_in_one_line_and_may_be_left_out_in_the_open(
    topic: str, named: str
) -> None:
    assert found(topic) == (
        f"the topic names {named}, which is in no arm and no constant; use it, or say in not_tested why not"
    )
    excuse = f"Left out for want of time: {named.replace('_', ' ')}."
    assert found(topic, not_tested=excuse) is None
    assert found(topic, claims().model_copy(update={"not_tested": excuse})) is None


def test_all_that_is_missing_is_said_at_once() -> None:
    told = found("group size 4 vs 16 at temperature 0.7")
    assert told is not None
    assert "the topic names group_size 4 and temperature 0.7, which are in no arm" in told


@pytest.mark.parametrize("topic", ["Does a hotter temperature help?", "Does the temperature matter?"])
def test_what_is_asked_about_cannot_be_held_constant_unsaid(topic: str) -> None:
    held = (Constant(field="temperature", value=1.0),)
    assert found(topic, constants=held) == (
        "the topic asks about temperature, and the design holds it constant; vary it, or say in not_tested why not"
    )
    assert found(topic, constants=held, not_tested="The temperature stays as it is.") is None
    assert found(topic, claims("temperature", 1.0, 1.3)) is None


def test_a_field_with_its_one_value_is_a_setting() -> None:
    held = (Constant(field="temperature", value=0.7),)
    assert found("At a lower temperature of 0.7, do larger groups help?", constants=held) is None


def test_no_other_environment_is_played_than_the_one_that_is_named_whatever_is_left_out() -> None:
    told = found("group size 8 vs 16 on arith", not_tested="arith is too slow here.")
    assert told == (
        "the topic names the environment arith; found a design in guess; design it where it is asked for, or decline"
    )


def test_the_values_of_a_screens_knobs_are_in_the_plan() -> None:
    topic, search = "Which learning rate is best, 0.0003, 0.001 or 0.003?", Propose(search=True)

    def screen(*values: float) -> ProposedScreen:
        knob = ProposedKnob(field="learning_rate", values=values)
        return ProposedScreen(knobs=(knob,), predicted_low=0.0, predicted_high=0.2, probability=0.5)

    assert found(topic, search, screen=screen(0.0003, 0.003)) is None, "the control holds the default"
    assert "0.0003" in (found(topic, search, screen=screen(0.001, 0.003)) or "")
