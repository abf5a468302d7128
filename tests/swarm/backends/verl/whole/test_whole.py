"""What real replicas and ranks inherit and tell of their end, what stops a training, and forms that are not plain."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarm.backends.protocols import Sampling
from swarm.backends.verl.backend import VerlBackend
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields
from tests.swarm.backends.conformance.cluster_kind import exported, pids
from tests.swarm.backends.conformance.kinds import Answer, ask, played
from tests.swarm.backends.verl.whole.conftest import gaps, started

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


def replicas_of(backend: VerlBackend, *numbers: int) -> list[psutil.Process]:
    handles: list[Any] = [backend.engine._serving_instances()[number].handle for number in numbers]
    return [psutil.Process(pid) for pid in pids([handle._actor for handle in handles])]


def ranks_of(backend: VerlBackend) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in pids(backend.learner.group._actors)]


async def test_no_process_has_a_secret_of_the_server_s(pair: VerlBackend) -> None:
    """`conftest.py` put one into this process's environment before Ray was started."""
    actors = [*replicas_of(pair, 0, 1), *ranks_of(pair)]
    for actor in actors:
        assert "AJET_SECRET" not in actor.environ()
        assert "WANDB_API_KEY" not in actor.environ()
        for below in actor.children(recursive=True):
            assert "RAY_AUTH_TOKEN" not in below.environ()
    assert any(actor.children(recursive=True) for actor in actors[:2])


async def test_a_dead_vllm_s_last_words_are_told(pair: VerlBackend, caplog: pytest.LogCaptureFixture) -> None:
    """The process that computes is shot, and tells by what it prints; the replica is made again."""
    (actor,) = replicas_of(pair, 0)
    worker = max(actor.children(recursive=True), key=lambda process: process.memory_info().rss)
    worker.send_signal(11)
    async with asyncio.timeout(300):
        while not any("it said last" in each.getMessage() for each in caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        while len(pair.engine._serving_instances()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    said = next(each.getMessage() for each in caplog.records if "it said last" in each.getMessage())
    assert "last: nothing" not in said
    await ask(pair, [1, 2], Sampling(max_tokens=2))


@pytest.mark.parametrize("off", ["a replica", "a rank"])
async def test_a_replica_of_other_weights_or_a_rank_whose_forward_is_off_stops_the_training(
    pair: VerlBackend, off: str
) -> None:
    import ray

    rank, guard = pair.learner.group._actors[0], pair.learner._guard
    if off == "a rank":
        ray.get(rank.__ray_call__.remote(_put_off))
    else:
        own = exported(pair.learner)
        other = {name: weight + 0.2 * weight.std() * (weight * 1e3).sin() for name, weight in own.items()}
        odd: Any = pair.engine._serving_instances()[1].handle
        await asyncio.to_thread(odd.load, pair.engine.version, [ray.put(other)])
    guard.above = 2
    with pytest.raises(BackendError, match="engine disagree"):
        await asyncio.to_thread(pair.learner.update, await played(pair, 16, 1, 6))
    guard.above = 0
    if off == "a rank":
        ray.get(rank.__ray_call__.remote(lambda rank: rank.hook.remove()))
    await asyncio.to_thread(pair.publish)
    agreed = await asyncio.to_thread(pair.learner.update, await played(pair, 16, 3, 6))
    assert agreed["training/token_mult_prob_error"] == pytest.approx(1, abs=1e-3)
    await asyncio.to_thread(pair.publish)


def _put_off(rank: Any) -> None:
    head = rank._engine.module.get_output_embeddings()
    rank.hook = head.register_forward_hook(lambda module, inputs, logits: logits * 2)


async def test_a_replica_over_two_processes_answers_by_the_learner_s_weights(tmp_path: Path) -> None:
    async with started(tmp_path, VerlFields(tensor_parallel=2), learning_rate=1e-3) as backend:
        handle: Any = backend.engine._serving_instances()[0].handle
        below = psutil.Process(pids([handle._actor])[0]).children(recursive=True)
        assert sum("VLLM::Worker" in " ".join(each.cmdline()) for each in below) == 2
        assert max(await gaps(backend)) < 1e-4


async def test_in_bfloat16_learner_and_engine_differ_by_rounding(tmp_path: Path) -> None:
    async with started(tmp_path, VerlFields(), dtype="bfloat16", learning_rate=1e-3) as backend:
        tolerance = backend.probs_tolerance
        assert tolerance is not None
        assert 0 < max(await gaps(backend)) < tolerance


class Observed:
    def __init__(self, backend: VerlBackend) -> None:
        self._backend, self._loop = backend, asyncio.get_running_loop()
        self._score = backend.learner._fill_logprobs
        self.asked: list[Future[Answer]] = []
        self.early: list[bool] = []
        self.broken = False

    def score(self, update: Any) -> None:
        asking = ask(self._backend, [1, 2, 3], Sampling(max_tokens=4))
        self.asked.append(asyncio.run_coroutine_threadsafe(asking, self._loop))
        time.sleep(1.0)
        self.early.append(self.asked[-1].done())
        if self.broken:
            raise BackendError("it broke down")
        self._score(update)

    async def answered(self) -> list[set[int]]:
        return [set((await asyncio.wrap_future(each)).versions) for each in self.asked]


async def test_a_replica_on_the_learner_s_device_rests_and_wakes_with_its_weights(tmp_path: Path) -> None:
    async with started(tmp_path, VerlFields(colocated=True), learning_rate=1e-3) as backend:
        observed = Observed(backend)
        backend.learner._fill_logprobs = observed.score  # type: ignore[method-assign]
        assert max(await gaps(backend)) < 1e-4
        assert observed.early == [False, False]
        observed.broken = True
        with pytest.raises(BackendError, match="it broke down"):
            await asyncio.to_thread(backend.learner.update, await played(backend, 16, 2, 6))
        assert await observed.answered() == [{1}, {2}, {2}]
        observed.broken = False
        assert max(await gaps(backend)) < 1e-4
        assert set((await ask(backend, [1, 2, 3], Sampling(max_tokens=4))).versions) == {4}
