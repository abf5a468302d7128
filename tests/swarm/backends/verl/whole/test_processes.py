"""What real replicas and ranks inherit, and what is told of their end."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest

from swarm.backends.protocols import Sampling
from swarm.backends.verl.backend import VerlBackend
from tests.swarm.backends.conformance.support import ask

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


async def actor_of(backend: VerlBackend, number: int) -> psutil.Process:
    handle: Any = backend.engine._serving()[number].handle
    return psutil.Process((await handle.health())["pid"])


async def test_no_process_has_a_secret_of_the_server_s(pair: VerlBackend) -> None:
    """`conftest.py` put one into this process's environment before Ray was started."""
    actors = [await actor_of(pair, 0), await actor_of(pair, 1), *map(psutil.Process, pair.learner.group.pids)]
    for actor in actors:
        assert "AJET_SECRET" not in actor.environ()
        assert "WANDB_API_KEY" not in actor.environ()
        for below in actor.children(recursive=True):
            assert "RAY_AUTH_TOKEN" not in below.environ()
    assert any(actor.children(recursive=True) for actor in actors[:2])


async def test_learners_and_replicas_wait_no_longer_for_a_core_than_this_process(pair: VerlBackend) -> None:
    actors = [await actor_of(pair, 0), *map(psutil.Process, pair.learner.group.pids)]
    every = [process for actor in actors for process in (actor, *actor.children(recursive=True))]
    assert {process.nice() for process in every} == {psutil.Process().nice()}


async def test_a_dead_vllm_s_last_words_are_told(pair: VerlBackend, caplog: pytest.LogCaptureFixture) -> None:
    """The process that computes is shot, and tells by what it prints; the replica is made again."""
    actor = await actor_of(pair, 0)
    worker = max(actor.children(recursive=True), key=lambda process: process.memory_info().rss)
    worker.send_signal(11)
    async with asyncio.timeout(300):
        while not any("it said last" in each.getMessage() for each in caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        while len(pair.engine._serving()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    said = next(each.getMessage() for each in caplog.records if "it said last" in each.getMessage())
    assert "it said last: nothing" not in said
    await ask(pair, [1, 2], Sampling(max_tokens=2))
