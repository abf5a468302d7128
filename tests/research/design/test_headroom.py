"""A control at the ceiling or floor of its measure leaves nothing to see: such a design is refused, with a way out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.compiler import accept_hypotheses, seed_source
from research.design.pricing import Pricing
from research.design.requirements import StatisticalRequirements
from research.errors import DesignRefused
from research.noise.bank import NoiseBank, job_key
from research.proposals.actions import Propose, ProposeDesign, ProposedHypothesis, ProposedKnob, ProposedScreen
from studies.records.design import Budget, Hypothesis
from swarm.job import Job
from tests.research.banks import group
from tests.research.compiling import compile_design, noise_plan, refusal

PRICING = Pricing(lambda job: 10.0, parallel=2, overhead_s=0.0, basis="made up")
CONTROL = Job(group_size=4)


def at(level: float, sd: float = 0.02, job: Job = CONTROL) -> NoiseBank:
    """Runs of a job around a level."""
    shift = level - 0.5
    runs = group(sd, 12, job=job)
    return NoiseBank(
        frozenset(run.model_copy(update={"value": run.value + shift, "job": job_key(job)}) for run in runs)
    )


def accepted(direction: str = "increase") -> tuple[Hypothesis, ...]:
    low, high = (0.0, 0.2) if direction == "increase" else (-0.2, 0.0)
    return accept_hypotheses(
        Propose(hypotheses=(
            ProposedHypothesis(
                statement="s", mechanism="m", variable="group_size", control=4, treatment=16, direction=direction,
                predicted_low=low, predicted_high=high, probability=0.4,
            ),
        ))
    )  # fmt: skip


def refused(bank: NoiseBank, direction: str = "increase", **changes: Any) -> DesignRefused | None:
    wish = ProposeDesign(**{"environment": "guess", "seeds_per_arm": 3, **changes})
    hypotheses = () if "screen" in changes else accepted(direction)
    means: dict[str, Any] = {"price": PRICING, "budget": Budget(wall_clock_s=10_000), "bank": bank}
    return refusal(wish, hypotheses, requirements=StatisticalRequirements(effect=0.1), **means)


def test_a_control_near_the_ceiling_is_refused_with_what_would_help() -> None:
    found = refused(at(0.95))
    assert found is not None
    assert found.message == (
        "the control itself comes to 0.950 in 12 runs of its job, 0.050 from the ceiling of 1: an effect of 0.1 does "
        "not fit between: train fewer steps, --set steps=20; or choose another environment, --env arith; or look for a "
        "smaller effect, --effect 0.05, which needs more seeds"
    )
    assert "design 20 steps" in found.for_planner
    assert "decline" in found.for_planner
    assert "--" not in found.for_planner


def test_only_the_claimed_direction_needs_room() -> None:
    assert refused(at(0.95), "decrease") is None
    assert refused(at(0.05), "increase") is None
    low = refused(at(0.05), "decrease")
    assert low is not None
    assert "the floor of 0" in low.message
    assert "train more steps, --set steps=80" in low.message


@pytest.mark.parametrize(("level", "where"), [(0.0, "floor"), (1.0, "ceiling")])
@pytest.mark.parametrize("direction", ["increase", "decrease"])
def test_runs_that_are_all_0_or_all_1_are_refused_in_any_direction_before_and_after_aa_runs(
    level: float, where: str, direction: str
) -> None:
    bank = at(level, sd=0.0)
    found = refused(bank, direction)
    assert found is not None
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


def test_a_search_is_refused_at_the_ceiling_too() -> None:
    knob = ProposedKnob(field="group_size", values=(4, 8, 16))
    screen = ProposedScreen(knobs=(knob,), predicted_low=0.0, predicted_high=0.2, probability=0.5)
    base = Job()
    found = refused(at(0.97, job=base), screen=screen)
    assert found is not None
    assert "ceiling" in found.message


@given(st.floats(0.12, 0.88), st.sampled_from(["increase", "decrease"]))
def test_where_the_effect_fits_nothing_is_refused(level: float, direction: str) -> None:
    assert refused(at(level), direction) is None


def test_another_job_says_nothing_of_this_ones_level() -> None:
    assert refused(at(0.95, job=Job(group_size=4, steps=80))) is None


def test_runs_that_collapsed_say_nothing_of_the_level_of_those_that_do_not() -> None:
    """A claim is about trainings that do not collapse, and so is the room for it."""
    kept = sorted(at(0.15).observations, key=lambda run: run.run)
    fallen = [run.model_copy(update={"run": f"{run.run}-fell", "value": 0.0, "collapsed": True}) for run in kept]
    bank = NoiseBank(frozenset([*kept, *fallen[:6]]))
    assert refused(bank, "decrease") is None
    high = sorted(at(0.95).observations, key=lambda run: run.run)
    found = refused(NoiseBank(frozenset([*high, *fallen[:6]])), "increase")
    assert found is not None
    assert "0.950 in 12 runs" in found.message
