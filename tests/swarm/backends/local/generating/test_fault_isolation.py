"""A sequence that breaks its steps is lost alone; an engine that breaks without it is broken; under both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from swarm.backends.local.generating.batcher import Batcher
from swarm.backends.local.generating.engine import LocalEngine
from swarm.backends.local.generating.fault_isolation import Stepper
from swarm.backends.local.generating.paged import PagedBatcher
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError, GenerationRequest, RequestLost, RequestRefused, Sampling
from tests.swarm.backends.local.models import VOCABULARY, forced_logprobs, make_policy

_CONTEXT = 96
_POISON = 13
"""The id that faults are injected by."""


def _slots(policy: Policy) -> Stepper:
    return Batcher(policy, slots=6, positions=_CONTEXT, seed=0)


def _paged(policy: Policy) -> Stepper:
    return PagedBatcher(policy, sequences=6, positions=_CONTEXT, cache_bytes=1 << 20, seed=0)


_ENGINES: dict[str, Callable[[Policy], Stepper]] = {"slots": _slots, "paged": _paged}
Answer = tuple[list[int], list[float]]


@asynccontextmanager
async def _serving(policy: Policy, steps: Stepper) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(policy, steps, _CONTEXT)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def _ask(engine: LocalEngine, prompt: Sequence[int], **rules: Any) -> Answer:
    chunks = [
        chunk async for chunk in engine.generate(GenerationRequest("r", prompt, Sampling(**{"max_tokens": 8, **rules})))
    ]
    return [token for chunk in chunks for token in chunk.ids], [value for chunk in chunks for value in chunk.logprobs]


async def _ask_all(engine: LocalEngine, prompts: Sequence[Sequence[int]]) -> list[Answer | BaseException]:
    asked = (_ask(engine, prompt, seed=sum(prompt)) for prompt in prompts)
    return list(await asyncio.gather(*asked, return_exceptions=True))


def _break_at_poison(policy: Policy, steps: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every forward raise that is fed the poison, as one does whose kernel meets what it cannot compute."""
    embeddings = policy.model.get_input_embeddings()

    def checked(module: object, inputs: tuple[torch.Tensor]) -> None:
        if (inputs[0] == _POISON).any():
            raise RuntimeError("no kernel for this")

    embeddings.register_forward_pre_hook(checked)
    if isinstance(steps, PagedBatcher):
        steps._model.get_input_embeddings().register_forward_pre_hook(checked)
    else:
        monkeypatch.setattr(policy, "_fused", None)  # it reads the embeddings without their module


def _poison_weights(policy: Policy, steps: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make whatever sees the poison no number, as a damaged row of embeddings does."""
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[_POISON] = torch.nan


_FAULTS = {"raises": _break_at_poison, "not finite": _poison_weights}
_PROMPTS = [[1, 2, 3], [1, 2, _POISON, 4], [5] * 40, [5] * 40 + [6], [7, 8], [_POISON]]


def _policy() -> Policy:
    """A model whose output embeddings are not its input embeddings, so that one bad row of these is one id's."""
    policy = make_policy("qwen2")
    with torch.no_grad():
        policy.model.get_output_embeddings().bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
        policy.model.get_output_embeddings().bias[_POISON] = -1e4  # nobody draws the poison
    return policy


@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.parametrize("kind", _ENGINES)
async def test_a_sequence_that_breaks_its_steps_is_lost_alone_and_changes_nobody_else_s_answer(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = _policy()
    async with _serving(policy, _ENGINES[kind](policy)) as engine:
        undisturbed = await _ask_all(engine, [prompt for prompt in _PROMPTS if _POISON not in prompt])
    steps = _ENGINES[kind](policy)
    _FAULTS[fault](policy, steps, monkeypatch)
    async with _serving(policy, steps) as engine:
        for _ in range(2):
            answers = dict(zip(map(tuple, _PROMPTS), await _ask_all(engine, _PROMPTS), strict=True))
            lost = [answers.pop(prompt) for prompt in list(answers) if _POISON in prompt]
            assert all(isinstance(answer, RequestLost) and "make the request again" in str(answer) for answer in lost)
            for (prompt, found), expected in zip(answers.items(), undisturbed, strict=True):
                assert not isinstance(found, BaseException), found
                assert not isinstance(expected, BaseException)
                assert found[0] == expected[0]
                assert found[1] == pytest.approx(forced_logprobs(policy, prompt, found[0]), abs=1e-4)
            assert engine.failure() is None


@pytest.mark.parametrize("kind", _ENGINES)
async def test_weights_that_are_no_numbers_break_the_engine_and_not_one_request_after_another(kind: str) -> None:
    policy = _policy()
    steps = _ENGINES[kind](policy)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(torch.nan)
    async with _serving(policy, steps) as engine:
        with pytest.raises(BackendError, match="no finite numbers") as caught:
            await _ask(engine, [1, 2])
        assert not isinstance(caught.value, RequestLost | RequestRefused)
        assert "no finite numbers" in (engine.failure() or "")


async def test_steps_that_break_in_company_alone_break_the_engine_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy()
    batcher = Batcher(policy, slots=6, positions=_CONTEXT, seed=0)
    plain, sizes = batcher._extend, []

    def crowded(rows: Any, features: Any) -> Any:
        sizes.append(len(rows))
        if len(rows) > 1:
            raise torch.OutOfMemoryError("no room for two")
        return plain(rows, features)

    monkeypatch.setattr(batcher, "_extend", crowded)
    async with _serving(policy, batcher) as engine:
        answers = await _ask_all(engine, [[1, 2], [3, 4]])
        assert all(type(answer) is BackendError and "no room for two" in str(answer) for answer in answers)
        assert sizes.count(2) == 3, "what everybody survives alone is no request's fault, and may pass"


async def test_a_step_that_breaks_once_costs_nobody_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy()
    batcher = Batcher(policy, slots=6, positions=_CONTEXT, seed=0)
    async with _serving(policy, Batcher(policy, slots=6, positions=_CONTEXT, seed=0)) as engine:
        undisturbed = await _ask_all(engine, [[1, 2], [3, 4]])
    plain, calls = batcher._extend, 0

    def shaky(rows: Any, features: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            raise RuntimeError("once in a while")
        return plain(rows, features)

    monkeypatch.setattr(batcher, "_extend", shaky)
    async with _serving(policy, batcher) as engine:
        answers = await _ask_all(engine, [[1, 2], [3, 4]])
        assert engine.failure() is None
    for expected, found in zip(undisturbed, answers, strict=True):
        assert not isinstance(expected, BaseException)
        assert not isinstance(found, BaseException), found
        assert found[0] == expected[0]
        assert found[1] == pytest.approx(expected[1], abs=1e-5)
