"""Prices observed on this installation: the median of what finished attempts at the same job took."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from research.observed import observed_seconds
from research.pricing import price_key
from research.sandboxing import Isolation, Sandboxing
from studies import EventLog
from swarm.job import Job
from tests.research.bench import STUDY, Bench
from tests.research.fakes import FakeContainers


def test_only_finished_attempts_set_a_price(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda order: "failed" if order.attempt == 1 else "ok")
    state = bench.drive(bench.loop()).state
    with closing(EventLog(bench.home.database)) as log:
        found = observed_seconds(log)
    jobs = {price_key(Job.model_validate(run.spec.job)) for run in state.runs.values()}
    assert found == dict.fromkeys(jobs, 5.0), "the fake attempts say they took 5 s, and 1 s when they failed"
    assert len(jobs) == 2


def test_attempts_in_containers_have_prices_of_their_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.isolation = Isolation(Sandboxing(kind="docker", image="sha256:0"), FakeContainers())
    state = bench.drive(bench.loop()).state
    with closing(EventLog(bench.home.database)) as log:
        found = observed_seconds(log)
    assert found.keys() == {price_key(Job.model_validate(run.spec.job), "docker") for run in state.runs.values()}


def test_a_studys_own_runs_are_no_observation_for_itself(tmp_path: Path) -> None:
    """It follows them by `price_of`, from the first one on; taken from the log too, a restart would change prices."""
    bench = Bench(tmp_path)
    bench.drive(bench.loop())
    with closing(EventLog(bench.home.database)) as log:
        assert observed_seconds(log)
        assert observed_seconds(log, besides=STUDY) == {}


def test_a_corrupt_study_is_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.drive(bench.loop())
    engine = sa.create_engine(bench.home.database)
    with engine.begin() as connection:
        connection.execute(sa.text("update events set payload = '{}' where seq = 3"))
    engine.dispose()
    with closing(EventLog(bench.home.database)) as log:
        assert observed_seconds(log) == {}


def test_a_job_this_version_does_not_know_sets_no_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    bench.drive(bench.loop())
    known = Job.recorded

    def forgetful(value: dict[str, Any]) -> Job:
        return known({**value, "a_field_of_an_older_ajet": 1})

    monkeypatch.setattr("research.observed.Job.recorded", forgetful)
    with closing(EventLog(bench.home.database)) as log:
        assert observed_seconds(log) == {}
