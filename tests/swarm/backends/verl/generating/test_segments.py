"""Requests of one replica: versions of their parts, how they end, what new weights and a full disk do to them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.protocols import Chunk, Sampling
from swarm.backends.verl import replica as replica_module
from swarm.backends.verl.replica import GenerateCommand, Outbox, Replica, RequestRunner
from swarm.backends.verl.vllm import ReplicaDied, ReplicaSpec
from swarm.job import Job
from swarm.rendering.messages import BackendError


class FakeStream:
    """Counts upwards from the last id, a step a `tick`; it remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[int, ...], Sampling, int]] = []
        self.ticks = asyncio.Semaphore(0)
        self.aborted: set[str] = set()
        self.deaf = False
        self.short = 0

    async def stream(self, name: str, ids: Sequence[int], sampling: Sampling, version: int) -> AsyncIterator[Chunk]:
        self.asked.append((tuple(ids), sampling, version))
        last = ids[-1]
        for step in range(1, sampling.max_tokens + 1 - self.short):
            while self.ticks.locked():
                if name in self.aborted:
                    return
                await asyncio.sleep(0)
            await self.ticks.acquire()
            yield Chunk((last + step,), (-0.5,), version)
            if last + step in sampling.stop_ids:
                return

    async def abort(self, names: Sequence[str]) -> None:
        if not self.deaf:
            self.aborted.update(names)

    def tick(self, count: int) -> None:
        for _ in range(count):
            self.ticks.release()


def order(limit: int = 12, stop_ids: tuple[int, ...] = (), seed: int | None = None) -> GenerateCommand:
    return GenerateCommand(1, (10, 20), Sampling(max_tokens=limit, stop_ids=stop_ids, seed=seed), limit)


async def until_finished(segments: RequestRunner, count: int | None = None) -> list[Chunk]:
    """Return what comes until an answer is finished, or so many ids are there."""
    chunks: list[Chunk] = []
    async with asyncio.timeout(10):
        while not chunks or (
            chunks[-1].finish is None if count is None else sum(len(chunk.ids) for chunk in chunks) < count
        ):
            await segments.outbox.wait(1)
            chunks += [each.chunk for each in segments.outbox.take() if each.chunk]
    return chunks


@pytest.fixture
async def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
async def segments(stream: FakeStream) -> RequestRunner:
    segments = RequestRunner()
    segments._model = stream  # type: ignore[assignment]
    return segments


async def test_what_new_weights_catch_goes_on_under_them_from_where_it_was(
    stream: FakeStream, segments: RequestRunner
) -> None:
    segments.submit(order(seed=5))
    stream.tick(4)
    before = await until_finished(segments, 4)
    await segments.pause()
    segments.resume(3)
    stream.tick(6)
    after = await until_finished(segments)
    assert [chunk.version for chunk in before] == [0] * len(before)
    assert {chunk.version for chunk in after} == {3}
    assert [token for chunk in before + after for token in chunk.ids] == list(range(21, 31))
    assert after[-1].finish == "length"
    (_, first, old), (ids, second, new) = stream.asked
    assert (old, new) == (0, 3), "their caches are one"
    assert ids == (10, 20, 21, 22, 23, 24)
    assert second.max_tokens == 6
    assert first.seed != second.seed, "numbers are used twice"


async def test_nothing_begins_while_it_is_paused(stream: FakeStream, segments: RequestRunner) -> None:
    await segments.pause()
    segments.submit(order())
    stream.tick(20)
    await segments.outbox.wait(0.05)
    assert segments.outbox.take() == []
    assert stream.asked == []
    segments.resume(1)
    assert {chunk.version for chunk in await until_finished(segments)} == {1}


async def test_what_does_not_stop_is_dead(
    stream: FakeStream, segments: RequestRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "STILL_S", 0.2)
    segments.submit(order())
    stream.deaf = True
    stream.tick(1)
    await until_finished(segments, 1)
    with pytest.raises(ReplicaDied, match="1 requests"):
        await segments.pause()
    segments.cancel(1)


async def test_a_stop_id_ends_an_answer_and_what_was_cancelled_is_gone(
    stream: FakeStream, segments: RequestRunner
) -> None:
    segments.submit(order(stop_ids=(22,)))
    stream.tick(9)
    chunks = await until_finished(segments)
    assert [token for chunk in chunks for token in chunk.ids] == [21, 22]
    assert chunks[-1].finish == "stop"
    stream.ticks = asyncio.Semaphore(0)
    segments.submit(order())
    stream.tick(1)
    await until_finished(segments, 1)
    segments.cancel(1)
    async with asyncio.timeout(5):
        while segments._tasks:  # noqa: ASYNC110 - nothing tells when it is so
            await asyncio.sleep(0)
    assert segments.outbox.take() == []


async def test_an_answer_that_ends_for_no_reason_is_lost_and_says_so(
    stream: FakeStream, segments: RequestRunner
) -> None:
    stream.short = 2
    segments.submit(order())
    stream.tick(20)
    async with asyncio.timeout(5):
        while not (lost := [each.lost for each in segments.outbox.take() if each.lost]):
            await segments.outbox.wait(1)
    assert "early, after 8 ids" in lost[0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans())))
def test_an_outbox_gives_each_token_once_in_order_and_one_version_a_chunk(steps: list[tuple[int, int, bool]]) -> None:
    async def run() -> None:
        outbox, put, got = Outbox(), dict[int, list[tuple[int, int]]](), dict[int, list[tuple[int, int]]]()

        def take() -> None:
            for each in outbox.take():
                assert each.chunk is not None
                got.setdefault(each.key, []).extend((token, each.chunk.version) for token in each.chunk.ids)

        for number, (key, version, taken) in enumerate(steps):
            outbox.add(key, Chunk((number,), (-1.0,), version))
            put.setdefault(key, []).append((number, version))
            if taken:
                take()
        take()
        assert got == put

    asyncio.run(run())


BUCKET = {"w": torch.arange(4096.0)}


class Model:
    def __init__(self) -> None:
        self.called: list[str] = []
        self.loaded: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def called(*arguments: str) -> list[str]:
            self.called.append(" ".join([name, *arguments]))
            return []

        return called

    async def load_bucket(self, path: str) -> None:
        self.called.append("load_bucket")
        self.loaded |= torch.load(path, mmap=True, weights_only=True)


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where buckets are written."""
    monkeypatch.setattr(replica_module, "_SHARED", tmp_path)
    return tmp_path


def replica_of(model: Model) -> Replica:
    replica = Replica(ReplicaSpec("/models/m", Job(backend="verl"), "cpu", 0))
    replica._model = model  # type: ignore[assignment]
    return replica


async def arriving(bucket: dict[str, Any]) -> dict[str, Any]:
    return bucket


async def test_buckets_are_loaded_one_by_one_and_leave_no_file(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    assert await replica_of(model).load(2, [arriving({"a": torch.ones(2)}), arriving(BUCKET)]) == 2
    assert set(model.loaded) == {"a", "w"}
    assert torch.equal(model.loaded["w"], BUCKET["w"])

    make = tempfile.mkdtemp

    def on_full_disk(*arguments: Any) -> str:
        folder = make(*arguments)
        (Path(folder) / "bucket.pt").symlink_to("/dev/full")
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", on_full_disk)
    with pytest.raises(BackendError, match=rf"16,384 bytes .* under {shared}: .*No space left"):
        await replica_of(Model()).load(3, [arriving(BUCKET)])
    assert os.listdir(shared) == []


LOADED = ["begin_weights", "load_bucket", "finish_weights"]


async def test_one_that_rests_wakes_for_its_weights_and_for_its_cache_once_they_are_there() -> None:
    model = Model()
    replica = replica_of(model)
    await replica.sleep()
    assert (model.called, replica._open.is_set()) == (["sleep"], False)
    assert await replica.load(1, [arriving(BUCKET)]) == 1
    assert model.called == ["sleep", "wake weights", *LOADED, "wake kv_cache", "forget_prefixes"]
    assert replica._open.is_set()
