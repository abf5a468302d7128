"""A design answers the topic: what the topic names is in the plan, or is left out in the open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.design.compiler import accept_hypotheses
from research.installation.base_job import model_folder
from research.planners import unsupported
from research.planners.context import Digest, tunable_facts
from research.planners.prompts import left_out, messages
from research.planners.topic import readable
from research.proposals import actions
from research.proposals.actions import Constant, Propose, ProposeDesign, ProposedReplication
from research.proposals.arms import ComparedModels
from research.proposals.flags import RequestedComparison
from studies.records.design import MODEL
from tests.golden import assert_golden
from tests.research.factories import make_claim
from tests.research.model_folders import model_at

BATCH = Constant(field="episodes_per_step", value=32)


def claims(variable: str = "group_size", control: Any = 8, treatment: Any = 16) -> Propose:
    return Propose(hypotheses=(make_claim(variable, control, treatment),))


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
        ("At a lower temperature of 0.7, larger groups?", {"constants": (Constant(field="temperature", value=0.7),)}),
    ],
)
def test_what_the_topic_names_and_the_plan_has_is_not_left_out(topic: str, wish: dict[str, Any]) -> None:
    assert found(topic, **wish) is None


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("group size 4 vs 16", "group_size 4"), ("group size 8 vs 16 at learning rate 0.003", "learning_rate 0.003"),
        ("Does a hotter temperature help larger groups?", "temperature"), ("group size 8 vs 16 with 128 frobs", "128"),
        ("group size 8 vs 16 on guess, replicated on arith", "the environment arith"),
    ],
)  # fmt: skip
def test_what_the_topic_names_and_the_plan_has_not_is_said_in_one_line_and_may_be_left_out_in_the_open(
    topic: str, named: str
) -> None:
    told = found(topic)
    assert named in told
    assert_golden(told)
    excuse = f"Left out for want of time: {named.replace('_', ' ')}."
    assert found(topic, not_tested=excuse) is None
    assert found(topic, claims().model_copy(update={"not_tested": excuse})) is None


def test_all_that_is_missing_is_said_at_once() -> None:
    told = found("group size 4 vs 16 at temperature 0.7")
    assert "topic names group_size 4 and temperature 0.7, which are in" in told


@pytest.mark.parametrize("topic", ["Does a hotter temperature help?", "Does the temperature matter?"])
def test_what_is_asked_about_cannot_be_held_constant_unsaid(topic: str) -> None:
    held = (Constant(field="temperature", value=1.0),)
    assert_golden(found(topic, constants=held))
    assert found(topic, constants=held, not_tested="Temperature 1 is left.") is None
    assert found(topic, claims("temperature", 1.0, 1.3)) is None


def test_no_other_environment_is_played_than_the_one_that_is_named_whatever_is_left_out() -> None:
    assert_golden(found("group size 8 vs 16 on arith", not_tested="arith is too slow here."))


def test_the_values_of_a_screens_knobs_are_in_the_plan() -> None:
    topic, search = "Which learning rate is best, 0.0003, 0.001 or 0.003?", Propose(search=True)

    def screen(*values: float) -> actions.ProposedScreen:
        knob = actions.ProposedKnob(field="learning_rate", values=values)
        return actions.ProposedScreen(knobs=(knob,), predicted_low=0.0, predicted_high=0.2, probability=0.5)

    assert found(topic, search, screen=screen(0.0003, 0.003)) is None, "the control holds the default"
    assert "0.0003" in (found(topic, search, screen=screen(0.001, 0.003)) or "")


@pytest.fixture
def models(tmp_path: Path) -> ComparedModels:
    folders = [model_at(tmp_path / "qwen-0.5b"), model_at(tmp_path / "smollm2", b"v")]
    return ComparedModels.found(map(str, folders), model_folder)


def digest(models: ComparedModels, proposed: bool = False) -> Digest:
    entry = make_claim(MODEL, "qwen-0.5b", "smollm2")
    topic = "Which learns more, {} or {}?".format(*(known.said for known in models.by_name.values()))
    return Digest(
        topic, 1e6, 10.0, 2, wanted=RequestedComparison(models=models), fields=tunable_facts(models=models),
        hypotheses=accept_hypotheses(Propose(hypotheses=(entry,)), models) if proposed else (),
        fixed={"max_tokens": 64},
    )  # fmt: skip


def test_folders_that_a_topic_names_are_no_models_that_are_not_here(models: ComparedModels) -> None:
    assert unsupported.unavailable(digest(models).topic, ["guess"]) is not None, (
        "by its words alone it would be refused"
    )
    assert unsupported.unavailable(readable(digest(models)), ["guess"]) is None
    assert left_out(digest(models, proposed=True), ProposeDesign(environment="guess")) is None, "all of it is planned"


def test_the_prompt_says_that_gains_are_judged_and_what_the_user_fixed(models: ComparedModels) -> None:
    said = messages(digest(models))[1]["content"]
    assert "`variable` may be 'model'" in said
    assert "what each gains" in said
    assert '"fixed_by_the_user": {"max_tokens": 64}' in said
    plain = messages(Digest("q", 1e6, 10.0, 2))[1]["content"]
    assert "fixed_by_the_user" not in plain
    assert "may be 'model'" not in plain
