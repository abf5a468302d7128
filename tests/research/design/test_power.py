"""What a comparison sees: more with more seeds, larger effects and less noise, and never less than it says."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.power import MOST_SEEDS, PowerAnalysis, RatePower, least_correlation, rate_noise
from research.design.pricing import BudgetCheck, Pricing, Stage
from research.text import parse_budget
from studies.records.design import Budget
from studies.records.procedure import Noise
from studies.statistics.comparison import effective_level
from studies.statistics.power import likely_spreads
from studies.statistics.proportions import boschloo


def noise(sd: float = 0.03, df: int = 16, correlation: float | None = None, pairs: int = 0) -> Noise:
    return Noise(sd=sd, df=df, episodes=512, correlation=correlation, pairs=pairs, basis="made up")


def analysis(known: Noise | None = None, *, arms: int = 2, families: int = 1, looks: int = 3) -> PowerAnalysis:
    return PowerAnalysis(known or noise(), arms, families, arms - families, 0.8, looks)


@given(st.floats(0.01, 0.06), st.integers(4, 40), st.floats(0.02, 0.2), st.integers(3, 15))
def test_more_seeds_and_larger_effects_are_seen_better(sd: float, df: int, effect: float, seeds: int) -> None:
    known = analysis(noise(sd, df))
    assert known.power(seeds, effect) <= known.power(seeds, effect * 1.2) + 1e-9
    assert known.power(seeds, effect) <= known.power(seeds + 4, effect) + 1e-9
    assert analysis(noise(sd * 1.3, df)).power(seeds, effect) <= known.power(seeds, effect) + 1e-9


@given(st.floats(0.01, 0.06), st.integers(3, MOST_SEEDS))
def test_the_smallest_effect_seen_is_seen_and_a_smaller_one_is_not(sd: float, seeds: int) -> None:
    known = analysis(noise(sd))
    effect = known.min_detectable_effect(seeds)
    assert known.detects(seeds, effect)
    assert not known.detects(seeds, effect - 0.001)


@pytest.mark.parametrize(("correlation", "pairs"), [(None, 0), (0.9, 3), (0.1, 10), (-0.8, 100)])
def test_a_correlation_that_may_be_none_helps_nothing(correlation: float | None, pairs: int) -> None:
    known = noise(correlation=correlation, pairs=pairs)
    assert least_correlation(known) <= 0
    assert analysis(known).test(8, 0.05) == "welch"
    assert analysis(known, arms=3).test(8, 0.05) == "common"


def test_a_seed_part_that_was_estimated_as_none_promises_nothing() -> None:
    """Six runs spread by less than their plays: four times the plays do not halve what may be left."""
    small = {"df": 5, "evaluation_sd": 0.01, "episodes": 2048, "measured_episodes": 512, "basis": "made up"}
    clamped = analysis(Noise(sd=0.01, measured_sd=0.0195, **small))
    trusting = analysis(Noise(sd=0.01, **small))
    known = analysis(Noise(sd=0.01, measured_sd=0.0195, **{**small, "df": 1000}))
    assert clamped.power(4, 0.04) < trusting.power(4, 0.04) < known.power(4, 0.04)
    spreads = likely_spreads(clamped.noise)
    assert min(spreads) == pytest.approx(0.01), "no less than plays alone give"
    assert max(spreads) > 2 * max(likely_spreads(known.noise))


def test_a_correlation_is_believed_by_the_lower_end_of_its_interval() -> None:
    assert 0.6 < least_correlation(noise(correlation=0.8, pairs=20)) < 0.8
    assert analysis(noise(correlation=0.95, pairs=40)).test(10, 0.02) == "paired"


def test_trainings_that_collapse_take_seeds_with_them() -> None:
    steady = noise()
    falling = steady.model_copy(update={"collapsed": 5, "runs": 20})
    assert analysis(falling).power(8, 0.05) == pytest.approx(analysis(steady).power(6, 0.05), abs=0.02)
    needs = analysis(falling).seeds_needed(0.05), analysis(steady).seeds_needed(0.05)
    assert None not in needs
    assert needs[0] > needs[1]
    assert analysis(falling).power(3, 0.2) == pytest.approx(analysis(steady).power(3, 0.2) / 4)  # mostly two are left
    rarely = steady.model_copy(update={"collapsed": 1, "runs": 200})
    assert analysis(rarely).power(3, 0.2) > 0.98 * analysis(steady).power(3, 0.2), "one in 200 takes no whole seed"


@pytest.mark.full
@pytest.mark.parametrize(("families", "compared", "looks"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 3)])
def test_the_power_of_rates_is_that_of_the_locked_rule(families: int, compared: int, looks: int) -> None:
    noise = rate_noise(0.8, 512, "a rate")
    found = RatePower(noise, 1 + compared * families, families, compared, 0.8, looks, 0.8, rate=0.8)
    seeds = next(n for n in range(5, 40) if found.detects(n, 0.6))
    alpha, rng = found.analyses(seeds)[-1].alpha, np.random.default_rng(5)
    known: dict[tuple[int, int], float] = {}

    def p(control: int, treatment: int) -> float:
        return known.setdefault((control, treatment), boschloo((control, seeds), (treatment, seeds)))

    claimed = 0
    for _ in range(600):
        control, treated, other = (int(rng.binomial(seeds, rate)) for rate in (0.8, 0.2, 0.8))
        sought, null = p(control, treated), p(control, other)
        level = effective_level([min(1.0, sought * compared), null] if families == 2 else [sought], alpha)
        claimed += sought * compared <= level and treated < control
    assert claimed / 600 == pytest.approx(found.power(seeds, 0.6), abs=0.05)
    alone = RatePower(noise, 2, 1, 1, 0.8, 1, 0.8, rate=0.8)
    assert found.power(seeds, 0.6) < alone.power(seeds, 0.6) if families * compared > 1 else seeds < 20


def budget_check(budget_s: float, max_runs: int | None = None, parallel: int = 2, **spent: float) -> BudgetCheck:
    pricing = Pricing(lambda job: 10.0, parallel, 20.0, "made up")
    return BudgetCheck(pricing, Budget(wall_clock_s=budget_s, max_runs=max_runs), **spent)  # type: ignore[arg-type]


def test_each_stage_fills_its_last_wave_before_the_next_begins() -> None:
    assert budget_check(1000).cost([Stage("screen", 3, 10.0), Stage("confirm", 3, 40.0)]) == 2 * 10 + 2 * 40 + 20


stages = st.lists(st.builds(Stage, st.just("s"), st.integers(1, 40), st.floats(1, 900)), min_size=1, max_size=3)


@given(
    stages, st.floats(10, 9000), st.none() | st.integers(1, 30), st.integers(1, 4), st.floats(0, 1), st.integers(0, 5)
)
def test_its_flags_are_enough_and_none_are_asked_for_what_is_affordable(
    wanted: list[Stage], budget_s: float, max_runs: int | None, parallel: int, left: float, made: int
) -> None:
    before = budget_check(budget_s, max_runs, parallel, seconds_left=left * budget_s, runs_made=made)
    flags = before.suggest_flags(wanted)
    assert (flags == "") == before.affords(wanted)
    budget, runs = re.search(r"--budget (\S+)", flags), re.search(r"--max-runs (\d+)", flags)
    assert ("ajet study amend" in flags) == (budget is not None and budget_s - left * budget_s >= 1)
    more_s = parse_budget(budget[1]) if budget else budget_s
    most, left_s = int(runs[1]) if runs else max_runs, more_s - (1 - left) * budget_s
    assert budget_check(more_s, most, parallel, seconds_left=left_s, runs_made=made).affords(wanted)
