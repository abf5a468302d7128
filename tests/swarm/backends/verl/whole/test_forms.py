"""Forms that are not the plain one: a replica over two devices, bfloat16, a critic. Learned, published and compared."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarm.backends.verl.backend import VerlBackend
from swarm.verl_fields import CriticFields, VerlFields
from tests.swarm.backends.conformance.support import played
from tests.swarm.backends.verl.whole.conftest import started

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


async def gaps(backend: VerlBackend) -> list[float]:
    """Learn and publish twice; return how far learner and engine were apart each time."""
    found = []
    for step in range(2):
        batch = await played(backend, 16, step, 6)
        found.append((await asyncio.to_thread(backend.learner.update, batch))["training/rollout_probs_diff_max"])
        await asyncio.to_thread(backend.publish)
    return found


async def test_a_replica_over_two_processes_answers_by_the_learner_s_weights(tmp_path: Path) -> None:
    async with started(tmp_path, VerlFields(tensor_parallel=2), learning_rate=1e-3) as backend:
        handle: Any = backend.engine._serving()[0].handle
        below = psutil.Process((await handle.health())["pid"]).children(recursive=True)
        assert sum("VLLM::Worker" in " ".join(each.cmdline()) for each in below) == 2
        assert max(await gaps(backend)) < 1e-4


async def test_in_bfloat16_learner_and_engine_differ_by_rounding(tmp_path: Path) -> None:
    async with started(tmp_path, VerlFields(), dtype="bfloat16", learning_rate=1e-3) as backend:
        tolerance = backend.probs_tolerance
        assert tolerance is not None
        assert 0 < max(await gaps(backend)) < tolerance


async def test_with_a_critic_the_policy_alone_is_published_and_engine_and_learner_agree(tmp_path: Path) -> None:
    fields = VerlFields(advantage_estimator="gae", critic=CriticFields(learning_rate=1e-3))
    async with started(tmp_path, fields, learning_rate=1e-3) as backend:
        assert max(await gaps(backend)) < 1e-4
