"""Tests of metrics."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import FakeBackend, FakeLearner
from swarm.backends.protocols import Batch, DiskFull
from swarm.client import AsyncSwarmClient
from swarm.job import Job, Tracking
from swarm.rollout.groups import Group
from swarm.rollout.state import GenerationGate
from swarm.store.tables import Sample
from swarm.timelines import Drift, Node
from swarm.training.checkpoints import MOST_COST, Checkpoints
from swarm.training.metrics import EngineWork, FlatRewards, Stopwatch, batch_metrics, make_batch
from swarm.training.trackers import TrackerThread, make_tracker
from swarm.wire import CheckpointList
from tests.swarm.server.support import Clock, job, serving

SECONDS = st.floats(0, 1000)


class SlowLearner(FakeLearner):
    """Takes `cost_s` of a clock to save, and finds no room where `full`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(FakeBackend(job()).engine)
        self.clock, self.cost_s, self.full = clock, 0.0, False

    def save(self, folder: Path) -> None:
        self.clock.now += self.cost_s
        if self.full:
            raise DiskFull("full")


@given(SECONDS, st.lists(st.tuples(SECONDS, SECONDS, st.booleans()), min_size=1, max_size=30))
def test_checkpoints_by_time_wait_as_asked_and_until_the_last_one_costs_little_and_no_longer(
    tmp_path_factory: pytest.TempPathFactory, after_s: float, steps: list[tuple[float, float, bool]]
) -> None:
    learner = SlowLearner(clock := Clock())
    checkpoints, cost_s = Checkpoints(tmp_path_factory.getbasetemp() / "by-time", 1, []), 0.0
    checkpoints._now, checkpoints.saved_at, saved_at = clock, clock.now, clock.now
    for step, (step_s, learner.cost_s, learner.full) in enumerate(steps, 1):
        clock.now += step_s
        passed = clock.now - saved_at
        assert checkpoints.is_due(after_s) == (passed >= after_s and passed >= cost_s / MOST_COST)
        assert not checkpoints.is_due(None)
        if checkpoints.is_due(after_s):
            if learner.full:  # waiting for room is no cost, and takes nothing back
                with pytest.raises(DiskFull):
                    checkpoints.save(learner, step)
                assert checkpoints.is_due(after_s)
                learner.full = False
            checkpoints.commit(step, checkpoints.save(learner, step))
            saved_at, cost_s = clock.now, checkpoints.cost_s
            assert cost_s == pytest.approx(learner.cost_s)


def test_a_checkpoint_the_store_does_not_know_is_not_loaded_and_goes(tmp_path: Path) -> None:
    learner = FakeBackend(job()).learner
    learner.update(Batch(1, ()))
    Checkpoints(tmp_path, 2, []).save(learner, 1)
    for name in (".step-000002.partial-x", "step-000003.part", "mine"):
        (tmp_path / name).mkdir()
    fresh = FakeBackend(job()).learner
    assert Checkpoints(tmp_path, 2, []).load(fresh) == 0
    assert (fresh.version, {path.name for path in tmp_path.iterdir()}) == (0, {"mine"})


async def test_the_kept_ones_are_told_newest_first_with_the_engine_on_or_off(tmp_path: Path) -> None:
    wanted = job(steps=4, checkpoint_every=1, checkpoints_kept=2)
    async with serving(tmp_path, wanted, start=False) as served, AsyncSwarmClient(served.url, served.admin) as client:
        assert await client.checkpoints() == CheckpointList(job_digest=None, checkpoints=())
        served.server.load(wanted)
        await served.server.start()
        await served.until(state="ROLLING")
        assert await client.checkpoints() == CheckpointList(job_digest=wanted.digest(), checkpoints=())
        await served.play_to(3)
        running = await client.checkpoints()
        await served.server.stop()
        assert await client.checkpoints() == running
    async with serving(tmp_path, start=False) as later, AsyncSwarmClient(later.url, later.admin) as client:
        assert await client.checkpoints() == running  # of a process that has loaded no job
    (folder,) = (tmp_path / "checkpoints").iterdir()
    sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in folder.iterdir()}
    assert [(found.step, found.name) for found in running.checkpoints] == [(3, "step-000003"), (2, "step-000002")]
    assert {found.name: found.size_bytes for found in running.checkpoints} == sizes
    assert running.job_digest == wanted.digest()


AGE = "training/off_policy/trajectory_staleness"


def node(index: int, versions: tuple[int, ...]) -> Node:
    size = len(versions)
    return Node(index, None, (1,), (2,) * size, (-0.1,) * size, versions, "", Drift.START)


def group(*episodes: list[tuple[int, ...]]) -> Group:
    samples = [
        Sample(
            f"e{number}", "a", "default", "me", "a#1", float(number), None, 1.0, tuple(starmap(node, enumerate(calls)))
        )
        for number, calls in enumerate(episodes)
    ]
    return Group("a#1", "a", "default", 0.0, ended=samples)


@pytest.mark.parametrize(
    ("mean", "most", "constant", "warned"),
    [(0.02, 1.0, 14, True), (0.0, 0.0, 16, True), (0.5, 1.0, 14, False), (0.02, 1.0, 8, False)],
)
def test_rewards_near_their_worst_in_equal_groups_are_seen_after_some_steps(
    mean: float, most: float, constant: int, warned: bool
) -> None:
    flat, step = FlatRewards(), {"critic/rewards/mean": mean, "critic/rewards/min": 0.0, "critic/rewards/max": most}
    told = [flat.observe({**step, "batch/constant_groups": float(constant), "batch/groups": 16.0}) for _ in range(5)]
    assert [found is not None for found in told] == [False] * 4 + [warned]
    learned = {**step, "critic/rewards/mean": 0.9, "critic/rewards/max": 1.0}
    assert flat.observe({**learned, "batch/constant_groups": 3.0, "batch/groups": 16.0}) is None


def test_an_episodes_age_is_told_by_its_youngest_and_by_its_oldest_token() -> None:
    metrics = batch_metrics(job(), 6, [group([(3, 4), (5,)], [(4, 4)])])
    assert {name: value for name, value in metrics.items() if name.startswith(AGE)} == {
        f"{AGE}/mean": 0.5, f"{AGE}/min": 0.0, f"{AGE}/max": 1.0, f"{AGE}_worst/mean": 1.5, f"{AGE}_worst/min": 1.0,
        f"{AGE}_worst/max": 2.0,
    }  # fmt: skip


def test_answers_that_a_limit_cut_are_counted_as_clipped_and_can_be_masked() -> None:
    made = group([(0, 0), (0,)], [(0,), (0,)])
    first = made.ended[0]
    made.ended[0] = replace(first, nodes=(replace(first.nodes[0], cut=True), *first.nodes[1:]))
    metrics = batch_metrics(job(), 1, [made])
    assert metrics["response_length/clip_ratio"] == 0.25
    assert metrics["tokens/trained"] == 5
    for merged in (True, False):
        batches = [make_batch(1, made.ended, merged=merged, mask_cut=mask) for mask in (False, True)]
        assert [sum(sum(row.sampled) for each in batch.episodes for row in each.rows) for batch in batches] == [5, 3]
        assert [each.reward for each in batches[1].episodes] == [0.0, 1.0]


def of_stream(stream: str, *rewards: float, success: bool | None = None) -> Group:
    samples = [
        Sample(f"{stream}-{n}", "t", stream, "me", f"{stream}#1", reward, success, 1.0, (node(0, (0, 0)),))
        for n, reward in enumerate(rewards)
    ]
    return Group(f"{stream}#1", "t", stream, 0.0, ended=samples)


def test_each_stream_has_its_own_curves() -> None:
    groups = [of_stream("math", 1.0, 0.0, success=True), of_stream("math", 1.0, 1.0), of_stream("web", 0.5, 0.5)]
    found = batch_metrics(job(), 1, groups, ["math", "web"])
    assert {name: value for name, value in found.items() if name.startswith("stream/math/")} == {
        "stream/math/groups": 2, "stream/math/episodes": 4, "stream/math/share": pytest.approx(2 / 3),
        "stream/math/reward/mean": 0.75, "stream/math/success/mean": 1.0, "stream/math/response_length/mean": 2.0,
        "stream/math/num_turns/mean": 1.0, "stream/math/tokens/trained": 8.0,
    }  # fmt: skip
    assert found["stream/web/reward/mean"] == 0.5
    assert "stream/web/success/mean" not in found, "nobody said whether it succeeded"
    assert found["batch/constant_groups"] == 2


def test_idle_parts_are_shares_of_the_whole_step() -> None:
    clock, work = Clock(), EngineWork(2.0, 5)
    watch = Stopwatch(lambda: work, clock)
    clock.now += 3.0
    work = EngineWork(5.0, 12)
    watch.lap("gen")
    clock.now += 1.0
    watch.lap("update_actor")
    assert watch.metrics() == {
        "timing_s/gen": 3.0, "timing_s/update_actor": 1.0, "timing_s/step": 4.0, "trainer/idle_ratio": 0.75,
        "rollouter/idle_ratio": 0.25, "tokens/generated": 7.0,
    }  # fmt: skip


def test_a_step_that_is_learned_again_counts_its_rollout_of_before() -> None:
    clock, work = Clock(), EngineWork(2.0, 5)
    spent = {
        "timing_s/gen": 3.0, "timing_s/settle": 1.0, "timing_s/update_actor": 7.0, "timing_s/step": 11.0,
        "rollouter/idle_ratio": 1 - 2.2 / 11, "tokens/generated": 40.0,
    }  # fmt: skip
    watch = Stopwatch(lambda: work, clock, spent)
    clock.now += 2.0
    watch.lap("update_actor")
    found = watch.metrics()
    assert (found["timing_s/gen"], found["timing_s/settle"], found["timing_s/update_actor"]) == (3.0, 1.0, 2.0)
    assert (found["timing_s/step"], found["tokens/generated"]) == (6.0, 40.0)
    assert found["rollouter/idle_ratio"] == pytest.approx(1 - 2.2 / 6)


async def test_calls_at_once_make_the_engine_busy_once() -> None:
    clock = Clock()
    gate = GenerationGate(clock)
    gate.open()
    await gate.enter()
    clock.now += 1.0
    await gate.enter()
    clock.now += 1.0
    gate.leave()
    clock.now += 1.0
    assert gate.busy_s == pytest.approx(3.0)
    gate.leave()
    clock.now += 5.0
    assert gate.busy_s == pytest.approx(3.0)


CODE = """
import json, sys
from pathlib import Path
from swarm.job import Job
from swarm.training.trackers import make_tracker
tracker = make_tracker(Job.model_validate_json(sys.argv[1]))
for step in (1, 2, 3):
    tracker.log(step, {"critic/rewards/mean": step / 4})
tracker.finish()
tracker.finish()
"""


def tracked(folder: Path) -> Job:
    config = {"arm": "treatment", "seed": "not the job's"}
    tracking = Tracking(directory=str(folder), run_id="run7", group="study1", name="n", config=config, tags=("a", "b"))
    return Job(backend="fake", seed=11, tracking=tracking)


def inspect(folder: Path) -> list[dict[str, Any]]:
    (log,) = folder.glob("wandb/offline-run-*/run-run7.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400).stdout.splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_finished_run_is_whole_on_disk_without_an_account(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "NETRC": str(tmp_path / "none")}
    job = tracked(tmp_path)
    command = [sys.executable, "-c", CODE, job.model_dump_json()]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    records = inspect(tmp_path)
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [(item["_step"], item["critic/rewards/mean"]) for item in history] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert records[-1]["type"] == "exit"
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    text = json.dumps(run)
    assert all(word in text for word in ("study1", "run7", "treatment", job.digest()))
    assert not {"stats", "output", "output_raw", "metadata"} & {record["type"] for record in records}
    files = tmp_path.glob("wandb/offline-run-*/files/*")
    assert not {"requirements.txt", "output.log", "diff.patch"} & {path.name for path in files}


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes in which runs are begun, of which wandb takes none online, and none with a wrong address."""
    import wandb

    begun: list[str] = []

    def init(**given: Any) -> None:
        begun.append(given["mode"])
        if given["mode"] == "online":
            raise wandb.errors.CommError("nobody answers")
        if "WANDB_BASE_URL" in os.environ:
            raise ValueError("no valid URL")

    monkeypatch.setattr(wandb, "init", init)
    return begun


def test_what_a_sweep_or_launch_says_of_its_run_is_left_out(
    tmp_path: Path, modes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_run = ("WANDB_SWEEP_ID", "WANDB_LAUNCH", "WANDB_RUN_ID", "WANDB_CONFIG")
    for name in (*of_a_run, "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, "1")
    make_tracker(tracked(tmp_path))
    assert (os.environ.keys() & {*of_a_run, "WANDB_CONFIG_DIR"}) == {"WANDB_CONFIG_DIR"}
    assert (os.environ["WANDB_ERROR_REPORTING"], modes) == ("false", ["offline"])


@pytest.mark.slow
def test_a_run_that_wandb_does_not_take_is_logged_offline(tmp_path: Path, modes: list[str]) -> None:
    job = tracked(tmp_path)
    assert job.tracking is not None
    make_tracker(job.model_copy(update={"tracking": job.tracking.model_copy(update={"mode": "online"})}))
    assert modes == ["online", "offline"]


def test_a_variable_that_wandb_refuses_stops_no_offline_training(
    tmp_path: Path, modes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "garbage")
    make_tracker(tracked(tmp_path))
    assert ("WANDB_BASE_URL" in os.environ, modes) == (False, ["offline", "offline"])


class Slow:
    """A tracker whose disk is slow until `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.calls: list[object] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.go.wait(120)
        self.calls.append(step)

    def finish(self) -> None:
        self.calls.append("finish")


async def test_a_slow_tracker_never_holds_up_the_event_loop_and_keeps_order() -> None:
    slow, thread = Slow(), TrackerThread()
    await thread.open(lambda: slow)
    calls = [asyncio.create_task(thread.log(step, {})) for step in (1, 2)]
    calls.append(asyncio.create_task(thread.finish()))
    await asyncio.sleep(0)
    assert slow.calls == []
    slow.go.set()
    await asyncio.gather(*calls)
    assert slow.calls == [1, 2, "finish"]
