"""How long an attempt, a play and a silence may last: by what a run is priced at, or by what runs were seen to take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.errors import BadModel
from research.files import read_json
from research.installation.base_job import model_folder
from research.runs.files import LEAST_SILENCE_S, AttemptFolder, AttemptSpec
from research.runs.launcher import LEAST_TIME_LIMIT_S, TIME_LIMIT_FACTOR
from research.runs.workers import playing
from studies import EventType
from studies.records.design import Design, Price
from swarm.client.async_client import EPISODE_TIMEOUT_S
from tests.research.bench import STUDY, Bench
from tests.research.designs import base_job, design
from tests.research.model_folders import model_at

THREE_HOURS = 3 * 3600.0


def priced(seconds: float, **changes: Any) -> Design:
    price = Price(runs=8, parallel=2, seconds_per_run=seconds, total_s=4 * seconds, basis="made up")
    return design(16, price=price, **changes)


def orders(bench: Bench) -> list[AttemptSpec]:
    """Return the specs of the attempts so far, in the order of their launches."""
    launched = [event.payload for event in bench.events() if event.type is EventType.ATTEMPT_LAUNCHED]
    folders = (AttemptFolder(bench.home.attempt(STUDY, said["run_id"], said["attempt"])) for said in launched)
    return [AttemptSpec.model_validate(read_json(folder.spec)) for folder in folders]


def test_a_short_run_has_the_least_bounds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, design=priced(40.0))
    bench.loop().tick()
    order = orders(bench)[0]
    assert (order.time_limit_s, order.play_s, order.silence_s) == (LEAST_TIME_LIMIT_S, EPISODE_TIMEOUT_S, 120.0)
    assert LEAST_SILENCE_S == 120.0


def test_a_run_of_hours_with_steps_of_an_hour_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, design=priced(THREE_HOURS), budget_s=1e6)
    bench.loop().tick()
    order = orders(bench)[0]
    assert order.time_limit_s == TIME_LIMIT_FACTOR * THREE_HOURS
    assert order.play_s == THREE_HOURS
    assert order.silence_s == 2 * THREE_HOURS / order.job.steps
    for role in ("client", "evaluator-final"):
        played = playing(order, role, server="http://x", out="out")  # type: ignore[arg-type]
        assert played[played.index("--timeout") + 1] == "10800"


def test_what_runs_were_seen_to_take_goes_before_the_price(tmp_path: Path) -> None:
    bench = Bench(tmp_path, design=priced(10.0), budget_s=1e6)
    bench.slow(3000.0, 300.0)
    bench.drive(bench.loop())
    first, *_, last = orders(bench)
    assert first.time_limit_s == LEAST_TIME_LIMIT_S
    assert last.time_limit_s == pytest.approx(TIME_LIMIT_FACTOR * 3000.0)


def brought(tmp_path: Path, **changes: Any) -> Design:
    model = model_folder(str(model_at(tmp_path / "model")))
    return priced(10.0, base_job={**base_job(), "model": model.model_dump(mode="json")}, **changes)


def test_the_first_runs_of_a_model_nobody_measured_may_take_what_is_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "home", design=brought(tmp_path), budget_s=50_000.0)
    bench.slow(3000.0, 300.0)
    bench.drive(bench.loop())
    first, *_, last = orders(bench)
    assert first.time_limit_s == 50_000.0
    assert last.time_limit_s == pytest.approx(TIME_LIMIT_FACTOR * 3000.0)


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_model_that_changed_since_it_was_named_is_trained_no_more(tmp_path: Path, ticks: int) -> None:
    bench = Bench(tmp_path / "home", design=brought(tmp_path))
    loop = bench.loop()
    loop.plan()
    for _ in range(ticks):
        loop.tick()
    begun = orders(bench)
    assert bool(begun) == bool(ticks)
    model_at(tmp_path / "model", b"others")
    with pytest.raises(BadModel, match="changed"):
        bench.drive(loop)
    assert orders(bench) == begun
    model_at(tmp_path / "model")
    assert bench.drive(loop).state.status == "concluded"


def test_the_hash_of_the_model_is_in_the_log_and_in_each_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "home", design=brought(tmp_path))
    state = bench.drive(bench.loop()).state
    known = model_folder(str(tmp_path / "model")).sha256
    assert state.prepared["confirm"]["sha256"] == known
    assert {run.spec.job["model"]["sha256"] for run in state.runs.values()} == {known}
