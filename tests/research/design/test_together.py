"""Fields that differ together in one arm: matched data, and settings that a topic sets against each other as wholes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from pydantic import ValidationError

from research.design.compiler import accept_hypotheses
from research.errors import DesignRefused
from research.proposals.actions import Propose, ProposeDesign
from studies.records.alpha import allocate_single_round
from studies.records.design import Budget, Design
from studies.records.statements import sentences
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import judge
from tests.golden import assert_golden
from tests.research.banks import bank
from tests.research.compiling import compile_design
from tests.research.fakes import PRICING

LONG, WIDE = {"episodes_per_step": 64, "steps": 80}, {"episodes_per_step": 256, "steps": 20}


def entry(control: Any, treatment: Any, **changes: Any) -> dict[str, Any]:
    return {
        "mechanism": "m", "variable": "configuration", "control": control, "treatment": treatment,
        "direction": "increase", "predicted_low": -0.1, "predicted_high": 0.2, "probability": 0.5, **changes,
    }  # fmt: skip


def proposal(control: Any = LONG, treatment: Any = WIDE, *more: Any, **changes: Any) -> Propose:
    sides = {"control": control, "treatment": treatment, **changes}
    return Propose.model_validate({"action": "propose", "hypotheses": [entry(**sides), *more]})


def compiled(asked: Propose, **design: Any) -> Design:
    wish = ProposeDesign.model_validate({"environment": "guess", **design})
    settings: dict[str, Any] = {"price": PRICING, "budget": Budget(wall_clock_s=1e6), "bank": bank(0.02)}
    return compile_design("q", accept_hypotheses(asked), wish, draw_seed=itertools.count(1).__next__, **settings)


def test_an_object_and_a_list_of_fields_are_the_same_proposal() -> None:
    as_list = [{"field": name, "value": value} for name, value in LONG.items()]
    assert proposal(as_list).hypotheses[0].sides == proposal().hypotheses[0].sides == (LONG, WIDE)
    again = Propose.model_validate_json(proposal().model_dump_json())
    assert again == proposal()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"treatment": {"episodes_per_step": 256, "epochs": 2}}, "the same fields in control and treatment"),
        ({"control": {"steps": 80}, "treatment": {"steps": 20}}, "at least 2 items"),
        ({"control": 4, "treatment": 16}, "found none and none"),
        ({"variable": "steps"}, "name the variable 'configuration'"),
    ],
)
def test_sides_of_other_fields_are_no_proposal(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        proposal(**changes)


def test_matched_data_is_locked_as_two_arms_that_differ_in_both_fields() -> None:
    design = compiled(proposal())
    assert [dict(arm.overrides) for arm in design.arms] == [LONG, WIDE]
    assert [arm.name for arm in design.arms] == ["episodes_per_step=64+steps=80", "episodes_per_step=256+steps=20"]
    claim = design.hypotheses[0]
    assert_golden(claim.statement)
    assert_golden(sentences([claim])[0])
    assert not any("more episodes" in fear for fear in claim.confounds)  # both arms train on 5,120


def test_unmatched_data_is_feared_for_its_amount() -> None:
    claim = compiled(proposal(LONG, {**WIDE, "steps": 40})).hypotheses[0]
    assert any("more episodes" in fear for fear in claim.confounds)


def test_a_longer_list_of_fields_gets_a_name_that_an_arm_can_have() -> None:
    low = {"learning_rate": 1e-3, "clip_ratio_high": 0.28, "temperature": 0.7, "minibatches": 2}
    high = {"learning_rate": 3e-3, "clip_ratio_high": 0.3, "temperature": 1.3, "minibatches": 4}
    names = [arm.name for arm in compiled(proposal(low, high)).arms]
    assert all(name.startswith("together-") for name in names)
    assert len(set(names)) == 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (proposal(LONG, {**WIDE, "steps": 80}), "steps: expected different values .* found 80 in both arms"),
        (proposal({"model": "a", "steps": 20}, {"model": "b", "steps": 40}), "found 'model'"),
        (proposal(LONG, WIDE, entry(4, 16, variable="group_size")), "compared alone, .*; found group_size"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_apart_is_refused(asked: Propose, told: str) -> None:
    with pytest.raises(DesignRefused, match=told):
        accept_hypotheses(asked)


def test_fields_of_an_arm_are_held_by_nobody_else() -> None:
    held = [{"field": "episodes_per_step", "value": 64}]
    with pytest.raises(DesignRefused, match="episodes_per_step is varied"):
        compiled(proposal(), constants=held)


def test_several_settings_share_one_control_and_are_corrected_for() -> None:
    design = compiled(proposal(LONG, WIDE, entry(LONG, {"episodes_per_step": 128, "steps": 40})))
    stake, draw = allocate_single_round(design), random.Random(1)
    data = {
        arm.name: ArmData({f"{arm.name}-{i}": draw.gauss(0.5, 0.05) for i in range(5)},
                          {f"{arm.name}-{i}": i for i in range(5)})
        for arm in design.arms
    }  # fmt: skip
    verdict = judge(stake, "h1", data, look=len(design.looks))
    assert verdict.p_adjusted > verdict.p
    assert list(JudgeInput(stake, design.hypotheses[1], data, 1).arms)[1] == "episodes_per_step=128+steps=40"
