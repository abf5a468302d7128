"""The engine: many requests on one loop, cancelled, broken or stopped without losing or mixing a token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from swarm.backends.local.batcher import Batcher
from swarm.backends.local.engine import LocalEngine
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Chunk, GenerationRequest, RequestLost, Sampling
from swarm.rendering.messages import BackendError, GrammarRefused, RequestRefused
from tests.swarm.backends.local.models import VOCABULARY, forced_logprobs, make_policy
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
        assert self._permits.acquire(timeout=60)
        return self._step()


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
    held = _Held(batcher, monkeypatch)
    async with _serving(policy, batcher, silence_s=0.05) as engine:
        assert engine.failure() is None
        waiting = asyncio.create_task(_collect(engine, [1, 2, 3], Sampling(max_tokens=2)))
        await eventually(engine.failure, bool)
        for asked in (waiting, _collect(engine, [1, 2, 3], Sampling(max_tokens=2))):
            with pytest.raises(BackendError, match="silent"):
                await asked
        held.permit()


async def test_an_engine_that_was_not_started_refuses(policy: Policy, batcher: Batcher) -> None:
    with pytest.raises(BackendError, match="not started"):
        await _collect(LocalEngine(policy, batcher, _CONTEXT), [1], Sampling(max_tokens=1))


async def test_an_engine_without_guides_refuses_a_grammar_and_lives(engine: LocalEngine) -> None:
    assert not engine.guided
    with pytest.raises(GrammarRefused, match="llguidance"):
        await _collect(engine, [1], Sampling(max_tokens=1, grammar='start: "a"'))
    assert _ids(await _collect(engine, [1], Sampling(max_tokens=1)))


_POISON = 13
"""The id that faults are injected by."""


Answer = tuple[list[int], list[float]]


def _six(policy: Policy) -> Batcher:
    return Batcher(policy, slots=6, positions=_CONTEXT, seed=0)


@asynccontextmanager
async def _serving(policy: Policy, batcher: Batcher, **how: float) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(policy, batcher, _CONTEXT, **how)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def _ask(engine: LocalEngine, prompt: Sequence[int], **rules: Any) -> Answer:
    chunks = await _collect(engine, prompt, Sampling(**{"max_tokens": 8, **rules}))
    return _ids(chunks), [value for chunk in chunks for value in chunk.logprobs]


async def _ask_all(engine: LocalEngine, prompts: Sequence[Sequence[int]]) -> list[Answer | BaseException]:
    asked = (_ask(engine, prompt, seed=sum(prompt)) for prompt in prompts)
    return list(await asyncio.gather(*asked, return_exceptions=True))


def _break_at_poison(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every forward raise that is fed the poison, as one does whose kernel meets what it cannot compute."""
    embeddings = policy.model.get_input_embeddings()

    def checked(module: object, inputs: tuple[torch.Tensor]) -> None:
        if (inputs[0] == _POISON).any():
            raise RuntimeError("no kernel for this")

    embeddings.register_forward_pre_hook(checked)
    monkeypatch.setattr(policy, "_fused", None)  # it reads the embeddings without their module


def _poison_weights(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make whatever sees the poison no number, as a damaged row of embeddings does."""
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[_POISON] = torch.nan


_FAULTS = {"raises": _break_at_poison, "not finite": _poison_weights}
_PROMPTS = [[1, 2, 3], [1, 2, _POISON, 4], [5] * 40, [5] * 40 + [6], [7, 8], [_POISON]]


def _poisoned_policy() -> Policy:
    """A model whose output embeddings are not its input embeddings, so that one bad row of these is one id's."""
    policy = make_policy("qwen2")
    with torch.no_grad():
        policy.model.get_output_embeddings().bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
        policy.model.get_output_embeddings().bias[_POISON] = -1e4  # nobody draws the poison
    return policy


@pytest.mark.parametrize("fault", _FAULTS)
async def test_a_sequence_that_breaks_its_steps_is_lost_alone(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _poisoned_policy()
    async with _serving(policy, _six(policy)) as engine:
        undisturbed = await _ask_all(engine, [prompt for prompt in _PROMPTS if _POISON not in prompt])
    batcher = _six(policy)
    _FAULTS[fault](policy, monkeypatch)
    async with _serving(policy, batcher) as engine:
        for _ in range(2):
            answers = dict(zip(map(tuple, _PROMPTS), await _ask_all(engine, _PROMPTS), strict=True))
            lost = [answers.pop(prompt) for prompt in list(answers) if _POISON in prompt]
            assert all(isinstance(answer, RequestLost) and "request again" in str(answer) for answer in lost)
            for (prompt, found), expected in zip(answers.items(), undisturbed, strict=True):
                assert not isinstance(found, BaseException), found
                assert not isinstance(expected, BaseException)
                assert found[0] == expected[0]
                assert found[1] == pytest.approx(forced_logprobs(policy, prompt, found[0]), abs=1e-4)
            assert engine.failure() is None


async def test_weights_that_are_no_numbers_break_the_engine_and_not_one_request_after_another() -> None:
    policy = _poisoned_policy()
    batcher = _six(policy)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(torch.nan)
    async with _serving(policy, batcher) as engine:
        with pytest.raises(BackendError, match="no finite numbers") as caught:
            await _ask(engine, [1, 2])
        assert not isinstance(caught.value, RequestLost | RequestRefused)
        assert "no finite numbers" in (engine.failure() or "")


async def test_steps_that_break_in_company_alone_break_the_engine_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _poisoned_policy()
    batcher = _six(policy)
    plain, sizes = batcher._extend, []

    def crowded(rows: Any, features: Any) -> Any:
        sizes.append(len(rows))
        if len(rows) > 1:
            raise torch.OutOfMemoryError("no room for two")
        return plain(rows, features)

    monkeypatch.setattr(batcher, "_extend", crowded)
    async with _serving(policy, batcher) as engine:
        answers = await _ask_all(engine, [[1, 2], [3, 4]])
        assert all(type(answer) is BackendError and "room for two" in str(answer) for answer in answers)
        assert sizes.count(2) == 3, "what everybody survives alone is no request's fault, and may pass"
