"""Prices: estimates that grow with the work, waves of runs, and observations that beat estimates."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from research.design.pricing import (
    CALLS_PER_EPISODE,
    EVALUATION_EPISODES,
    SECONDS_PER_CALL,
    Estimates,
    locked_price,
    make_pricing,
    observed_seconds,
    price_key,
    price_of,
)
from research.isolation.mode import Isolation, Sandboxing
from studies import EventLog
from swarm.job import Job
from tests.research.bench import STUDY, Bench
from tests.research.designs import every_stage, noise_plan, screened
from tests.research.fakes import FakeContainers

first_estimate = Estimates().run


@pytest.mark.parametrize(
    ("less", "more"),
    [({}, {"steps": 80}), ({}, {"episodes_per_step": 256}), ({}, {"epochs": 4}),
     ({"environment": "arith"}, {"environment": "guess"})],
)  # fmt: skip
def test_more_work_costs_more_and_a_start_and_evaluations_are_paid_for(less: Any, more: Any) -> None:
    assert first_estimate(Job(**more)) > first_estimate(Job(**less)) > first_estimate(Job(steps=1)) > 12


def test_an_observed_job_costs_what_it_took_whatever_its_seed() -> None:
    pricing = make_pricing(2, {price_key(Job(seed=5)): 33.0})
    assert pricing.seconds_per_run(Job(seed=9)) == 33.0
    assert pricing.seconds_per_run(Job(steps=20)) == first_estimate(Job(steps=20))
    assert make_pricing(2).basis != pricing.basis


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


@pytest.mark.slow
def test_only_finished_attempts_set_a_price(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda order: "failed" if order.attempt == 1 else "ok")
    state = bench.drive(bench.loop()).state
    found = observed_seconds(bench.log)
    jobs = {price_key(Job.model_validate(run.spec.job)) for run in state.runs.values()}
    assert found == dict.fromkeys(jobs, 5.0), "the fake attempts say they took 5 s, and 1 s when they failed"
    assert len(jobs) == 2


@pytest.mark.slow
def test_attempts_in_containers_have_prices_of_their_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.isolation = Isolation(Sandboxing(kind="docker", image="sha256:0"), FakeContainers())
    state = bench.drive(bench.loop()).state
    found = observed_seconds(bench.log)
    assert found.keys() == {price_key(Job.model_validate(run.spec.job), "docker") for run in state.runs.values()}


def test_a_studys_own_runs_are_no_observation_for_itself_nor_a_corrupt_study_for_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.drive(bench.loop())
    engine = sa.create_engine(bench.home.database)
    with closing(EventLog(bench.home.database)) as log:
        assert observed_seconds(log)
        assert observed_seconds(log, besides=STUDY) == {}
        with engine.begin() as connection:
            connection.execute(sa.text("update events set payload = '{}' where seq = 3"))
    engine.dispose()
    with closing(EventLog(bench.home.database)) as log:
        assert observed_seconds(log) == {}


@pytest.mark.slow
def test_a_job_this_version_does_not_know_sets_no_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    bench.drive(bench.loop())
    known = Job.recorded

    def forgetful(value: dict[str, Any]) -> Job:
        return known({**value, "a_field_of_an_older_ajet": 1})

    monkeypatch.setattr("research.design.pricing.Job.recorded", forgetful)
    assert observed_seconds(bench.log) == {}
