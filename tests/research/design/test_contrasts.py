"""Interactions and trends as designs: four arms or a ladder, sized and priced by their own variance, or refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from research.design.comparison import StatisticalRequirements
from research.design.compiler import accept_hypotheses
from research.errors import DesignRefused
from research.planners.prompts import StatedPropose, schema
from research.proposals.actions import Propose, ProposeDesign
from studies.records.design import Budget, Design
from tests.golden import assert_golden
from tests.research.banks import bank
from tests.research.compiling import assert_refused, compile_design
from tests.research.fakes import PRICING

A, B = "group_size", "learning_rate"
LOW, HIGH = {A: 4, B: 1e-3}, {A: 16, B: 3e-3}
WISH = ProposeDesign(environment="guess")


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "mechanism": "m", "variable": "configuration", "control": LOW, "treatment": HIGH, "moderator": B,
        "direction": "increase", "predicted_low": -0.1, "predicted_high": 0.2, "probability": 0.5, **changes,
    }  # fmt: skip


def asked(*entries: dict[str, Any]) -> Propose:
    return Propose.model_validate({"action": "propose", "hypotheses": list(entries) or [entry()]})


def trend(*ladder: Any, **changes: Any) -> dict[str, Any]:
    return entry(variable=A, control=ladder[0], treatment=ladder[-1], moderator="", ladder=ladder, **changes)


def means(sd: float, budget_s: float = 1e6) -> dict[str, Any]:
    return {"price": PRICING, "budget": Budget(wall_clock_s=budget_s), "bank": bank(sd)}


def compiled(proposal: Propose, sd: float = 0.02, **wish: Any) -> Design:
    chosen = ProposeDesign.model_validate({"environment": "guess", "seeds_per_arm": 3, **wish})
    draw = itertools.count(1).__next__
    return compile_design("q", accept_hypotheses(proposal), chosen, draw_seed=draw, **means(sd))


def test_an_interaction_locks_four_arms_and_one_claim() -> None:
    design = compiled(asked())
    assert [dict(arm.overrides) for arm in design.arms] == [LOW, {A: 16, B: 1e-3}, {A: 4, B: 3e-3}, HIGH]
    assert list(design.contrast_of(design.hypotheses[0]).values()) == [1, -1, -1, 1]
    assert (design.test, design.multiplicity, design.control_arm) == ("contrast", "none", design.arms[0].name)
    assert_golden(design.hypotheses[0].statement)
    assert design.price.runs >= 4 * len(design.seeds)


def test_a_trend_locks_an_arm_for_each_value() -> None:
    design = compiled(asked(trend(4, 8, 16)))
    assert [arm.name for arm in design.arms] == [f"{A}=4", f"{A}=8", f"{A}=16"]
    assert list(design.contrast_of(design.hypotheses[0]).values()) == pytest.approx([-1, 0, 1])
    assert design.test == "contrast"


def test_an_interaction_takes_more_seeds_than_a_difference_of_the_same_size() -> None:
    plain = entry(variable=A, control=4, treatment=16, moderator="")
    counts = {name: len(compiled(asked(one), 0.06).seeds) for name, one in (("plain", plain), ("crossed", entry()))}
    assert 1.4 * counts["plain"] <= counts["crossed"] <= 2.2 * counts["plain"]


@pytest.mark.parametrize(
    ("entries", "sd", "budget_s", "told"),
    [
        ([], 0.06, 100.0, ["two differences has 2 times the variance", "seeds x 4 arms"]),
        ([], 0.5, 1e6, ["no 20 seeds see", "2 times the variance"]),
        ([trend(2, 4, 8, 16)], 0.06, 50.0, ["the rise over 4 values has 0.9 times the variance"]),
    ],
)  # fmt: skip
def test_a_refusal_says_why_a_contrast_is_dear(entries: list[Any], sd: float, budget_s: float, told: list[str]) -> None:
    assert_refused(WISH, accept_hypotheses(asked(*entries)), *told, **means(sd, budget_s))


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry(moderator="epochs")], "moderator: expected one of the two fields"),
        ([entry(control={**LOW, "epochs": 1}, treatment={**HIGH, "epochs": 2})], "moderator: expected one of the two"),
        ([entry(), trend(4, 8, 16)], "takes arms of its own: expected it alone"),
        ([trend(4, 16)], "ladder: expected 3 values or 4"),
        ([{**trend(4, 8, 16), "control": 8}], "ladder: expected 3 values or 4 from control to treatment"),
    ],
)
def test_what_is_no_contrast_is_no_proposal(entries: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        asked(*entries)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (trend(4, 16, 8), "expected numbers from the lowest to the highest"),
        (entry(variable="algorithm", control="grpo", treatment="gspo", moderator="", ladder=["grpo", "rloo", "gspo"]),
         "expected numbers from the lowest to the highest"),
        (entry(treatment={A: 16, B: 1e-3}), f"{B}: expected different values"),
        (entry(control={"reward": 1, A: 4}, treatment={"reward": 2, A: 8}, moderator=A), "found 'reward'"),
    ],
)  # fmt: skip
def test_what_has_no_order_or_does_not_cross_is_refused(one: dict[str, Any], told: str) -> None:
    with pytest.raises(DesignRefused, match=told):
        accept_hypotheses(asked(one))


def test_an_arm_that_is_no_job_is_refused_wherever_it_lies() -> None:
    one = entry(control={A: 4, "episodes_per_step": 128}, treatment={A: 16, "episodes_per_step": 8}, moderator=A)
    with pytest.raises(DesignRefused, match="no valid job"):
        compiled(asked(one))


def test_rates_of_runs_have_no_interaction() -> None:
    collapses = StatisticalRequirements.from_flags(None, 0.8, 3, 512, ["collapse"])
    claims = accept_hypotheses(asked())
    assert_refused(WISH, claims, "judged by counting", requirements=collapses, **means(0.02))


def test_a_strict_schema_offers_lists_of_fields_and_no_open_object() -> None:
    offered = schema(StatedPropose)
    claim = offered["$defs"]["StatedHypothesis"]
    assert {"moderator", "ladder", "control"} <= set(claim["required"])
    assert offered["$defs"]["FieldValue"]["additionalProperties"] is False
    kinds = [option.get("type") for option in claim["properties"]["control"]["anyOf"]]
    assert "array" in kinds
    assert "object" not in kinds


def test_an_ablation_is_a_recipe_against_each_part_set_back() -> None:
    parts = {A: (16, 4), B: (3e-3, 1e-3), "epochs": (2, 1)}
    design = compiled(asked(*(
        entry(variable=name, control=on, treatment=off, moderator="", direction="decrease")
        for name, (on, off) in parts.items()
    )))  # fmt: skip
    recipe, *without = (dict(arm.overrides) for arm in design.arms)
    assert recipe == {name: on for name, (on, _) in parts.items()}
    assert without == [{name: off} for name, (_, off) in parts.items()]
    assert (design.test, design.multiplicity) == ("common", "dunnett_bh")
