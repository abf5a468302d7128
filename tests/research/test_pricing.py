"""Prices: estimates that grow with the work, waves of runs, and observations that beat estimates."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.pricing import (
    CALLS_PER_EPISODE,
    EVALUATION_EPISODES,
    SECONDS_PER_CALL,
    first_estimate,
    locked_price,
    make_pricing,
    price_key,
    price_of,
)
from swarm.job import Job
from tests.research.bench import Bench
from tests.research.designs import every_stage, noise_plan, screened


@pytest.mark.parametrize("change", [{"steps": 80}, {"episodes_per_step": 256}, {"epochs": 4}])
def test_more_work_costs_more(change: dict[str, int]) -> None:
    assert first_estimate(Job(**change)) > first_estimate(Job())  # type: ignore[arg-type]


def test_more_calls_an_episode_cost_more() -> None:
    assert first_estimate(Job(environment="guess")) > first_estimate(Job(environment="arith"))


def test_a_run_of_no_steps_still_pays_for_evaluations_and_start() -> None:
    assert first_estimate(Job(steps=1)) > 12


@pytest.mark.parametrize(("runs", "waves"), [(1, 1), (2, 1), (3, 2), (6, 3), (7, 4)])
def test_runs_are_paid_in_waves(runs: int, waves: int) -> None:
    pricing = make_pricing(2)
    assert pricing.total(runs, 50.0) == waves * 50.0 + pricing.overhead_s


def test_an_observed_job_costs_what_it_took_whatever_its_seed() -> None:
    pricing = make_pricing(2, {price_key(Job(seed=5)): 33.0})
    assert pricing.seconds_per_run(Job(seed=9)) == 33.0
    assert pricing.seconds_per_run(Job(steps=20)) == first_estimate(Job(steps=20))


def test_the_basis_says_whether_anything_was_observed() -> None:
    assert make_pricing(2).basis != make_pricing(2, {price_key(Job()): 1.0}).basis


def test_a_larger_evaluation_costs_its_plays_and_the_usual_one_nothing_more() -> None:
    pricing = make_pricing(2)
    usual, double = pricing.run(Job()), pricing.run(Job(), 2 * EVALUATION_EPISODES)
    assert usual == pricing.seconds_per_run(Job())
    assert double - usual == pytest.approx(2 * EVALUATION_EPISODES * CALLS_PER_EPISODE["guess"] * SECONDS_PER_CALL)
    assert pricing.run(Job(), 64) < usual


def test_a_price_seen_in_containers_says_nothing_of_processes() -> None:
    observed = {price_key(Job(), "docker"): 90.0, price_key(Job()): 33.0}
    assert make_pricing(2, observed, "docker").seconds_per_run(Job()) == 90.0
    assert make_pricing(2, observed).seconds_per_run(Job()) == 33.0
    assert make_pricing(2, {price_key(Job()): 33.0}, "docker").seconds_per_run(Job()) == first_estimate(Job())


def test_a_run_costs_what_it_was_locked_at_until_one_has_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, design=screened())
    state = bench.loop().tick().state
    assert [price_of(state, "screen", steps) for steps in (1, 3)] == [pytest.approx(10 / 3), 10.0]
    assert price_of(state, "confirm") == locked_price(state, "confirm") == 10.0


def test_a_run_costs_what_the_newest_like_it_took_whatever_it_was_locked_at(tmp_path: Path) -> None:
    bench = Bench(tmp_path, design=every_stage(), noise=noise_plan())
    bench.slow(20, tick_s=5)
    loop = bench.loop()
    state = loop.tick().state
    while not state.runs_in("replicate"):
        bench.clock.advance(5)
        state = loop.tick().state
        assert price_of(state, "noise") == (20.0 if any(run.collected for run in state.runs_in("noise")) else 10.0)
        if sum(run.collected is not None for run in state.runs_in("screen")) >= 2:
            assert price_of(state, "screen", 1) == 20.0
            assert price_of(state, "confirm") in (20.0, 30.0, 60.0), (
                "by its share of steps, until one like it has ended"
            )
    assert price_of(state, "confirm") == price_of(state, "replicate") == 20.0
    assert (locked_price(state, "confirm"), state.noise_seconds) == (10.0, 10.0)


def test_attempts_that_failed_say_nothing_of_what_a_run_takes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda order: "died" if order.attempt < 3 else "ok", design=screened())
    loop = bench.loop()
    for _ in range(5):
        state = loop.tick().state
        bench.clock.advance(40)
    assert any(attempt.status == "failed" for run in state.runs.values() for attempt in run.attempts)
    assert price_of(state, "confirm") == 10.0
