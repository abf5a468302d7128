"""A backend's life: cancellation, the end, and telling that it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from swarm.backends.protocols import Backend, GenerationRequest, RequestLost, Sampling
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.kinds import PATIENCE_S, Kind, ask, ask_all, prompt

Make = Callable[..., Backend]


async def test_what_is_cancelled_gives_its_place_to_others(kind: Kind, backend: Backend) -> None:
    """Several times as many as there are places, again and again: a place that is lost for good would be missed."""
    endless = Sampling(max_tokens=100)

    async def glance(number: int) -> None:
        async with aclosing(backend.engine.generate(GenerationRequest(f"g{number}", [number] * 20, endless))) as chunks:  # type: ignore[type-var]
            await anext(chunks)

    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            glances = [asyncio.ensure_future(glance(number)) for number in range(12)]
            await asyncio.wait(glances, return_when=asyncio.FIRST_COMPLETED)
            for each in glances:
                each.cancel()
            await asyncio.gather(*glances, return_exceptions=True)
        answers = await ask_all(backend, [(prompt(backend, number), Sampling(max_tokens=3)) for number in range(9)])
    assert len(answers) == 9
    assert backend.failure() is None


async def test_stopping_is_safe_at_any_time_and_twice_and_who_was_stopped_starts_again(kind: Kind, make: Make) -> None:
    backend = make()
    assert backend.failure() is None
    await backend.stop()
    answers = []
    for _ in range(2):
        await backend.start()
        answers.append((await ask(backend, prompt(backend, 1), Sampling(max_tokens=4, seed=1))).ids)
        assert backend.failure() is None
        await backend.stop()
        await backend.stop()
    assert answers[0] == answers[1]


@pytest.mark.needs("ends", "long")
async def test_stopping_ends_open_requests_with_a_reason(kind: Kind, backend: Backend) -> None:
    opened = [asyncio.ensure_future(ask(backend, [number], Sampling(max_tokens=120))) for number in range(6)]
    await asyncio.sleep(0)
    await backend.stop()
    async with asyncio.timeout(PATIENCE_S):
        ends = await asyncio.gather(*opened, return_exceptions=True)
    assert any(isinstance(end, RequestLost) and "stopped" in str(end) for end in ends)
    assert all(isinstance(end, RequestLost) for end in ends if isinstance(end, BaseException))


async def break_down(kind: Kind, backend: Backend) -> None:
    """Break a backend, and ask until it says so: a few requests may be lost before."""
    kind.break_down(backend)
    async with asyncio.timeout(PATIENCE_S):
        while not backend.failure():
            await asyncio.gather(ask(backend, prompt(backend, 1), Sampling(max_tokens=2)), return_exceptions=True)


@pytest.mark.needs("ends")
async def test_a_broken_engine_fails_its_requests_and_takes_no_more(kind: Kind, backend: Backend) -> None:
    await break_down(kind, backend)
    for _ in range(2):
        with pytest.raises(BackendError) as caught:
            await ask(backend, prompt(backend, 1), Sampling(max_tokens=2))
        assert str(caught.value) == backend.failure()
