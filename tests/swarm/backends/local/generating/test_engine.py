"""The engine: many requests on one loop, cancelled, broken or stopped without losing or mixing a token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from swarm.backends.local.generating import engine as engine_module
from swarm.backends.local.generating.batcher import Batcher
from swarm.backends.local.generating.engine import LocalEngine
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import (
    BackendError,
    Chunk,
    GenerationRequest,
    GrammarRefused,
    RequestLost,
    RequestRefused,
    Sampling,
)
from tests.swarm.backends.local.models import VOCABULARY, forced_logprobs, greedy_loop, make_policy
from tests.swarm.server.support import eventually

_CONTEXT = 96


class _Held:
    """A batcher's step that needs a permit each time, so that a test decides when the thread goes on."""

    def __init__(self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.calls = 0
        self._permits = threading.Semaphore(0)
        self._step = batcher.step
        monkeypatch.setattr(batcher, "step", self._held)

    def permit(self, steps: int = 1000) -> None:
        self._permits.release(steps)

    def _held(self) -> Any:
        self.calls += 1
        self.entered.set()
        assert self._permits.acquire(timeout=20)
        return self._step()


@pytest.fixture
def policy() -> Policy:
    return make_policy()


@pytest.fixture
def batcher(policy: Policy) -> Batcher:
    return Batcher(policy, slots=4, positions=_CONTEXT, seed=0)


@pytest.fixture
async def engine(policy: Policy, batcher: Batcher) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(policy, batcher, _CONTEXT)
    await engine.start()
    yield engine
    await engine.stop()


async def _collect(engine: LocalEngine, prompt: Sequence[int], sampling: Sampling) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(GenerationRequest("r", prompt, sampling))]


def _ids(chunks: Sequence[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


async def test_more_requests_than_slots_all_get_their_own_answer(engine: LocalEngine, policy: Policy) -> None:
    prompts = [[i % VOCABULARY] * (1 + i % 9) for i in range(30)]
    answers = await asyncio.gather(
        *(_collect(engine, prompt, Sampling(max_tokens=1 + i % 5)) for i, prompt in enumerate(prompts))
    )
    for i, (prompt, chunks) in enumerate(zip(prompts, answers, strict=True)):
        assert len(_ids(chunks)) == 1 + i % 5
        logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
        assert logprobs == pytest.approx(forced_logprobs(policy, prompt, _ids(chunks)), abs=1e-5)
        assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


async def test_tokens_stream_one_by_one_when_nothing_is_gathered(
    engine: LocalEngine, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_GATHER_S", 0.0)
    chunks = await _collect(engine, [1, 2, 3], Sampling(max_tokens=12, temperature=0.0))
    assert [len(chunk.ids) for chunk in chunks] == [1] * 12
    assert _ids(chunks) == greedy_loop(policy, [1, 2, 3], 12)


async def test_a_quick_answer_comes_in_one_chunk(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_GATHER_S", 60.0)
    chunks = await _collect(engine, [1, 2, 3], Sampling(max_tokens=12))
    assert [len(chunk.ids) for chunk in chunks] == [12]


async def test_results_of_all_requests_reach_the_loop_in_one_call_a_step(
    engine: LocalEngine, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _Held(batcher, monkeypatch)
    loop, calls = asyncio.get_running_loop(), 0
    plain = loop.call_soon_threadsafe

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += threading.current_thread().name == "local-engine"
        return plain(*arguments, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    held.permit()
    await asyncio.gather(*(_collect(engine, [i], Sampling(max_tokens=3)) for i in range(20)))
    assert 0 < calls <= held.calls


@pytest.fixture
async def narrow(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[LocalEngine, _Held]]:
    """An engine of one slot, its steps held."""
    batcher = Batcher(policy, slots=1, positions=_CONTEXT, seed=0)
    held = _Held(batcher, monkeypatch)
    engine = LocalEngine(policy, batcher, _CONTEXT)
    await engine.start()
    yield engine, held
    await engine.stop()


async def test_closing_the_iterator_frees_the_only_slot(
    narrow: tuple[LocalEngine, _Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_GATHER_S", 0.0)
    engine, held = narrow
    held.permit(1)
    async with aclosing(engine.generate(GenerationRequest("endless", [1], Sampling(max_tokens=90)))) as chunks:
        await anext(chunks)
    held.permit()
    assert len(_ids(await _collect(engine, [2], Sampling(max_tokens=2)))) == 2
    assert held.calls < 10


async def test_a_cancelled_task_frees_the_only_slot(narrow: tuple[LocalEngine, _Held]) -> None:
    engine, held = narrow
    task = asyncio.create_task(_collect(engine, [1], Sampling(max_tokens=90)))
    assert await asyncio.to_thread(held.entered.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.permit()
    await _collect(engine, [2], Sampling(max_tokens=2))
    assert held.calls < 10


async def test_a_broken_thread_tells_every_open_request_and_later_ones_why(
    engine: LocalEngine, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(batcher, "step", broken)
    assert engine.failure() is None
    requests = [_collect(engine, [1], Sampling(max_tokens=3)) for _ in range(5)]
    for result in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(result, BackendError)
        assert "out of memory" in str(result)
    assert "out of memory" in (engine.failure() or "")
    with pytest.raises(BackendError, match="out of memory"):
        await _collect(engine, [1], Sampling(max_tokens=3))


async def test_a_thread_that_hangs_while_requests_wait_is_a_failure_they_are_told(
    policy: Policy, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _Held(batcher, monkeypatch)
    engine = LocalEngine(policy, batcher, _CONTEXT, silence_s=0.05)
    await engine.start()
    try:
        assert engine.failure() is None
        waiting = asyncio.create_task(_collect(engine, [1, 2, 3], Sampling(max_tokens=2)))
        await eventually(engine.failure, bool)
        with pytest.raises(BackendError, match="silent"):
            await waiting
        with pytest.raises(BackendError, match="silent"):
            await _collect(engine, [1, 2, 3], Sampling(max_tokens=2))
    finally:
        held.permit()
        await engine.stop()


async def test_stopping_ends_open_requests_with_a_reason(
    engine: LocalEngine, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _Held(batcher, monkeypatch)
    task = asyncio.create_task(_collect(engine, [1], Sampling(max_tokens=90)))
    assert await asyncio.to_thread(held.entered.wait, 20)
    held.permit()
    await engine.stop()
    await engine.stop()
    with pytest.raises(RequestLost, match="stopped"):
        await task
    assert engine.failure() is None


async def test_an_engine_that_was_not_started_refuses(policy: Policy, batcher: Batcher) -> None:
    with pytest.raises(BackendError, match="not started"):
        await _collect(LocalEngine(policy, batcher, _CONTEXT), [1], Sampling(max_tokens=1))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "words"),
    [
        ([], 1, "prompt ids"),
        ([1] * _CONTEXT, 1, "prompt ids"),
        ([VOCABULARY], 1, "from 0 to"),
        ([-1], 1, "from 0 to"),
        ([1], 0, "max_tokens"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_alone(
    engine: LocalEngine, prompt: list[int], max_tokens: int, words: str
) -> None:
    with pytest.raises(RequestRefused, match=words):
        await _collect(engine, prompt, Sampling(max_tokens=max_tokens))
    assert engine.failure() is None
    assert len(_ids(await _collect(engine, [1], Sampling(max_tokens=2)))) == 2


async def test_the_engine_waits_while_the_policy_is_locked(engine: LocalEngine, policy: Policy) -> None:
    with policy.lock.writing():
        task = asyncio.create_task(_collect(engine, [1], Sampling(max_tokens=2)))
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        policy.version = 7
    assert {chunk.version for chunk in await task} == {7}


async def test_the_likeliest_ids_are_reported_where_asked_and_hold_the_chosen_one_when_greedy(
    engine: LocalEngine,
) -> None:
    asked, plain = await asyncio.gather(
        _collect(engine, [1, 2], Sampling(max_tokens=5, temperature=0, top_logprobs=3)),
        _collect(engine, [1, 2], Sampling(max_tokens=5, temperature=0)),
    )
    top = [places for chunk in asked for places in chunk.top]
    assert [places[0] for places in top] == list(
        zip(_ids(asked), [value for chunk in asked for value in chunk.logprobs], strict=True)
    )
    assert all(len(places) == 3 for places in top)
    assert [chunk.top for chunk in plain] == [()] * len(plain)


async def test_an_engine_without_guides_refuses_a_grammar_and_lives(engine: LocalEngine) -> None:
    assert not engine.guided
    with pytest.raises(GrammarRefused, match="llguidance"):
        await _collect(engine, [1], Sampling(max_tokens=1, grammar='start: "a"'))
    assert _ids(await _collect(engine, [1], Sampling(max_tokens=1)))
