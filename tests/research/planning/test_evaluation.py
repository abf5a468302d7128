"""A design is evaluated once, and what differs from it is evaluated again, however alike it looks."""

from __future__ import annotations

from typing import Any, cast

import pytest

from research.design.compiler import DesignCompiler
from research.design.pricing import Pricing
from research.planning.evaluation import ActionCheck, PlanningContext
from research.proposals.actions import Action, Constant, ProposeDesign
from research.proposals.flags import RequestedComparison
from studies.records.design import Budget
from swarm.job import Job


class Counting(ActionCheck):
    """Notes what is evaluated, and accepts it."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), cast(Any, None))
        self.evaluated: list[Action] = []

    def _evaluate(self, action: Action) -> None:
        self.evaluated.append(action)


def design(value: object) -> ProposeDesign:
    fixed = Constant(field="normalize_advantage", value=cast(Any, value))
    return ProposeDesign.model_construct(constants=(fixed,))


def test_an_answer_that_was_corrected_from_0_to_false_is_evaluated_again() -> None:
    check, wrong, right = Counting(), design(0), design(False)
    assert wrong == right, "as Python has it"
    check(wrong)
    check(right)
    check(right)
    assert check.evaluated == [wrong, right]
    assert check.evaluated[1] is right


SECONDS = {"guess": 10.0, "arith": 70.0, "market": 30.0}


@pytest.mark.parametrize(
    ("topic", "wanted", "base", "environment"),
    [
        ("learning rate 1e-3 vs 3e-3", RequestedComparison(), None, "guess"),
        ("learning rate 1e-3 vs 3e-3 on arith", RequestedComparison(), None, "arith"),
        ("learning rate 1e-3 vs 3e-3", RequestedComparison(environment="market"), None, "market"),
        ("", RequestedComparison(vary={"group_size": (4, 16)}, environment="arith"), None, "arith"),
        ("learning rate 1e-3 vs 3e-3", RequestedComparison(), Job(environment="market"), "market"),
    ],
)
def test_a_planner_is_told_the_price_of_the_environment_that_is_asked_for(
    topic: str, wanted: RequestedComparison, base: Job | None, environment: str
) -> None:
    price = Pricing(lambda job: SECONDS[job.environment], parallel=2, overhead_s=0.0, basis="made up")
    compiler = DesignCompiler(price=price, budget=Budget(wall_clock_s=1000.0), base=base)
    digest = PlanningContext(topic, compiler, lambda: 1000.0, wanted).digest()
    assert digest.seconds_per_run == SECONDS[environment]
    assert digest.fixed == ({"environment": "market"} if base else {})
