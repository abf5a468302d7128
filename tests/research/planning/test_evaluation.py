"""A design is evaluated once, and what differs from it is evaluated again, however alike it looks."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean
from typing import Any, cast

import pytest

from research.controller.evaluation import ActionCheck, PlanningContext
from research.controller.preview import expected_seeds, preview, run_hours
from research.design.comparison import StatisticalRequirements
from research.design.compiler import DesignCompiler
from research.design.noise_bank import NoiseBank
from research.design.power import planned_looks
from research.design.pricing import Pricing, Stage, make_pricing
from research.errors import DesignRefused
from research.planners.context import Digest
from research.planners.protocol import Check, PlannerTurn
from research.proposals.actions import Action, Constant, Propose, ProposeDesign, ProposedHypothesis
from research.proposals.flags import RequestedComparison
from research.proposals.metric_choice import AskedMetric
from studies.records import statements
from studies.records.design import Budget
from studies.records.procedure import Look
from swarm.job import Job
from tests.lazily import lazy


class Counting(ActionCheck):
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


stats = lazy("scipy.stats")
SD = 0.03


def simulated(looks: tuple[Look, ...], effect: float, studies: int) -> float:
    source, ends = random.Random(1), []
    for _ in range(studies):
        differences = [source.gauss(effect, SD * 2**0.5) for _ in range(looks[-1].seeds)]
        for look in looks:
            z = fmean(differences[: look.seeds]) / (SD * (2 / look.seeds) ** 0.5)
            if abs(z) > stats.norm.isf(look.alpha / 2):
                break
        ends.append(look.seeds)
    return fmean(ends)


@pytest.mark.parametrize(
    ("studies", "within"), [(400, 0.5), pytest.param(4000, 0.15, marks=pytest.mark.full)], ids=["quick", "full"]
)
@pytest.mark.parametrize("effect", [0.0, 0.03, 0.06, 0.2])
def test_expected_seeds_are_those_of_a_simulation(effect: float, studies: int, within: float) -> None:
    looks = planned_looks(9, 3)
    assert expected_seeds(looks, effect, SD) == pytest.approx(simulated(looks, effect, studies), abs=within)


def test_one_look_saves_nothing_and_run_hours_are_those_of_all_runs() -> None:
    assert expected_seeds(planned_looks(3, 3), 0.5, SD) == 3
    assert run_hours([Stage("a", 10, 36.0), Stage("b", 1, 3600.0)]) == pytest.approx(1.1)


class Naming:
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
    assert statements.tested(None, seen.hypotheses) == (f"Whether {seen.hypotheses[0].statement}",), (
        "before a lock says it"
    )
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
    with pytest.raises(DesignRefused, match=r"the metric episodes:0\.7, which the user"):
        preview(context(AskedMetric("episodes", 0.7)), Naming("episodes:0.8"))


def test_what_a_model_chose_by_itself_and_what_of_the_topic_nobody_read_is_said() -> None:
    ordered = replace(context(), topic="does the order of tasks, easy-first or mixed, matter for larger groups?")
    asked = preview(replace(ordered, topic="larger groups on guess"), Naming("", smallest_effect=0.1))
    assert (asked.not_tested, asked.notes) == ((), ())
    seen = preview(ordered, Naming("transfer:arith", direction="increase", predicted_low=-0.1, predicted_high=0.3,
                                   smallest_effect=0.05))  # fmt: skip
    assert all(word in "".join(seen.not_tested) for word in ("order", "easy-first", "mixed"))
    chosen = ("metric transfer:arith", "effect of 0.05", "environment guess")
    assert [name for name in chosen if name not in " ".join(seen.notes)] == []
    assert " ".join(seen.notes).count("planner's choice") == 3


@pytest.mark.parametrize(("metric", "said"), [("speed", "they are success"), ("episodes", "expected a threshold")])
def test_a_metric_that_there_is_not_is_refused(metric: str, said: str) -> None:
    with pytest.raises(DesignRefused, match=said):
        preview(context(), Naming(metric))
