"""A training that real ranks' and replicas' disagreement stops says which of them moved."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import BackendError
from swarm.backends.verl.backend import VerlBackend
from tests.swarm.backends.conformance.support import played
from tests.swarm.backends.verl.learning.support import exported

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


async def stopped(backend: VerlBackend, step: int) -> str:
    """Let the guard, which stands before its last count, judge an update; return what it says."""
    backend.learner._guard.restore(2)
    batch = await played(backend, 16, step, 6)
    with pytest.raises(BackendError, match="learner and engine disagree") as caught:
        await asyncio.to_thread(backend.learner.update, batch)
    backend.learner._guard.restore(0)
    return str(caught.value)


async def test_a_replica_that_serves_other_weights_is_named(pair: VerlBackend) -> None:
    import ray

    other = {
        name: weight + 0.2 * weight.std() * (weight * 1e3).sin() for name, weight in exported(pair.learner).items()
    }
    odd: Any = pair.engine._serving()[1].handle
    await asyncio.to_thread(odd.load, pair.engine.version, [ray.put(other)])
    said = await stopped(pair, 1)
    assert ". The engine moved: " in said
    assert "It is replica 1: replica 0 is 1 away now; replica 1 is " in said
    await asyncio.to_thread(pair.publish)


async def test_a_rank_whose_forward_is_off_is_the_learner(pair: VerlBackend, tmp_path: Path) -> None:
    import ray

    rank = pair.learner.group._actors[0]
    ray.get(rank.__ray_call__.remote(_off))
    said = await stopped(pair, 2)
    assert ". The learner moved: " in said
    assert "replica" not in said.partition("moved: ")[2]
    ray.get(rank.__ray_call__.remote(_right))
    agreed = await asyncio.to_thread(pair.learner.update, await played(pair, 16, 3, 6))
    assert agreed["training/token_mult_prob_error"] == pytest.approx(1, abs=1e-3)
    await asyncio.to_thread(pair.publish)


def _off(rank: Any) -> None:
    head = rank._engine.module.get_output_embeddings()
    rank.hook = head.register_forward_hook(lambda module, inputs, logits: logits * 2)


def _right(rank: Any) -> None:
    rank.hook.remove()
