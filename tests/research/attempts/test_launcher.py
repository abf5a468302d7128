"""Attempts whose client and evaluators are containers: none outlives its attempt, whatever ended that."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from research.files import read_json
from research.isolation.mode import UNISOLATED, Isolation, Sandboxing
from research.results.alarms import NOT_FINITE
from research.results.attempt_files import AttemptFolder, AttemptSpec
from research.results.wandb_reader import TrackedRun, TrackingLate
from sandboxes import SandboxError
from studies import EventType, RunState
from tests.research.bench import STUDY, Bench
from tests.research.fakes import REFUSED, FakeContainers, read_fake_tracking, write_results
from tests.research.results.test_collect import edit

IMAGE = "sha256:" + "ab" * 32
DOCKER = Sandboxing(kind="docker", image=IMAGE, base="base", engine="20.10")


@pytest.fixture
def containers() -> FakeContainers:
    return FakeContainers()


@pytest.fixture
def bench(tmp_path: Path, containers: FakeContainers) -> Bench:
    bench = Bench(tmp_path)
    bench.isolation = Isolation(DOCKER, containers)
    return bench


def labels(run: RunState) -> dict[str, str]:
    assert run.active is not None
    return {"study": STUDY, "run_id": run.run_id, "attempt": str(run.active.number)}


def order_of(bench: Bench, run: RunState) -> AttemptSpec:
    folder = AttemptFolder(bench.home.attempt(STUDY, run.run_id, run.attempts[-1].number))
    return AttemptSpec.model_validate(read_json(folder.spec))


def payloads(bench: Bench, type: EventType) -> list[Mapping[str, Any]]:
    return [event.payload for event in bench.events() if event.type is type]


def test_the_order_and_the_log_say_in_which_image_an_attempt_runs(bench: Bench) -> None:
    state = bench.loop().tick().state
    (launched, *_) = payloads(bench, EventType.ATTEMPT_LAUNCHED)
    assert launched["sandbox"] == {"kind": "docker", "image": IMAGE, "base": "base", "engine": "20.10"}
    run = next(run for run in state.runs.values() if run.active)
    order = order_of(bench, run)
    assert (order.sandbox, order.containers) == (DOCKER, str(bench.home.containers))
    assert order.time_limit_s is not None
    assert run.attempts[-1].sandbox["image"] == IMAGE


def test_processes_have_no_containers_to_look_after(bench: Bench, containers: FakeContainers) -> None:
    bench.isolation = UNISOLATED
    state = bench.drive(bench.loop()).state
    assert containers.reaped == []
    assert order_of(bench, next(iter(state.runs.values()))).containers == ""
    assert payloads(bench, EventType.ATTEMPT_LAUNCHED)[0]["sandbox"] == {"kind": "process"}


@pytest.mark.parametrize("how", ["ok", "failed", "died", "lost", "timeout", "garbled"])
def test_no_event_says_that_an_attempt_ended_while_containers_of_it_run(
    bench: Bench, containers: FakeContainers, how: str
) -> None:
    bench.sandbox.script = lambda order: how if order.attempt == 1 else "ok"
    loop = bench.loop()
    for run in [run for run in loop.tick().state.runs.values() if run.active]:
        containers.held += [{**labels(run), "role": "client"}, {**labels(run), "role": "evaluator-initial"}]
    assert containers.held
    while not payloads(bench, EventType.ATTEMPT_ENDED):
        loop.tick()
    running = [labels(run) for run in loop.state().runs.values() if run.active and run.active.number == 1]
    assert all({key: held[key] for key in ("study", "run_id", "attempt")} in running for held in containers.held)


def test_stopping_a_study_ends_its_containers(bench: Bench, containers: FakeContainers) -> None:
    bench.sandbox.script = lambda order: "never"
    loop = bench.loop()
    for run in [run for run in loop.tick().state.runs.values() if run.active]:
        containers.held.append({**labels(run), "role": "client"})
    containers.held.append({"study": "another", "run_id": "r", "attempt": "1"})
    loop.stop("enough")
    assert containers.held == [{"study": "another", "run_id": "r", "attempt": "1"}]


def test_an_engine_that_is_gone_starts_nothing_and_costs_nothing(bench: Bench, containers: FakeContainers) -> None:
    containers.gone = True
    for _ in range(4):
        with pytest.raises(SandboxError, match="Docker Engine"):
            bench.loop().tick()
    assert payloads(bench, EventType.ATTEMPT_LAUNCHED) == []
    containers.gone = False
    state = bench.drive(bench.loop()).state
    assert {run.status for run in state.runs.values()} == {"collected"}


def test_an_attempt_is_not_over_until_the_engine_says_that_its_containers_are(
    bench: Bench, containers: FakeContainers
) -> None:
    bench.sandbox.polls = 0
    bench.loop().tick()
    containers.gone = True
    for _ in range(3):
        with pytest.raises(SandboxError):
            bench.loop().tick()
    assert payloads(bench, EventType.ATTEMPT_ENDED) == []
    containers.gone = False
    state = bench.drive(bench.loop()).state
    assert all(len(run.attempts) == 1 for run in state.runs.values())


def test_an_attempt_that_lost_the_engine_costs_its_run_no_try(bench: Bench) -> None:
    bench.sandbox.script = lambda order: "engine gone" if order.attempt <= 5 else "ok"
    state = bench.drive(bench.loop()).state
    assert state.design is not None
    assert state.design.max_attempts < 5
    assert {run.status for run in state.runs.values()} == {"collected"}
    assert {attempt.status for run in state.runs.values() for attempt in run.attempts[:-1]} == {"stopped"}


def test_what_containers_were_refused_is_in_the_log(bench: Bench) -> None:
    bench.sandbox.script = lambda order: "failed" if order.attempt == 1 else "ok"
    state = bench.drive(bench.loop()).state
    assert payloads(bench, EventType.ATTEMPT_ENDED)[0]["refused"] == REFUSED
    assert all(run.attempts[0].refused == REFUSED for run in state.runs.values())


class Tracker:
    """Shows what was logged only from a moment on, or never the end of it."""

    def __init__(self, bench: Bench, lag_s: float, *, whole: bool) -> None:
        self._shown_at = bench.clock.now + timedelta(seconds=lag_s)
        self._bench = bench
        self._whole = whole
        self.asked = 0

    def __call__(self, directory: Path, run_id: str) -> TrackedRun:
        self.asked += 1
        late = self._bench.clock.now < self._shown_at
        if late and self._whole:
            raise TrackingLate("not shown yet")
        run = read_fake_tracking(directory, run_id)
        if late:
            run.history.pop(max(run.history))
            run.ended = False
        return run


@pytest.mark.parametrize("whole", [True, False])
def test_a_tracker_that_is_behind_costs_a_run_no_try(tmp_path: Path, whole: bool) -> None:
    bench = Bench(tmp_path)
    bench.read_tracking = tracker = Tracker(bench, 60.0, whole=whole)
    state = bench.drive(bench.loop()).state
    assert {len(run.attempts) for run in state.runs.values()} == {1}
    assert {run.status for run in state.runs.values()} == {"collected"}
    assert tracker.asked > len(state.runs), "it was asked again"


def test_a_tracker_that_is_behind_is_read_ever_more_rarely_while_the_rest_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loop = bench.loop()
    late = next(run.run_id for run in loop.tick().state.runs.values() if run.active)
    reads: list[float] = []

    def read(directory: Path, run_id: str) -> TrackedRun:
        if run_id.startswith(late):
            reads.append((bench.clock.now - began).total_seconds())
            raise TrackingLate("not shown yet")
        return read_fake_tracking(directory, run_id)

    bench.read_tracking = read
    loop, began = bench.loop(), bench.clock.now
    for _ in range(1000):
        state = loop.tick().state
        bench.clock.advance(0.5)
    distances = [after - before for before, after in pairwise(reads)]
    assert distances == sorted(distances)
    assert (distances[0], distances[-1]) == (1.0, 30.0)
    assert len(reads) < 25
    others = [run for run in state.runs.values() if run.run_id != late]
    assert {run.status for run in others} == {"collected"}
    assert state.runs[late].active is not None
    bench.read_tracking = read_fake_tracking
    assert bench.loop().tick().state.runs[late].status == "collected", "a new controller looks at once"


def test_a_clock_that_is_set_back_makes_nobody_wait_for_a_tracker(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.read_tracking = tracker = Tracker(bench, 60.0, whole=True)
    loop = bench.loop()
    for _ in range(20):
        loop.tick()
        bench.clock.advance(1)
    asked = tracker.asked
    bench.clock.advance(-60)
    loop.tick()
    assert tracker.asked > asked


def test_a_training_that_broke_down_gets_no_other_try_because_the_tracker_is_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def script(order: AttemptSpec) -> str:
        if order.spec.job["group_size"] != 8:
            return "ok"
        attempt = AttemptFolder(bench.home.attempt(STUDY, order.run_id, order.attempt))
        write_results(attempt, order, 0.5)
        edit(attempt.outcome, lambda value: value.update(status="failed", code="training_nan", reason="it broke down"))
        edit(attempt.path / "tracked.json", lambda value: value["history"].update({"1000": {NOT_FINITE: 1.0}}))
        return "died"

    bench.sandbox.script = script
    bench.read_tracking = Tracker(bench, 60.0, whole=False)
    state = bench.drive(bench.loop()).state
    broken = [run for run in state.runs.values() if run.spec.job["group_size"] == 8]
    assert {run.invalid[0] for run in broken if run.invalid is not None} == {"training_nan"}
    assert {len(run.attempts) for run in broken} == {1}


def test_a_tracker_that_stays_behind_is_waited_for_no_longer_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("research.attempts.launcher.LATEST_LOG_S", 3.0)
    bench = Bench(tmp_path)
    bench.read_tracking = Tracker(bench, 1e6, whole=False)
    bench.drive(bench.loop())
    ends = {event["code"] for event in payloads(bench, EventType.ATTEMPT_ENDED)}
    assert ends == {"steps_missing"}
