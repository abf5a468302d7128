"""What real replicas and ranks inherit, what is told of their end, and what stops a training."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest

from swarm.backends.protocols import Sampling
from swarm.backends.verl.backend import VerlBackend
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.kinds import ask, played
from tests.swarm.backends.verl.actors import exported, pids

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


async def require_stop(backend: VerlBackend, step: int) -> None:
    """Let the guard, which stands before its last count, judge an update, and refuse it."""
    backend.learner._guard.restore(2)
    batch = await played(backend, 16, step, 6)
    with pytest.raises(BackendError, match="learner and engine disagree"):
        await asyncio.to_thread(backend.learner.update, batch)
    backend.learner._guard.restore(0)


async def test_a_replica_that_serves_other_weights_stops_the_training(pair: VerlBackend) -> None:
    import ray

    other = {
        name: weight + 0.2 * weight.std() * (weight * 1e3).sin() for name, weight in exported(pair.learner).items()
    }
    odd: Any = pair.engine._serving_instances()[1].handle
    await asyncio.to_thread(odd.load, pair.engine.version, [ray.put(other)])
    await require_stop(pair, 1)
    await asyncio.to_thread(pair.publish)


async def test_a_rank_whose_forward_is_off_stops_the_training(
    pair: VerlBackend,
) -> None:
    import ray

    rank = pair.learner.group._actors[0]
    ray.get(rank.__ray_call__.remote(_off))
    await require_stop(pair, 2)
    ray.get(rank.__ray_call__.remote(_right))
    agreed = await asyncio.to_thread(pair.learner.update, await played(pair, 16, 3, 6))
    assert agreed["training/token_mult_prob_error"] == pytest.approx(1, abs=1e-3)
    await asyncio.to_thread(pair.publish)


def _off(rank: Any) -> None:
    head = rank._engine.module.get_output_embeddings()
    rank.hook = head.register_forward_hook(lambda module, inputs, logits: logits * 2)


def _right(rank: Any) -> None:
    rank.hook.remove()
