"""Tests of accounting."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.backends.fake import EOS_ID, FakeBackend
from swarm.backends.protocols import Batch, Sampling
from swarm.calls.call import Call
from swarm.calls.prompts import SamplingPlan
from swarm.client import AsyncSwarmClient
from swarm.errors import EpisodeEnded, JobFinished, LeaseLost, StoreUnavailable, Throttled, Unreachable
from swarm.job import Job
from swarm.rollout.episodes import LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.state import StateMachine
from swarm.server import export, routes
from swarm.server.inspection import Inspection
from swarm.training.loop import NOTHING, Training
from swarm.training.trackers import NullTracker
from swarm.wire import BeginRequest, EndRequest, EpisodeKind, EpisodeRecord, ServerState
from tests.swarm.server.support import DEADLINE_S, Answer, Clock, Served, eventually, job, serving
from tests.swarm.store.support import FakeStore

LARGE = 64 << 20
"""Bytes that no buffer between a server and a client takes."""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as running:
        lease = await running.begin("t", kind="eval")
        assert (await running.chat(lease, "one")).status == 200
        await running.end(lease, 1.0)
        yield running


class Held:
    """While its gate is shut, exports wait for their first episode."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = 0

    async def all_places_are_taken(self) -> None:
        await eventually(lambda: self.waiting, lambda waiting: waiting == export.MOST_AT_ONCE)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found, whole = Held(), Inspection.tokens

    async def waiting(self: Inspection, name: str) -> EpisodeRecord:
        found.waiting += 1
        await found.gate.wait()
        return await whole(self, name)

    monkeypatch.setattr(Inspection, "tokens", waiting)
    return found


@contextlib.asynccontextmanager
async def asked(served: Served, form: str = "openenv") -> AsyncIterator[aiohttp.ClientResponse]:
    key = {"authorization": f"Bearer {served.admin}"}
    async with served.http.get(f"{served.url}/samples?format={form}", headers=key) as answer:
        yield answer


async def exported(served: Served) -> int:
    async with asked(served) as answer:
        await answer.read()
        return answer.status


async def refused(served: Served) -> Answer:
    return await served.call("GET", "/samples", served.admin)


def left(folder: Path, name: str) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(name)]


async def test_more_than_a_few_at_once_are_told_to_come_again(served: Served, held: Held) -> None:
    under_way = [asyncio.create_task(exported(served)) for _ in range(export.MOST_AT_ONCE)]
    await held.all_places_are_taken()
    answer = await refused(served)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "throttled", "10")
    assert "found 2" in answer.message
    held.gate.set()
    assert await asyncio.gather(*under_way) == [200, 200]
    assert await exported(served) == 200


async def test_who_leaves_while_an_export_is_made_leaves_its_place(served: Served, held: Held) -> None:
    under_way = [asyncio.create_task(exported(served)) for _ in range(export.MOST_AT_ONCE)]
    await held.all_places_are_taken()
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)
    held.gate.set()
    await eventually(lambda: exported(served), lambda status: status == 200)


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [True, False])
async def test_who_takes_nothing_of_it_loses_its_place(
    served: Served, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(routes, "STALLED_S", 600.0 if leaves else 0.2)
    monkeypatch.setattr(export, "training_trace", lambda *_: {"pad": "x" * LARGE})
    async with contextlib.AsyncExitStack() as open_ones:
        for _ in range(export.MOST_AT_ONCE):
            answer = await open_ones.enter_async_context(asked(served))
            assert answer.status == 200
        if leaves:
            assert (await refused(served)).status == 429
            await open_ones.aclose()
        monkeypatch.setattr(export, "training_trace", lambda *_: {})
        await eventually(lambda: exported(served), lambda status: status == 200)


async def test_what_was_cut_short_is_no_file(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def broken(self: export.Export) -> AsyncIterator[bytes]:
        yield b"{}\n"
        raise TimeoutError

    monkeypatch.setattr(export.Export, "pieces", broken)
    async with AsyncSwarmClient(served.url, served.admin) as client:
        with pytest.raises(Unreachable, match="did not send all"):
            await client.export(tmp_path / "traces.jsonl")
    assert not left(tmp_path, "traces")


@pytest.mark.parametrize("form", ["openenv", "parquet"])
async def test_a_full_disk_is_one_error_and_nothing_stays_of_the_export(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: Any
) -> None:
    made: list[Any] = []

    def full() -> Any:
        made.append(open("/dev/full", "w+b"))  # noqa: SIM115 - the server closes it
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    async with AsyncSwarmClient(served.url, served.admin) as client:
        for _ in range(export.MOST_AT_ONCE + 1):
            with pytest.raises(StoreUnavailable, match="no room"):
                await client.export(tmp_path / "out", form)
        assert not left(tmp_path, "out")
        assert [file.closed for file in made] == [True] * len(made)
        monkeypatch.undo()
        assert await client.export(tmp_path / "out", form) > 0


HABITS = (
    "good", "twice", "hasty", "silent", "abort", "late", "die", "leave the line", "evaluate",
)  # fmt: skip
TTL_S = 30.0
DROPPED_AFTER_THE_END = (
    "no_calls", "no_trained_calls", "partial_group", "constant_group", "pool_bytes", "stale", "job_finished",
)  # fmt: skip


@dataclass
class World:
    """One training, what its agents will do (one habit an episode, then all are good), and what was acknowledged."""

    job: Job
    habits: Iterator[str]
    clock: Clock = field(default_factory=Clock)
    machine: StateMachine = field(default_factory=StateMachine)
    acknowledged: dict[str, float] = field(default_factory=dict)
    rewards: Iterator[int] = field(default_factory=lambda: itertools.cycle((0, 0, 0, 1, 0, 1, 2)))
    counts: Counter[str] = field(default_factory=Counter)
    training: Training = field(init=False)
    backend: FakeBackend = field(init=False)

    async def run(self, folder: Path, orders: Sequence[Sequence[str]]) -> None:
        self.backend = FakeBackend(self.job, script=lambda *_: "look", chunk_size=1)
        new = (FakeStore(), NOTHING)
        self.training = Training(
            self.job, self.machine, new, folder, lambda: self.backend, lambda _: NullTracker(), self.clock
        )
        self.machine.transition_to(ServerState.BOOTING)
        self.training.start()
        passing = asyncio.create_task(self.pass_time())
        try:
            async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as agents:
                for order in orders:
                    agents.create_task(self.work(order))
        finally:
            passing.cancel()
            await self.training.stop()

    async def pass_time(self) -> None:
        """Let a lease's whole time pass whenever nobody gets on."""
        before = None
        while True:
            for _ in range(50):
                await asyncio.sleep(0)
            now = (self.training.rollout.counts.copy(), self.machine.state, self.training.step)
            if now == before and not self.training.updating:
                self.clock.now += TTL_S + 1
                self.training.rollout.sweep()
            before = now
            await asyncio.sleep(0.001)

    async def work(self, order: Sequence[str]) -> None:
        """Play the tasks in this order, each as often as a group takes, until the job is finished."""
        for task in itertools.chain.from_iterable([task] * self.job.group_size for task in itertools.cycle(order)):
            try:
                await self.play(task, next(self.habits, "good"))
            except JobFinished:
                return
            except LeaseLost:
                self.counts["lost"] += 1

    async def play(self, task: str, habit: str) -> None:
        if habit == "leave the line":
            await self.leave_the_line(task)
            return
        kind: EpisodeKind = "eval" if habit == "evaluate" else "train"
        episode = await self.training.rollout.begin(BeginRequest(task_id=task, kind=kind, wait_s=60))
        if habit != "silent":
            await self.call(episode)
        if habit == "hasty":
            await self.end_in_a_call(episode)
        elif habit == "abort":
            await self.training.rollout.abort(claims(episode), "")
        elif habit == "late":
            while episode.fencing_token == 1:  # noqa: ASYNC110  -- a fence tells nobody
                await asyncio.sleep(0.001)
        if habit not in ("abort", "hasty", "die"):
            await self.end(episode, repeat=habit == "twice")

    async def leave_the_line(self, task: str) -> None:
        asking = asyncio.create_task(self.training.rollout.begin(BeginRequest(task_id=task, wait_s=60)))
        for _ in range(3):
            await asyncio.sleep(0)
        asking.cancel()
        found = (await asyncio.gather(asking, return_exceptions=True))[0]
        if isinstance(found, LeasedEpisode):
            await self.training.rollout.abort(claims(found), "")
        else:
            assert isinstance(found, asyncio.CancelledError | JobFinished | Throttled), found

    async def call(self, episode: LeasedEpisode) -> None:
        prompt = episode.tree.prompt([{"role": "user", "content": episode.task_id}])
        plan = SamplingPlan(Sampling(32, stop_ids=(EOS_ID,)))
        call = Call(self.training.rollout.registry, self.backend, episode, prompt, plan)
        with call.attach(comes_back=False):
            await call.replies()

    async def end_in_a_call(self, episode: LeasedEpisode) -> None:
        calling = asyncio.create_task(self.call(episode))
        await asyncio.sleep(0)
        await self.end(episode)
        assert isinstance((await asyncio.gather(calling, return_exceptions=True))[0], EpisodeEnded)

    async def end(self, episode: LeasedEpisode, *, repeat: bool = False) -> None:
        reward = float(next(self.rewards))
        await self.training.rollout.end(claims(episode), EndRequest(reward=reward))
        if episode.kind == "train":
            self.acknowledged[episode.id] = reward
        if repeat:
            with pytest.raises(EpisodeEnded):
                await self.training.rollout.end(claims(episode), EndRequest(reward=-1.0))


def claims(episode: LeasedEpisode) -> Claims:
    return Claims("lease", episode=episode.id, fencing_token=1)


def check(world: World) -> None:
    assert (world.machine.reason, world.training.step) == (None, world.job.steps)
    batches, counts = world.backend.learner.batches, world.training.rollout.counts
    for batch in batches:
        check_groups(batch, world.job)
        check_ages(batch, world.job)
    trained = {episode.episode_id: episode.reward for batch in batches for episode in batch.episodes}
    assert len(trained) == world.job.steps * world.job.episodes_per_step  # none twice
    assert trained.items() <= world.acknowledged.items()
    dropped = sum(counts[f"drop_{why}"] for why in DROPPED_AFTER_THE_END)
    assert len(world.acknowledged) == len(trained) + dropped
    assert counts["ended"] == counts["trained"] + counts["evaluated"] + dropped
    assert counts["fenced"] == sum(counts[f"drop_{why}"] for why in ("lease_expired", "held_up_batch", "outdated"))
    still_open = len(world.training.rollout.leases)
    assert counts["begun"] == counts["ended"] + counts["aborted"] + counts["fenced"] + still_open


def check_ages(batch: Batch, wanted: Job) -> None:
    sampled = {version for episode in batch.episodes for row in episode.rows for version in row.versions} - {-1}
    if wanted.max_staleness or not wanted.surplus_groups:
        assert min(sampled) >= batch.step - 1 - wanted.max_staleness


def check_groups(batch: Batch, wanted: Job) -> None:
    groups: dict[str, list[float]] = {}
    for episode in batch.episodes:
        groups.setdefault(episode.group, []).append(episode.reward)
    sizes = [len(rewards) for rewards in groups.values()]
    assert sum(sizes) == wanted.episodes_per_step
    assert wanted.batch_rule == "episodes" or sizes == [wanted.group_size] * wanted.tasks_per_step
    assert wanted.batch_rule != "varied_groups" or all(len(set(rewards)) > 1 for rewards in groups.values())
    for episode in batch.episodes:
        (row,) = episode.rows
        asked = bytes(token for token in row.ids if token != EOS_ID).decode()
        assert f"<|user|>{episode.group.partition('#')[0]}<|assistant|>" in asked


JOBS = st.builds(
    lambda size, tasks, **fields: job(
        group_size=size, episodes_per_step=size * tasks, lease_ttl_s=TTL_S, drain_timeout_s=10, **fields
    ),
    size=st.integers(2, 4), tasks=st.integers(1, 3), steps=st.integers(1, 3), surplus_groups=st.integers(0, 2),
    batch_rule=st.sampled_from(["groups", "varied_groups", "episodes"]), max_staleness=st.sampled_from([0, 0, 1, 2]),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(HABITS), max_size=40),
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), min_size=1, max_size=6),
    JOBS,
)
def test_every_acknowledged_episode_is_trained_once_or_dropped_with_a_reason(
    habits: list[str], orders: list[list[str]], wanted: Job
) -> None:
    world = World(wanted, iter(habits))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(world.run(Path(folder), orders))
    check(world)
