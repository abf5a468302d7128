"""Fields that differ together in one arm, interactions and trends: arms of their own, sized by their own variance."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from pydantic import ValidationError

from research.design.comparison import StatisticalRequirements
from research.design.compiler import accept_hypotheses
from research.planners.prompts import schema
from research.proposals.actions import Propose, ProposeDesign
from research.proposals.metric_choice import RequestedMetric
from studies.records.alpha import allocate_single_round
from studies.records.design import Budget, Design
from studies.records.statements import sentences
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import judge
from tests.golden import assert_golden
from tests.research.banks import bank
from tests.research.compiling import assert_refused, compile_design, refusal
from tests.research.fakes import PRICING

LONG, WIDE = {"episodes_per_step": 64, "steps": 80}, {"episodes_per_step": 256, "steps": 20}
A, B = "group_size", "learning_rate"
LOW, HIGH = {A: 4, B: 1e-3}, {A: 16, B: 3e-3}
WISH = ProposeDesign(environment="guess")


def entry(control: Any = LONG, treatment: Any = WIDE, **changes: Any) -> dict[str, Any]:
    return {
        "mechanism": "m", "variable": "configuration", "control": control, "treatment": treatment,
        "direction": "increase", "predicted_low": -0.1, "predicted_high": 0.2, "probability": 0.5, **changes,
    }  # fmt: skip


def crossed(**changes: Any) -> dict[str, Any]:
    return entry(**{"control": LOW, "treatment": HIGH, "moderator": B, **changes})


def trend(*ladder: Any, **changes: Any) -> dict[str, Any]:
    return entry(**{"variable": A, "control": ladder[0], "treatment": ladder[-1], "ladder": ladder, **changes})


def asked(*entries: dict[str, Any]) -> Propose:
    return Propose.model_validate({"action": "propose", "hypotheses": list(entries) or [entry()]})


def means(sd: float, budget_s: float = 1e6) -> dict[str, Any]:
    return {"price": PRICING, "budget": Budget(wall_clock_s=budget_s), "bank": bank(sd)}


def compiled(*entries: dict[str, Any], sd: float = 0.02, **wish: Any) -> Design:
    chosen, draw = WISH.model_copy(update={"seeds_per_arm": 3, **wish}), itertools.count(1).__next__
    return compile_design("q", accept_hypotheses(asked(*entries)), chosen, draw_seed=draw, **means(sd))


def test_an_object_and_a_list_of_fields_are_the_same_proposal() -> None:
    as_list = [{"field": name, "value": value} for name, value in LONG.items()]
    assert asked(entry(as_list)).hypotheses[0].sides == asked().hypotheses[0].sides == (LONG, WIDE)
    assert Propose.model_validate_json(asked().model_dump_json()) == asked()


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry(treatment={"episodes_per_step": 256, "epochs": 2})], "the same fields in control and treatment"),
        ([entry({"steps": 80}, {"steps": 20})], "at least 2 items"), ([entry(4, 16)], "found none and none"),
        ([entry(variable="steps")], "name the variable 'configuration'"),
        ([crossed(moderator="epochs")], "moderator: expected one of the two fields"),
        ([entry({**LOW, "epochs": 1}, {**HIGH, "epochs": 2}, moderator=B)], "moderator: expected one of the two"),
        ([crossed(), trend(4, 8, 16)], "takes arms of its own: expected it alone"),
        ([trend(4, 16)], "ladder: expected 3 values or 4"),
        ([trend(4, 8, 16, control=8)], "ladder: expected 3 values or 4 from control to treatment"),
        ([trend(4, 16, 8)], "expected numbers from the lowest to the highest"),
        ([trend("grpo", "rloo", "gspo", variable="algorithm")], "expected numbers from the lowest to the highest"),
        ([crossed(matched="episodes")], "expected equal steps"),
    ],
)  # fmt: skip
def test_sides_that_do_not_match_and_what_is_no_contrast_are_no_proposal(entries: list[Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        asked(*entries)


def test_matched_data_is_locked_as_two_arms_that_differ_in_both_fields() -> None:
    design = compiled()
    assert [dict(arm.overrides) for arm in design.arms] == [LONG, WIDE]
    assert [arm.name for arm in design.arms] == ["episodes_per_step=64+steps=80", "episodes_per_step=256+steps=20"]
    claim = design.hypotheses[0]
    assert_golden(claim.statement)
    assert_golden(sentences([claim])[0])
    unmatched = compiled(entry(LONG, {**WIDE, "steps": 40})).hypotheses[0]
    for known, feared in ((claim, False), (unmatched, True)):  # both arms of the first train on 5,120
        assert any("more episodes" in fear for fear in known.confounds) == feared


def test_a_longer_list_of_fields_gets_a_name_that_an_arm_can_have() -> None:
    low = {"learning_rate": 1e-3, "clip_ratio_high": 0.28, "temperature": 0.7, "minibatches": 2}
    high = {"learning_rate": 3e-3, "clip_ratio_high": 0.3, "temperature": 1.3, "minibatches": 4}
    names = [arm.name for arm in compiled(entry(low, high)).arms]
    assert all(name.startswith("together-") for name in names)
    assert len(set(names)) == 2


def test_several_settings_share_one_control_and_are_corrected_for() -> None:
    design = compiled(entry(), entry(LONG, {"episodes_per_step": 128, "steps": 40}))
    stake, draw = allocate_single_round(design), random.Random(1)
    data = {
        arm.name: ArmData({f"{arm.name}-{i}": draw.gauss(0.5, 0.05) for i in range(5)},
                          {f"{arm.name}-{i}": i for i in range(5)})
        for arm in design.arms
    }  # fmt: skip
    verdict = judge(stake, "h1", data, look=len(design.looks))
    assert verdict.p_adjusted > verdict.p
    assert list(JudgeInput(stake, design.hypotheses[1], data, 1).arms)[1] == "episodes_per_step=128+steps=40"


def test_an_interaction_locks_four_arms_and_one_claim() -> None:
    design = compiled(crossed())
    assert [dict(arm.overrides) for arm in design.arms] == [LOW, {A: 16, B: 1e-3}, {A: 4, B: 3e-3}, HIGH]
    assert list(design.contrast_of(design.hypotheses[0]).values()) == [1, -1, -1, 1]
    assert (design.test, design.multiplicity, design.control_arm) == ("contrast", "none", design.arms[0].name)
    assert_golden(design.hypotheses[0].statement)
    assert design.price.runs >= 4 * len(design.seeds)


def test_a_trend_locks_an_arm_for_each_value() -> None:
    design = compiled(trend(4, 8, 16))
    assert [arm.name for arm in design.arms] == [f"{A}=4", f"{A}=8", f"{A}=16"]
    assert list(design.contrast_of(design.hypotheses[0]).values()) == pytest.approx([-1, 0, 1])
    assert design.test == "contrast"


def test_an_interaction_takes_more_seeds_than_a_difference_of_the_same_size() -> None:
    plain, four = (len(compiled(one, sd=0.06).seeds) for one in (entry(4, 16, variable=A), crossed()))
    assert 1.4 * plain <= four <= 2.2 * plain


@pytest.mark.parametrize(
    ("one", "sd", "budget_s", "told"),
    [
        (crossed(), 0.06, 100.0, ["two differences has 2 times the variance", "seeds x 4 arms"]),
        (crossed(), 0.5, 1e6, ["no 20 seeds see", "2 times the variance"]),
        (trend(2, 4, 8, 16), 0.06, 50.0, ["the rise over 4 values has 0.9 times the variance"]),
    ],
)  # fmt: skip
def test_a_refusal_says_why_a_contrast_is_dear(
    one: dict[str, Any], sd: float, budget_s: float, told: list[str]
) -> None:
    assert_refused(WISH, accept_hypotheses(asked(one)), *told, **means(sd, budget_s))


@pytest.mark.parametrize("one", [crossed(), trend(4, 8, 16)])
def test_a_contrast_of_gains_is_designed(one: dict[str, Any]) -> None:
    gains = StatisticalRequirements(metric=RequestedMetric.parse("gain"))
    assert refusal(WISH, accept_hypotheses(asked(one)), requirements=gains, **means(0.02)) is None


def test_rates_of_runs_have_no_interaction() -> None:
    collapses = StatisticalRequirements(metric=RequestedMetric.parse("collapse"))
    claims = accept_hypotheses(asked(crossed()))
    assert_refused(WISH, claims, "judged by counting", requirements=collapses, **means(0.02))


def test_a_strict_schema_offers_lists_of_fields_and_no_open_object() -> None:
    offered = schema(Propose)
    claim = offered["$defs"]["ProposedHypothesis"]
    assert {"moderator", "ladder", "control"} <= set(claim["required"])
    assert offered["$defs"]["FieldValue"]["additionalProperties"] is False
    kinds = [option.get("type") for option in claim["properties"]["control"]["anyOf"]]
    assert ("array" in kinds, "object" in kinds) == (True, False)


def test_an_ablation_is_a_recipe_against_each_part_set_back() -> None:
    parts = {A: (16, 4), B: (3e-3, 1e-3), "epochs": (2, 1)}
    entries = (entry(on, off, variable=name, direction="decrease") for name, (on, off) in parts.items())
    design = compiled(*entries)
    recipe, *without = (dict(arm.overrides) for arm in design.arms)
    assert recipe == {name: on for name, (on, _) in parts.items()}
    assert without == [{name: off} for name, (_, off) in parts.items()]
    assert (design.test, design.multiplicity) == ("common", "dunnett_bh")
