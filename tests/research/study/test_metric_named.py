"""A planner that names a metric: the design is made with it, unless the user named another one."""

from __future__ import annotations

from typing import Any

import pytest

from research.design.compiler import DesignCompiler
from research.design.pricing import make_pricing
from research.design.requirements import StatisticalRequirements
from research.errors import DesignRefused
from research.metrics.asked import AskedMetric
from research.noise.bank import NoiseBank
from research.planner.digest import Digest
from research.planner.protocol import Check, PlannerTurn
from research.planning.evaluation import PlanningContext
from research.planning.preview import preview
from research.proposals.actions import Action, Propose, ProposeDesign, ProposedHypothesis
from studies.records import sentences
from studies.records.design import Budget


class Naming:
    """A planner that names a metric."""

    name = "naming"
    model = None

    def __init__(self, metric: str, **changes: Any) -> None:
        claim = {
            "mechanism": "m", "variable": "group_size", "control": 4, "treatment": 16, "direction": "decrease",
            "predicted_low": -1500.0, "predicted_high": 100.0, "probability": 0.4,
        }  # fmt: skip
        self._hypothesis = ProposedHypothesis.model_validate({**claim, **changes})
        self._metric = metric
        self.digests: list[Digest] = []

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        """Return the due action, with its refusal."""
        self.digests.append(digest)
        action: Action = ProposeDesign(environment="guess")
        if digest.stage == "propose":
            action = Propose(hypotheses=(self._hypothesis,), metric=self._metric)
        return PlannerTurn(action, refused=check(action))


def context(asked: AskedMetric | None = None) -> PlanningContext:
    compiler = DesignCompiler(
        make_pricing(2), Budget(wall_clock_s=100_000), requirements=StatisticalRequirements(metric=asked),
        bank=NoiseBank(),
    )  # fmt: skip
    return PlanningContext("does a larger group help?", compiler, lambda: 100_000.0)


def test_a_planner_names_the_metric_by_which_its_claims_are_judged() -> None:
    planner = Naming("episodes:0.7")
    seen = preview(context(), planner)
    assert seen.refused is None
    assert seen.metric.key == "hidden/episodes_to_0.7"
    assert seen.hypotheses[0].statement.startswith("group_size = 16 needs fewer episodes")
    assert sentences.tested(None, seen.hypotheses) == (f"Whether {seen.hypotheses[0].statement}",), (
        "before a lock says it"
    )
    assert seen.first is not None
    assert seen.first.metric == seen.metric
    assert planner.digests[0].facts()["metric"]["name"] == "hidden success"
    assert "episodes:THRESHOLD" in planner.digests[0].facts()["metrics"]
    told = planner.digests[1].facts()
    assert told["metric"] | {"means": ""} == {
        "name": "episodes to 0.7 hidden success", "means": "", "worst": 5120.0, "best": 0.0, "unit": "episodes",
    }  # fmt: skip
    assert told["smallest_effect"] == 512.0


def test_a_metric_that_the_topics_words_chose_may_be_replaced_and_the_users_own_may_not() -> None:
    planner = Naming("episodes:0.8")
    assert preview(context(AskedMetric("episodes", 0.7, words="faster")), planner).metric.threshold == 0.8
    with pytest.raises(DesignRefused, match=r"expected the metric episodes:0\.7, which the user asks for"):
        preview(context(AskedMetric("episodes", 0.7)), Naming("episodes:0.8"))


@pytest.mark.parametrize(("metric", "said"), [("speed", "they are success"), ("episodes", "expected a threshold")])
def test_a_metric_that_there_is_not_is_refused(metric: str, said: str) -> None:
    with pytest.raises(DesignRefused, match=said):
        preview(context(), Naming(metric))
