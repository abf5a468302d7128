"""A simulated attempt takes simulated time, ends as planned, and outlives its controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from simlab.flights.attempt_files import DURING, SIMULATED, SimTracker
from simlab.flights.clock import SimClock
from simlab.flights.faults import Faults, Rates
from simlab.flights.sandbox import SimSandbox
from simlab.worlds.world import Planted

from research.results.attempt_files import AttemptFolder, AttemptOutcome, AttemptSpec, Evaluation
from research.results.wandb_reader import TrackingUnreadable
from sandboxes import Exit, SandboxError, SandboxSpec
from studies.metrics import Asked, kind_named
from studies.records.design import Metric, RunSpec, Schedule
from swarm.environments.playing.evaluate import rounds
from swarm.environments.registry import environments
from swarm.job import Job

WORLD = Planted(3, {"group_size": (8, 16)}, {"group_size": 8}, steps=4, seconds_per_step=10.0, startup_s=20.0)
RUN_S = 60.0
EPISODES = 64
METRIC = Metric(meaning="m", episodes=EPISODES)


@pytest.fixture
def order(tmp_path: Path) -> Callable[[str], SandboxSpec]:
    """Write an attempt's order, and return what launches it."""

    def written(name: str, attempt: int = 1, metric: Metric = METRIC, **job: object) -> SandboxSpec:
        spec = RunSpec(
            study="s", design_hash="0" * 64, arm="a", seed=5, environment="guess",
            job={**Job(steps=4).model_dump(mode="json", exclude={"tracking"}), **job}, metric=metric,
        )  # fmt: skip
        folder = AttemptFolder(tmp_path / "attempts" / name)
        folder.path.mkdir(parents=True)
        value = AttemptSpec(study="s", run_id=spec.run_id, attempt=attempt, spec=spec, models="m")
        folder.spec.write_text(value.model_dump_json())
        return SandboxSpec(name, ("true",), folder.path, labels={"study": "s"}, time_limit_s=900.0, trusted=True)

    return written


def sandbox(path: Path, clock: SimClock, **faults: object) -> SimSandbox:
    return SimSandbox(path / "sandboxes", WORLD, clock, faults=Faults(**faults))  # type: ignore[arg-type]


def test_evaluations_during_training_are_those_of_the_metrics_schedule(tmp_path: Path, order: Callable) -> None:
    asked = Asked(
        "it is solved", episodes=EPISODES, horizon=512, threshold=0.7, schedule=Schedule(every=128, episodes=32)
    )
    clock, spec = SimClock(), order("x", metric=kind_named("episodes").define(asked), seed=5)
    handle = sandbox(tmp_path, clock).run(spec)
    clock.advance(RUN_S)
    assert handle.poll() == Exit("finished", 0)
    found = json.loads((spec.directory / DURING).read_text())["evaluations"]
    assert [Evaluation.model_validate(one).policy_version for one in found] == [1, 2, 3]
    tasks = environments()["guess"].tasks("hidden")
    for one in found:
        drawn = rounds(tasks, 32, 5 + one["policy_version"])
        played = {(episode["task_id"], episode["sample"]) for episode in one["episodes"]}
        assert played == {(task.id, sample) for sample, part in enumerate(drawn) for task in part}
    outcome = AttemptOutcome.model_validate_json(AttemptFolder(spec.directory).outcome.read_text())
    assert DURING in outcome.files
    sandbox(tmp_path, clock).run(order("y"))
    clock.advance(RUN_S)
    assert not (order("z").directory / DURING).exists()


def test_an_attempt_takes_the_worlds_time_and_leaves_whole_results(tmp_path: Path, order: Callable) -> None:
    clock, spec = SimClock(), order("x")
    handle = sandbox(tmp_path, clock).run(spec)
    assert handle.poll() is None
    clock.advance(RUN_S)
    assert handle.poll() == Exit("finished", 0)
    folder = AttemptFolder(spec.directory)
    outcome = AttemptOutcome.model_validate_json(folder.outcome.read_text())
    final = json.loads(folder.evaluation("final").read_text())
    tracked = SimTracker(clock)(spec.directory, "x")
    assert outcome.seconds == RUN_S
    assert len(final["episodes"]) == EPISODES
    solved = sum(episode["success"] for episode in final["episodes"]) / EPISODES
    assert solved == pytest.approx(WORLD.run({}, 5).hidden, abs=0.5 / EPISODES + 1e-9)
    assert list(tracked.history) == [1, 2, 3, 4]
    assert tracked.config[SIMULATED]


def test_what_was_launched_outlives_its_controller_and_is_started_once(tmp_path: Path, order: Callable) -> None:
    clock, spec = SimClock(), order("x")
    sandbox(tmp_path, clock).run(spec)
    later = SimClock(clock.true + timedelta(seconds=RUN_S))
    again = sandbox(tmp_path, later)
    assert again.run(spec).poll() == Exit("finished", 0)
    assert again.starts() == {"x": 1}
    assert [handle.name for handle in again.list({"study": "s", SIMULATED: "true"})] == ["x"]
    assert again.list({"study": "another"}) == []
    assert again.adopt("y") is None


@pytest.mark.parametrize(
    ("rates", "ended", "after"),
    [
        (Rates(crash=1.0), Exit("error", -9), RUN_S),
        (Rates(lost=1.0), Exit("lost", None), RUN_S),
        (Rates(out_of_memory=1.0), Exit("out_of_memory", 137), RUN_S),
        (Rates(hang=1.0), Exit("timeout", -15), 900.0),
    ],
)
def test_an_attempt_goes_wrong_as_planned(
    tmp_path: Path, order: Callable, rates: Rates, ended: Exit, after: float
) -> None:
    clock, spec = SimClock(), order("x")
    handle = sandbox(tmp_path, clock, rates=rates).run(spec)
    clock.advance(after - 1 if after == 900.0 else 0)
    assert handle.poll() is None
    clock.advance(after)
    assert handle.poll() == ended
    assert not AttemptFolder(spec.directory).outcome.exists()


def test_a_garbled_outcome_is_no_outcome(tmp_path: Path, order: Callable) -> None:
    clock, spec = SimClock(), order("x")
    handle = sandbox(tmp_path, clock, rates=Rates(garbled=1.0)).run(spec)
    clock.advance(RUN_S)
    assert handle.poll() == Exit("finished", 0)
    with pytest.raises(ValueError, match="JSON"):
        AttemptOutcome.model_validate_json(AttemptFolder(spec.directory).outcome.read_text())


def test_a_tracker_that_lags_shows_its_log_later(tmp_path: Path, order: Callable) -> None:
    clock, spec = SimClock(), order("x")
    handle = sandbox(tmp_path, clock, rates=Rates(lag=1.0), lag_s=100.0).run(spec)
    clock.advance(RUN_S)
    handle.poll()
    with pytest.raises(TrackingUnreadable, match="yet"):
        SimTracker(clock)(spec.directory, "x")
    clock.advance(100.0)
    assert SimTracker(clock)(spec.directory, "x").ended


def test_a_second_copy_writes_other_results_when_it_is_looked_at_again(tmp_path: Path, order: Callable) -> None:
    clock, spec = SimClock(), order("x")
    handle = sandbox(tmp_path, clock, rates=Rates(duplicate=1.0)).run(spec)
    clock.advance(RUN_S)
    handle.poll()
    path = AttemptFolder(spec.directory).evaluation("final")
    before = path.read_text()
    handle.poll()
    assert path.read_text() != before


def test_a_sandbox_may_refuse_for_a_while(tmp_path: Path, order: Callable) -> None:
    clock, spec = SimClock(), order("x")
    refusing = sandbox(tmp_path, clock, refusing=((0.0, 10.0),))
    with pytest.raises(SandboxError, match="refuses"):
        refusing.run(spec)
    clock.advance(10.0)
    refusing.run(spec)
    assert refusing.starts() == {"x": 1}


def test_what_is_stopped_stays_stopped(tmp_path: Path, order: Callable) -> None:
    clock, spec = SimClock(), order("x")
    handle = sandbox(tmp_path, clock).run(spec)
    assert handle.stop() == Exit("stopped", -15)
    clock.advance(RUN_S)
    assert handle.poll() == Exit("stopped", -15)


def test_neighbours_make_it_slower(tmp_path: Path, order: Callable) -> None:
    clock = SimClock()
    crowded = SimSandbox(tmp_path / "sandboxes", replace(WORLD, crowding=1.0), clock)
    first, second = crowded.run(order("x")), crowded.run(order("y"))
    clock.advance(RUN_S)
    assert first.poll() is not None
    assert second.poll() is None
    clock.advance(40.0)
    assert second.poll() is not None


def test_two_clocks_may_differ() -> None:
    clock = SimClock(skew_s=20.0)
    assert {clock.true - clock(), clock.true - clock()} == {timedelta(0), timedelta(seconds=20)}
