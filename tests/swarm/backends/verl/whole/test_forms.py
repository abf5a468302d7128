"""Forms that are not the plain one: two devices, bfloat16, devices that are shared."""

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
from tests.swarm.backends.conformance.kinds import Answer, ask, played
from tests.swarm.backends.verl.actors import pids
from tests.swarm.backends.verl.whole.conftest import started

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


async def gaps(backend: VerlBackend) -> list[float]:
    found = []
    for step in range(2):
        batch = await played(backend, 16, step, 6)
        found.append((await asyncio.to_thread(backend.learner.update, batch))["training/rollout_probs_diff_max"])
        await asyncio.to_thread(backend.publish)
    return found


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
