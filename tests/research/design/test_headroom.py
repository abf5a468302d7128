"""A control at the ceiling or floor of its measure leaves nothing to see: such a design is refused, with a way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.comparison import StatisticalRequirements
from research.design.compiler import accept_hypotheses, seed_source
from research.design.noise_bank import NoiseBank, job_key
from research.design.pricing import Estimates, Pricing
from research.environments.catalog import MeasuredEnvironment, conditions_of, model_key
from research.errors import DesignRefused
from research.proposals.actions import Propose, ProposeDesign
from research.proposals.arms import ComparedModel, ComparedModels
from studies.records.design import GAIN, Budget, Hypothesis
from swarm.job import Job, PathModel
from tests.golden import assert_golden
from tests.research.banks import group
from tests.research.compiling import compile_design, noise_plan, refusal
from tests.research.factories import make_claim

PRICING = Pricing(lambda job: 10.0, parallel=2, overhead_s=0.0, basis="made up")
CONTROL = Job(group_size=4)


def at(level: float, sd: float = 0.02, job: Job = CONTROL) -> NoiseBank:
    shift = level - 0.5
    runs = group(sd, 12, job=job)
    return NoiseBank(
        frozenset(run.model_copy(update={"value": run.value + shift, "job": job_key(job)}) for run in runs)
    )


def accepted(direction: str = "increase") -> tuple[Hypothesis, ...]:
    return accept_hypotheses(Propose(hypotheses=(make_claim(**towards(direction)),)))


def towards(direction: str) -> dict[str, Any]:
    low, high = (0.0, 0.2) if direction == "increase" else (-0.2, 0.0)
    return {"direction": direction, "predicted_low": low, "predicted_high": high}


def refused(bank: NoiseBank, direction: str = "increase", **changes: Any) -> DesignRefused | None:
    wish = ProposeDesign(**{"environment": "guess", "seeds_per_arm": 3, **changes})
    hypotheses = () if "screen" in changes else accepted(direction)
    means: dict[str, Any] = {"price": PRICING, "budget": Budget(wall_clock_s=10_000), "bank": bank}
    return refusal(wish, hypotheses, requirements=StatisticalRequirements(effect=0.1), **means)


def test_a_control_near_the_ceiling_is_refused_with_what_would_help() -> None:
    found = refused(at(0.95))
    assert_golden(found.message)
    assert "design 20 steps" in found.model_feedback
    assert "decline" in found.model_feedback
    assert "--" not in found.model_feedback


def test_only_the_claimed_direction_needs_room() -> None:
    assert refused(at(0.95), "decrease") is None
    assert refused(at(0.05), "increase") is None
    assert refused(at(0.95, job=Job(group_size=4, steps=80))) is None  # another job says nothing of this one's level
    low = refused(at(0.05), "decrease")
    assert "the floor of 0" in low.message
    assert "train more steps, --set steps=80" in low.message


@pytest.mark.parametrize(("level", "where"), [(0.0, "floor"), (1.0, "ceiling")])
@pytest.mark.parametrize("direction", ["increase", "decrease"])
def test_runs_that_are_all_0_or_all_1_are_refused_in_any_direction(level: float, where: str, direction: str) -> None:
    bank = at(level, sd=0.0)
    found = refused(bank, direction)
    assert f"stands at the {where}: all 12 runs" in found.message
    assert "--effect" not in found.message
    means: dict[str, Any] = {
        "price": PRICING, "budget": Budget(wall_clock_s=10_000), "draw_seed": seed_source("s", b"x"), "bank": bank,
    }  # fmt: skip
    wish = ProposeDesign(environment="guess", seeds_per_arm=3)
    for compiling in (
        lambda: noise_plan(accepted(), wish, **means),
        lambda: compile_design("q", accepted(), wish, **means),
    ):
        with pytest.raises(DesignRefused, match=where):
            compiling()


@given(st.floats(0.12, 0.88), st.sampled_from(["increase", "decrease"]))
def test_where_the_effect_fits_nothing_is_refused(level: float, direction: str) -> None:
    assert refused(at(level), direction) is None


EPISODES = 256
TINY, OTHER = (Job(model=PathModel(path=f"/models/{name}", sha256=name * 32)) for name in ("aa", "bb"))
MODELS = ComparedModels({"tiny": ComparedModel("tiny", TINY.model), "other": ComparedModel("other", OTHER.model)})


def checked(job: Job, success: float, equal: float = 0.25) -> MeasuredEnvironment:
    return MeasuredEnvironment(
        environment="guess", model=model_key(job.model), measured_at="2026-01-01", base_success=success,
        base_success_n=EPISODES, equal_groups=equal, equal_groups_n=16, group_size=8, job=conditions_of(job),
    )  # fmt: skip


def gaining(level: float, sd: float = 0.02) -> NoiseBank:
    runs = at(level, sd, TINY).observations
    return NoiseBank(frozenset(run.model_copy(update={"metric": f"hidden:{GAIN}"}) for run in runs))


def models_refused(
    *known: MeasuredEnvironment, direction: str = "increase", bank: NoiseBank | None = None
) -> DesignRefused | None:
    claim = make_claim("model", "tiny", "other", **towards(direction))
    hypotheses = accept_hypotheses(Propose(hypotheses=(claim,)), MODELS)
    means: dict[str, Any] = {
        "price": replace(PRICING, estimates=Estimates(known)), "budget": Budget(wall_clock_s=10_000), "base": TINY,
        "bank": NoiseBank() if bank is None else bank, "requirements": StatisticalRequirements(effect=0.1),
    }  # fmt: skip
    return refusal(ProposeDesign(environment="guess", seeds_per_arm=3), hypotheses, **means)


LESS, NOTHING_LEARNED = {"direction": "decrease"}, {"equal": 1.0}


@pytest.mark.parametrize(("checks", "changes", "told"), [
    ([checked(OTHER, 0.98)], {}, "gain more solved 0.980 of search episodes"), ([checked(OTHER, 0.5)], {}, None),
    # where the control begins bounds it alone
    ([checked(TINY, 0.98), checked(OTHER, 0.1)], {}, None),
    # a gain of 0.65 from 0.5 on is none that can be
    ([checked(OTHER, 0.5)], {"bank": gaining(0.55)}, "to gain more solved 0.500"),
    ([checked(OTHER, 0.1)], {"bank": gaining(0.55)}, None),
    # less only than one that can gain
    ([checked(TINY, 0.98)], LESS, "gain more, solved 0.980"), ([checked(TINY, 0.3)], LESS, None),
    ([checked(OTHER, 0.0)], {**LESS, "bank": gaining(0.02)}, "to gain less solved 0.000"),
    ([checked(OTHER, 0.4)], {**LESS, "bank": gaining(0.02)}, None),
    # unless nothing is to be learned with any of them
    ([checked(TINY, 0.0, **NOTHING_LEARNED), checked(OTHER, 0.3)], {}, None),
    ([checked(job, 0.0, **NOTHING_LEARNED) for job in (TINY, OTHER)], {}, "had equal rewards"),
    # gains that are all alike say nothing of the noise
    ([], {"bank": gaining(0.0, sd=0.0)}, "job gained 0"),
])  # fmt: skip
def test_models_are_compared_where_a_gain_fits_between_their_beginnings_and_the_top(
    checks: list[MeasuredEnvironment], changes: dict[str, Any], told: str | None
) -> None:
    found = models_refused(*checks, **changes)
    assert (found is None) if told is None else told in found.message
