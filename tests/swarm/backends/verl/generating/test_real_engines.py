"""Real replicas on this machine's CPU, held to plain forwards of the same weights."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch

from swarm.backends.protocols import Chunk, GenerationRequest, RequestLost, Sampling
from swarm.backends.verl.engine import ReplicatedEngine, make_engine
from swarm.backends.verl.replica import RayReplica
from swarm.backends.verl.vllm import ReplicaDied, ReplicaSpec, add_adapter, folder_tensors, sample_tensors
from swarm.job import Job
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.cluster_kind import pids
from tests.swarm.backends.conformance.kinds import Oracle
from tests.swarm.backends.local.models import make_model
from tests.swarm.backends.local.models import save_folder as save_narrow_heads

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
OPTIONS: dict[str, Any] = {"num_cpus": 0}
PROMPT = (1, 2, 3, 9)
VOCABULARY = 259
"""No multiple of 64, to which vLLM pads: its own rows must never be sampled."""


class Served:
    def __init__(self, engine: ReplicatedEngine, kind: str, folder: Path) -> None:
        self.engine, self.kind, self.model = engine, kind, make_model(kind, VOCABULARY)
        self.samples = sample_tensors(folder_tensors(folder))

    async def ask(self, prompt: Sequence[int], sampling: Sampling, session: str = "") -> list[Chunk]:
        async with asyncio.timeout(120):
            return [chunk async for chunk in self.engine.generate(GenerationRequest("r", prompt, sampling, session))]

    async def publish(self, seed: int) -> Any:
        import ray

        older, self.model = self.model, make_model(self.kind, VOCABULARY, seed)
        buckets = [ray.put(bucket) for bucket in buckets_of(self.model)]
        await asyncio.to_thread(self.engine.publish, self.engine.version + 1, buckets)
        return older

    async def publish_adapter(self) -> None:
        """Publish what is added to the model of the folder."""
        import ray

        self.model, job = make_model(self.kind, VOCABULARY), spec_of(Path()).job
        adapters = dict[str, torch.Tensor]()
        torch.manual_seed(7)
        for name, layer in self.model.named_modules():
            if isinstance(layer, torch.nn.Linear) and name != "lm_head":
                down, up = torch.randn(2, layer.in_features) / 8, torch.randn(layer.out_features, 2) / 8
                adapters |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
                layer.weight.data = add_adapter(layer.weight.data, down, up, job.lora_alpha / job.lora_rank)
        await asyncio.to_thread(self.engine.publish, self.engine.version + 1, [ray.put(adapters | self.samples)])

    async def alike(self, prompt: Sequence[int] = PROMPT) -> None:
        for session in ("even", "odd"):
            asked = await self.ask(prompt, Sampling(max_tokens=6, temperature=0), session)
            assert ids(asked) == greedy(self.model, prompt, 6)
            assert {chunk.version for chunk in asked} == {self.engine.version}


def spec_of(folder: Path, seed: int = 0) -> ReplicaSpec:
    job = Job(backend="verl", max_context=128, max_concurrency=8, kv_cache_bytes=1 << 28, lora_rank=2)
    return ReplicaSpec(str(folder), job, "cpu", seed)


def save_folder(folder: Path, kind: str = "wide3") -> Path:
    make_model(kind, VOCABULARY).save_pretrained(folder)
    return folder


def ids(chunks: Sequence[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["wide3", "wide"], ids=["untied", "tied"])
async def served(request: pytest.FixtureRequest, ray_here: None, tmp_path_factory: Any) -> AsyncIterator[Served]:
    folder = save_folder(tmp_path_factory.mktemp("models") / "m", request.param)
    engine = make_engine(spec_of(folder, seed=3), 2, lambda number: OPTIONS)
    await engine.start()
    yield Served(engine, request.param, folder)
    await engine.stop()


async def test_ids_that_pad_a_vocabulary_have_no_mass(served: Served) -> None:
    for temperature in (0.0, 1.0, 2.0):
        rule = Sampling(max_tokens=3, temperature=temperature, top_logprobs=VOCABULARY + 64)
        for place in (place for chunk in await served.ask(PROMPT, rule) for place in chunk.top):
            assert sorted(token for token, _ in place) == list(range(VOCABULARY))
            assert sum(math.exp(value) for _, value in place) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("victim", ["actor", "engine"])
async def test_a_killed_replica_loses_its_own_requests_alone_and_comes_back(served: Served, victim: str) -> None:
    """Its worker is halted first, so that what it was asked is open for certain when it dies."""
    await served.publish(30)
    doomed: Any = served.engine._serving_instances()[0].handle
    actor = psutil.Process(pids([doomed._actor])[0])
    family = [actor, *actor.children(recursive=True)]
    worker = max(family[1:], key=lambda process: process.memory_info().rss)
    worker.suspend()
    asked = [asyncio.ensure_future(served.ask([5, number], Sampling(max_tokens=120))) for number in range(2)]
    done, _ = await asyncio.wait(asked, timeout=120, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result()[-1].finish for each in done] == ["length"], "the other replica does not answer meanwhile"
    (actor if victim == "actor" else worker).kill()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    lost = sum(isinstance(end, RequestLost) for end in ends)
    assert lost == 1
    await served.ask(PROMPT, Sampling(max_tokens=3))
    async with asyncio.timeout(300):
        while len(served.engine._serving_instances()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await served.alike()
    assert served.engine.failure() is None
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, 30)
    assert not alive, "what was killed left processes behind"


async def test_an_engine_that_dies_before_it_is_given_weights_is_a_dead_replica_and_the_other_serves_them(
    served: Served,
) -> None:
    doomed: Any = served.engine._serving_instances()[1].handle
    family = psutil.Process(pids([doomed._actor])[0]).children(recursive=True)
    max(family, key=lambda process: process.memory_info().rss).kill()
    await served.publish(31)
    await served.publish_adapter()
    await served.alike()
    async with asyncio.timeout(300):
        while len(served.engine._serving_instances()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await served.alike()
    assert served.engine.failure() is None


async def test_what_cannot_be_booted_says_why(ray_here: None, tmp_path: Path) -> None:
    strange = save_folder(tmp_path / "strange")
    config = (strange / "config.json").read_text()
    (strange / "config.json").write_text(config.replace("Qwen3ForCausalLM", "OracleForCausalLM"))
    for place, said in (
        (tmp_path / "none", "config.json .* found none"),
        (save_narrow_heads(tmp_path / "narrow"), "heads of 32, .* found 8"),
        (strange, r"architecture that vLLM [\d.]+ serves, found OracleForCausalLM"),
    ):  # fmt: skip
        replica = RayReplica(spec_of(place), 0, 0, OPTIONS)
        with pytest.raises(BackendError, match=said):
            await replica.boot()
        replica.kill()


async def test_one_that_is_killed_while_it_boots_leaves_no_process(ray_here: None, tmp_path: Path) -> None:
    """Its engine's processes have begun by then, and import what they are made of."""
    folder = save_folder(tmp_path / "model")
    replica = RayReplica(spec_of(folder), 0, 0, OPTIONS)
    boot = asyncio.ensure_future(replica.boot())
    async with asyncio.timeout(120):
        while not (family := booting()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    replica.kill()
    with pytest.raises(ReplicaDied):
        await boot
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, 60)
    assert not alive


def booting() -> list[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            below = process.children(recursive=True)
            begun = any("spawn_main" in " ".join(each.cmdline()) for each in below)
            if begun and "".join(process.cmdline()).startswith("ray::Replica.boot"):
                return [process, *below]
    return []


def buckets_of(model: Any, count: int = 3) -> list[dict[str, torch.Tensor]]:
    state = list(model.state_dict(keep_vars=False).items())
    return [dict(state[start::count]) for start in range(count)]


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        following = Oracle(lambda: model).distribution(ids)
        ids.append(following.index(max(following)))
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed here")
    pytest.importorskip("vllm", reason="vLLM is not installed here")
    root = str(Path(__file__).parents[5])
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=200 << 20,
        _node_ip_address="127.0.0.1", runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()
