"""The engine: many requests on one loop, cancelled, broken or stopped without losing or mixing a token."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from swarm.backends.local import batcher as batching
from swarm.backends.local.batcher import Batcher
from swarm.backends.local.engine import LocalEngine
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Chunk, GenerationRequest, RequestLost, Sampling
from swarm.rendering.messages import BackendError, GrammarRefused
from tests.swarm.backends.local.models import make_policy
from tests.swarm.server.support import eventually

_CONTEXT = 96


@pytest.fixture
def policy() -> Policy:
    return make_policy()


@pytest.fixture
def batcher(policy: Policy) -> Batcher:
    return Batcher(policy, slots=4, positions=_CONTEXT, seed=0)


@pytest.fixture
async def engine(policy: Policy, batcher: Batcher) -> AsyncIterator[LocalEngine]:
    async with _serving(policy, batcher) as engine:
        yield engine


async def _collect(engine: LocalEngine, prompt: Sequence[int], sampling: Sampling) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(GenerationRequest("r", prompt, sampling))]


def _ids(chunks: Sequence[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


async def test_a_thread_that_hangs_while_requests_wait_is_a_failure_they_are_told(
    policy: Policy, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, step = threading.Event(), batcher.step
    monkeypatch.setattr(batcher, "step", lambda: (goes_on.wait(60), step())[1])
    async with _serving(policy, batcher, silence_s=0.5) as engine:
        assert engine.failure() is None
        waiting = asyncio.create_task(_collect(engine, [1, 2, 3], Sampling(max_tokens=2)))
        await eventually(engine.failure, bool)
        for asked in (waiting, _collect(engine, [1, 2, 3], Sampling(max_tokens=2))):
            with pytest.raises(BackendError, match="silent"):
                await asked
        goes_on.set()


async def test_a_step_that_computes_for_longer_is_no_silence(
    policy: Policy, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, step = threading.Event(), batcher.step

    def long() -> Any:
        while not over.is_set():
            math.factorial(1000)
        return step()

    monkeypatch.setattr(batcher, "step", long)
    async with _serving(policy, batcher, silence_s=1.0) as engine:
        waiting = asyncio.create_task(_collect(engine, [1, 2, 3], Sampling(max_tokens=2)))
        await eventually(lambda: (engine.failure(), time.monotonic() - engine._advanced), lambda found: found[1] > 2.0)
        over.set()
        await waiting
        assert engine.failure() is None


async def test_an_engine_that_was_not_started_or_has_no_guides_refuses(policy: Policy, batcher: Batcher) -> None:
    with pytest.raises(BackendError, match="not started"):
        await _collect(LocalEngine(policy, batcher, _CONTEXT), [1], Sampling(max_tokens=1))
    async with _serving(policy, batcher) as engine:
        with pytest.raises(GrammarRefused, match="llguidance"):
            await _collect(engine, [1], Sampling(max_tokens=1, grammar='start: "a"'))
        assert (engine.guided, len(_ids(await _collect(engine, [1], Sampling(max_tokens=1))))) == (False, 1)


@asynccontextmanager
async def _serving(policy: Policy, batcher: Batcher, **how: float) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(policy, batcher, _CONTEXT, **how)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_what_runs_in_a_step_that_fails_is_lost_and_may_be_asked_again(
    engine: LocalEngine, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling, prompts = Sampling(max_tokens=8, temperature=0.0), [[1, 2, 3], [5] * 40]
    undisturbed = [_ids(await _collect(engine, prompt, sampling)) for prompt in prompts]
    plain, calls = batching.extend, 0

    def shaky(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            batcher._cache._memory[0].fill_(torch.nan)  # no mask would hide it
            raise torch.OutOfMemoryError("once")
        return plain(*given)

    monkeypatch.setattr(batching, "extend", shaky)
    asked = (_collect(engine, prompt, sampling) for prompt in prompts)
    for error in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(error, RequestLost)
        assert "request again" in str(error)
    assert [_ids(await _collect(engine, prompt, sampling)) for prompt in prompts] == undisturbed
    assert engine.failure() is None


async def test_a_request_that_fails_whenever_it_is_made_ends_no_engine(
    engine: LocalEngine, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = batcher._feed

    def poisoned(rows: Any, lengths: Any) -> Any:
        if any(13 in batcher._running[row].ids for row in rows.tolist()):
            raise RuntimeError("no kernel")
        return plain(rows, lengths)

    monkeypatch.setattr(batcher, "_feed", poisoned)
    for _ in range(5):
        with pytest.raises(RequestLost, match="no kernel"):
            await _collect(engine, [1, 13], Sampling(max_tokens=4))
    assert len(_ids(await _collect(engine, [1, 2], Sampling(max_tokens=4)))) == 4
    assert engine.failure() is None


async def test_steps_that_fail_in_company_alone_end_the_engine_and_those_that_wait_for_a_row_are_kept(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(policy, slots=2, positions=_CONTEXT, seed=0)
    plain = batching.extend

    def crowded(ready: Any, *given: Any) -> Any:
        if len(ready) > 1:
            raise torch.OutOfMemoryError("no room")
        return plain(ready, *given)

    monkeypatch.setattr(batching, "extend", crowded)
    async with _serving(policy, batcher) as engine:
        asked = [asyncio.ensure_future(_collect(engine, [1, number], Sampling(max_tokens=40))) for number in range(6)]
        with policy.rewriting():  # no step runs until all of them wait
            while len(engine._open) < len(asked):  # noqa: ASYNC110 - it knows no event
                await asyncio.sleep(0)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [RequestLost] * 4 + [BackendError] * 2
        assert "no room" in (engine.failure() or "")


async def test_weights_that_are_no_numbers_break_the_engine(engine: LocalEngine, policy: Policy) -> None:
    with policy.rewriting(), torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(torch.nan)
    with pytest.raises(BackendError, match="no finite numbers") as caught:
        await _collect(engine, [1, 2], Sampling(max_tokens=1))
    assert type(caught.value) is BackendError
    assert "no finite numbers" in (engine.failure() or "")
