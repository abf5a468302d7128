"""Tests of pricing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from research.design.pricing import (
    CALLS_PER_EPISODE,
    EVALUATION_EPISODES,
    FED_PROMPT,
    SECONDS_PER_CALL,
    Estimates,
    ObservedRun,
    describe_basis,
    make_pricing,
    median_seconds,
    price_key,
    runs_at_once,
)
from research.environments.catalog import NO_MODEL, MeasuredEnvironment, conditions_of, model_key
from research.installation import machine
from research.installation.base_job import model_folder
from studies import EventLog
from swarm.job import Job
from swarm.models import ModelCheck, TemplateCheck, conditions
from tests.research.bench import STUDY, Bench
from tests.research.model_folders import model_at

LARGE = (30_000, 4_500)
"""The shape of 135 million weights."""


@pytest.fixture
def brought(tmp_path: Path) -> Job:
    return Job(model=model_folder(str(model_at(tmp_path / "mine", shapes=(LARGE,)))))


def known(job: Job, model: str | None = None, /, **figures: Any) -> MeasuredEnvironment:
    key = model or model_key(job.model)
    said: dict[str, Any] = {"environment": job.environment, "model": key, "measured_at": "2026-01-01"}
    said |= {"job": conditions_of(job), **figures}
    return MeasuredEnvironment.model_validate(said)


def measured(job: Job, /, **figures: float) -> Estimates:
    return Estimates((known(job, **figures),))


def test_what_was_measured_is_the_price_part_by_part(brought: Job) -> None:
    whole = measured(brought, seconds_per_episode=0.5, seconds_per_trained_episode=0.75, startup_s=30.0)
    trained = brought.steps * brought.episodes_per_step
    assert whole.run(brought) == pytest.approx(30 + trained * 0.75 + 2 * EVALUATION_EPISODES * 0.5)
    assert whole.evaluations(brought, 20) == pytest.approx(10.0)


def test_what_a_play_alone_takes_is_known_without_a_model() -> None:
    job = Job(environment="shop@1")
    alone = known(job, NO_MODEL, calls_per_episode=2.0, environment_seconds_per_episode=0.5)
    one, usual = Estimates((alone,)), Estimates()
    assert one.evaluations(job, 20) == pytest.approx(usual.evaluations(job, 20) / 2 + 10.0)


DECIDING: dict[str, Any] = {
    "max_tokens": 64, "max_context": 512, "temperature": 0.7, "foreign_sampling": "neutralise", "lora_rank": 16,
    "dtype": "bfloat16", "backend": "other", "max_concurrency": 4,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), DECIDING.items())
def test_what_was_measured_counts_for_jobs_that_sample_alike(brought: Job, name: str, value: Any) -> None:
    other = brought.model_copy(update={name: value})
    mine, theirs = (known(job, seconds_per_episode=0.5, job=conditions_of(job)) for job in (brought, other))
    for wanted, found in ((brought, mine), (other, theirs)):
        assert Estimates((mine, theirs)).of(wanted) == found
    assert Estimates((mine,)).run(other) == Estimates().run(other)
    said = describe_basis(make_pricing(2, measured=(mine,)), [other])
    assert f"{name} {getattr(brought, name)}, not {value}" in said
    assert "\n" not in said
    longer = brought.model_copy(update={"steps": 7, "learning_rate": 0.5, "seed": 3, "group_size": 4})
    assert Estimates((mine,)).of(longer) == mine  # what the untrained model says does not depend on how it will learn


def checked(job: Job, **figures: Any) -> ModelCheck:
    said: dict[str, Any] = {
        "folder": "mine", "folder_hash": "ab", "conditions": conditions(job), "threads": 4, "architecture": "Llama",
        "parameters": 135_000_000, "trained_parameters": 135_000_000, "positions": 8192, "fused": True,
        "template": TemplateCheck(
            answers="plain", tools="rendered", tools_refusal=None, thinking=False, system=True
        ),
        "fused_lost": None, "trees": True, "trees_lost": None, "logprob_gap": 0.0, "logprob_tolerance": 0.01,
        "load_s": 5.0, "seconds_per_prompt_token": 0.001, "seconds_per_generated_token": 0.01,
        "seconds_per_learned_token": 0.002, "fed_per_sampled_token": 2.0, "busy": 1.0, "at_once": 16,
        "loaded_bytes": 1 << 30, "peak_bytes": 3 << 30, "cache_bytes_per_token": 1, "fits_at_once": 64,
        "memory_holds": 64,
    }  # fmt: skip
    return ModelCheck.model_validate({**said, **figures})


def test_a_check_of_the_model_prices_what_nobody_measured_in_the_environment(brought: Job) -> None:
    def price(threads: int | None = None, **figures: Any) -> Estimates:
        return Estimates(check_of=lambda job: checked(job, **figures), threads=threads)

    call = SECONDS_PER_CALL + FED_PROMPT * 0.001 + brought.max_tokens / 2 * 0.01
    assert price().evaluations(brought, 2) == pytest.approx(2 * CALLS_PER_EPISODE["guess"] * call)
    for name in ("load_s", "seconds_per_prompt_token", "seconds_per_generated_token", "seconds_per_learned_token"):
        assert price(**{name: 100.0}).run(brought) > price().run(brought), name
    assert price(threads=4).run(brought) == price().run(brought)
    assert 1.5 * price().run(brought) < price(threads=2).run(brought) < 2 * price().run(brought)
    assert "by what `ajet model check` measured of mine" in price().describe_basis(brought)
    assert price().run(Job()) == Estimates().run(Job())


def test_runs_at_once_fit_the_memory_of_the_largest_model(brought: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 << 30))
    assert runs_at_once([Job()], lambda job: None).runs == 8
    assert runs_at_once([Job(), brought], lambda job: None).runs == 3
    assert runs_at_once([brought.model_copy(update={"lora_rank": 16})], lambda job: None).runs == 4
    assert machine.max_parallel_runs(machine.run_bytes(10**12)) == 1  # one at the least
    for peak, runs in ((1 << 30, 6), (6 << 30, 2)):
        assert runs_at_once([Job(), brought], lambda job, peak=peak: checked(job, peak_bytes=peak)).runs == runs


@pytest.mark.parametrize(("job", "sandbox", "seconds"), [
    (Job(seed=9), "process", 33.0), (Job(), "docker", 90.0), (Job(steps=20), "process", None),
    (Job(steps=20), "docker", None),
])  # fmt: skip
def test_an_observed_job_costs_what_it_took_in_such_a_sandbox_whatever_its_seed(
    job: Job, sandbox: str, seconds: float | None
) -> None:
    observed = {price_key(Job(seed=5)): ObservedRun(33.0), price_key(Job(), "docker"): ObservedRun(90.0)}
    pricing = make_pricing(2, observed, sandbox)
    assert pricing.seconds_per_run(job) == (Estimates().run(job) if seconds is None else seconds)
    assert make_pricing(2).basis != pricing.basis


@pytest.mark.slow
def test_only_finished_attempts_at_known_jobs_set_a_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, lambda order: "failed" if order.attempt == 1 else "ok")
    state = bench.drive(bench.loop())
    found = median_seconds(bench.log)
    jobs = {price_key(Job.model_validate(run.spec.job)) for run in state.runs.values()}
    assert found == dict.fromkeys(
        jobs, ObservedRun(5.0)
    )  # the fake attempts say they took 5 s, and 1 s when they failed
    assert len(jobs) == 2
    known = Job.from_record
    monkeypatch.setattr(
        "research.design.pricing.Job.from_record", lambda value: known({**value, "a_field_of_an_older_ajet": 1})
    )
    assert median_seconds(bench.log) == {}


def test_a_studys_own_runs_are_no_observation_for_itself_nor_a_corrupt_study_for_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.drive(bench.loop())
    engine = sa.create_engine(bench.home.database)
    with closing(EventLog(bench.home.database)) as log:
        assert median_seconds(log)
        assert median_seconds(log, exclude=STUDY) == {}
        with engine.begin() as connection:
            connection.execute(sa.text("update events set payload = '{}' where seq = 3"))
    engine.dispose()
    with closing(EventLog(bench.home.database)) as log:
        assert median_seconds(log) == {}
