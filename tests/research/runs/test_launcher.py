"""Attempts and what they leave: no container outlives its attempt, and the next one takes the server's folder over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from research.files import read_json
from research.isolation.mode import Isolation, Sandboxing
from research.runs.files import LEAST_SILENCE_S, AttemptFolder, AttemptProgress, AttemptSpec, prune_runs
from research.runs.launcher import LEAST_TIME_LIMIT_S, READ_AGAIN_S, TIME_LIMIT_FACTOR
from research.runs.wandb_log import TrackedRun
from research.runs.workers import play_arguments
from sandboxes import SandboxError
from studies import EventType, RunState, StudyState
from studies.checks.alarms import NOT_FINITE
from studies.records.design import Price
from swarm.client.async_client import EPISODE_TIMEOUT_S
from tests.research.bench import STUDY, Bench
from tests.research.designs import design
from tests.research.factories import edit
from tests.research.fakes import FakeContainers, evaluation, read_fake_tracking, write_results

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


def folder_of(bench: Bench, run: RunState | AttemptSpec, number: int = 1) -> AttemptFolder:
    return AttemptFolder(bench.home.attempt(STUDY, run.run_id, number))


def order_of(bench: Bench, run: RunState) -> AttemptSpec:
    return AttemptSpec.model_validate(read_json(folder_of(bench, run, len(run.attempts)).spec))


def payloads(bench: Bench, type: EventType) -> list[Mapping[str, Any]]:
    return [event.payload for event in bench.events() if event.type is type]


def hold_containers(containers: FakeContainers, state: StudyState, *roles: str) -> None:
    running = [labels(run) for run in state.runs.values() if run.active]
    containers.held += [{**each, "role": role} for each in running for role in roles]
    assert containers.held


@pytest.mark.parametrize("how", ["ok", "failed", "died", "lost", "timeout", "garbled"])
def test_no_event_says_that_an_attempt_ended_while_containers_of_it_run(
    bench: Bench, containers: FakeContainers, how: str
) -> None:
    bench.sandbox.script = lambda order: how if order.attempt == 1 else "ok"
    loop = bench.loop()
    hold_containers(containers, loop.tick(), "client", "evaluator-initial")
    while not payloads(bench, EventType.ATTEMPT_ENDED):
        loop.tick()
    running = [labels(run) for run in loop.state().runs.values() if run.active and run.active.number == 1]
    assert all({key: held[key] for key in ("study", "run_id", "attempt")} in running for held in containers.held)


def test_an_engine_that_is_gone_starts_nothing_and_costs_nothing(bench: Bench, containers: FakeContainers) -> None:
    containers.gone = True
    for _ in range(4):
        with pytest.raises(SandboxError, match="Docker Engine"):
            bench.loop().tick()
    assert payloads(bench, EventType.ATTEMPT_LAUNCHED) == []
    containers.gone = False
    state = bench.drive(bench.loop())
    assert {run.status for run in state.runs.values()} == {"collected"}


@pytest.mark.slow
def test_an_attempt_that_lost_the_engine_costs_its_run_no_try(bench: Bench) -> None:
    bench.sandbox.script = lambda order: "engine gone" if order.attempt <= 5 else "ok"
    state = bench.drive(bench.loop())
    assert state.design is not None
    assert state.design.max_attempts < 5
    assert {run.status for run in state.runs.values()} == {"collected"}
    assert {attempt.status for run in state.runs.values() for attempt in run.attempts[:-1]} == {"stopped"}


class Tracker:
    """A tracker whose log lacks its end for a minute."""

    def __init__(self, bench: Bench) -> None:
        self._clock, self._shown_at = bench.clock, bench.clock.now + timedelta(seconds=60)
        self.reads: list[datetime] = []

    def __call__(self, directory: Path, run_id: str) -> TrackedRun:
        self.reads.append(self._clock.now)
        run = read_fake_tracking(directory, run_id)
        if self._clock.now < self._shown_at:
            run.history.pop(max(run.history))
            run.ended = False
        return run


def test_a_tracker_that_is_behind_costs_a_run_no_try_and_is_read_again_after_a_while(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.read_tracking = tracker = Tracker(bench)
    state = bench.drive(bench.loop())
    assert {(len(run.attempts), run.status) for run in state.runs.values()} == {(1, "collected")}
    first = [read for read in tracker.reads if read < tracker.reads[0] + timedelta(seconds=READ_AGAIN_S)]
    assert len(first) <= 2  # of each attempt that ended
    assert len(tracker.reads) > len(state.runs)


def test_a_training_that_broke_down_gets_no_other_try_because_the_tracker_is_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def script(order: AttemptSpec) -> str:
        if order.spec.job["group_size"] != 8:
            return "ok"
        attempt = folder_of(bench, order, order.attempt)
        write_results(attempt, order, 0.5)
        edit(attempt.outcome, lambda value: value.update(status="failed", code="training_nan", reason="it broke down"))
        edit(attempt.path / "tracked.json", lambda value: value["history"].update({"1000": {NOT_FINITE: 1.0}}))
        return "died"

    bench.sandbox.script = script
    bench.read_tracking = Tracker(bench)
    state = bench.drive(bench.loop())
    broken = [run for run in state.runs.values() if run.spec.job["group_size"] == 8]
    assert {run.invalid[0] for run in broken if run.invalid is not None} == {"training_nan"}
    assert {len(run.attempts) for run in broken} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("written", [True, False])
def test_the_server_of_a_lost_attempt_is_taken_over_whenever_its_controller_is_killed(
    tmp_path: Path, written: bool
) -> None:
    bench, found = Bench(tmp_path), dict[str, str]()

    def script(order: AttemptSpec) -> str:
        """The first attempt leaves a server's folder behind and is lost; the others say what they found in it."""
        folder = folder_of(bench, order, order.attempt)
        if order.attempt == 1:
            folder.server.mkdir()
            (folder.server / "store.sqlite3").write_text(order.run_id)
            folder.evaluation("initial").write_text(json.dumps(evaluation(order.spec, 0, 0.2)))
            return "lost"
        found[order.run_id] = (folder.server / "store.sqlite3").read_text()
        return "ok"

    bench.sandbox.script = script
    state, killed = bench.drive_by_single_events(written=written)
    assert killed > 20
    assert found == {run_id: run_id for run_id in state.runs}
    for run in state.runs.values():
        assert run.status == "collected"
        assert [(attempt.number, attempt.resumes) for attempt in run.attempts] == [(1, None), (2, 1)]
        assert not folder_of(bench, run).server.exists()
        assert order_of(bench, run).resumes == 1
    begins = [payload.get("begins", {}) for payload in payloads(bench, EventType.ATTEMPT_LAUNCHED)]
    assert [begin.get("resumes") for begin in begins].count(1) == len(state.runs)
    assert all(len(begin["initial_sha256"]) == 64 and begin["why"] for begin in begins if begin)


def save_checkpoints(folder: AttemptFolder, *steps: int) -> None:
    for step in steps:
        checkpoint = folder.server / f"checkpoints/0123456789ab/step-{step:06d}"
        checkpoint.mkdir(parents=True)
        for name in ("manifest.json", "model.safetensors", "optimizer.safetensors"):
            (checkpoint / name).write_text(name)
    (folder.server / "store.sqlite3").write_text("tokens")


def left_in(folder: AttemptFolder) -> set[str]:
    return {str(path.relative_to(folder.server)) for path in folder.server.rglob("*") if path.is_file()}


LAST = {f"checkpoints/0123456789ab/step-1000000/{name}" for name in ("manifest.json", "model.safetensors")}


def test_of_a_collected_run_the_last_weights_and_the_tokens_stay_whenever_its_controller_is_killed(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)

    def script(order: AttemptSpec) -> str:
        save_checkpoints(folder_of(bench, order, order.attempt), 3, 999_999, 1_000_000)
        return "ok" if order.attempt == 2 else "garbled"

    bench.sandbox.script = script
    state, _ = bench.drive_by_single_events(written=True)
    for run in state.runs.values():
        assert [attempt.status for attempt in run.attempts] == ["failed", "finished"]
        assert [left_in(folder_of(bench, run, number)) for number in (1, 2)] == [
            {"store.sqlite3"}, LAST | {"store.sqlite3"}
        ]  # fmt: skip


def test_of_a_run_goes_what_is_asked_and_nothing_the_second_time(bench: Bench) -> None:
    state = bench.drive(bench.loop())
    (run, *_) = state.runs.values()
    prune, folder = partial(prune_runs, bench.home.study(STUDY), state), folder_of(bench, run)
    save_checkpoints(folder, 1, 2)
    kept, size = left_in(folder), len("manifest.jsonmodel.safetensorsoptimizer.safetensors")
    nothing = {"checkpoints": 0, "stores": 0, "bytes": 0}
    assert prune("all") == nothing
    told = prune(dry=True)
    assert told == {"checkpoints": 1, "stores": 0, "bytes": size + len("optimizer.safetensors")}
    assert left_in(folder) == kept
    (folder.server / "checkpoints/0123456789ab/.step-000003.partial").mkdir()  # of a server that was killed
    assert prune() == {**told, "checkpoints": 2}
    assert prune() == nothing
    assert prune("none", stores=True)["stores"] == 1
    assert left_in(folder) == set()


@pytest.mark.parametrize(("how", "left", "worked"), [
    ("lost", 12.5, 12.5), ("died", 12.5, 12.5), ("lost", None, 0.0), ("garbled", 12.5, 12.5), ("lost", 1e9, 86_401.0),
])  # fmt: skip
def test_the_time_that_a_machine_was_off_is_no_time_of_the_attempt_that_it_ended(
    tmp_path: Path, how: str, left: float | None, worked: float
) -> None:
    """Seconds until its last sign of life; none that its controller's clock does not bear out."""
    bench = Bench(tmp_path, lambda order: how if order.attempt == 1 else "ok")
    (run, *_) = bench.loop().tick().runs.values()
    if left is not None:
        folder_of(bench, run).progress.write_text(
            AttemptProgress(stage="train", steps=3, seconds=left).model_dump_json()
        )
    bench.clock.advance(86_400.0)
    state = bench.drive(bench.loop())
    assert state.runs[run.run_id].attempts[0].seconds == worked


THREE_HOURS = 3 * 3600.0


@pytest.mark.parametrize(("run_s", "bounds"), [
    (40.0, (LEAST_TIME_LIMIT_S, EPISODE_TIMEOUT_S, LEAST_SILENCE_S)),
    (THREE_HOURS, (TIME_LIMIT_FACTOR * THREE_HOURS, THREE_HOURS, 2 * THREE_HOURS / 3)),
])  # fmt: skip
def test_an_attempt_is_waited_for_by_what_a_run_takes(
    tmp_path: Path, run_s: float, bounds: tuple[float, float, float]
) -> None:
    price = Price(runs=8, parallel=2, seconds_per_run=run_s, total_s=4 * run_s, basis="made up")
    bench = Bench(tmp_path, design=design(16, price=price), budget_s=1e6)
    (run, *_) = bench.loop().tick().runs.values()
    order = order_of(bench, run)
    assert (order.time_limit_s, order.play_s, order.silence_s) == bounds
    for role in ("client", "evaluator-final"):
        played = play_arguments(order, role, server="http://x", out="out")  # type: ignore[arg-type]
        assert played[played.index("--timeout") + 1] == f"{bounds[1]:g}"
