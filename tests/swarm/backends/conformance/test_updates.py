"""Generation around updates: versions are stamped, and no keys or values of older weights are used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from swarm.backends.protocols import Backend, Sampling
from tests.swarm.backends.conformance.kinds import Kind
from tests.swarm.backends.conformance.support import PATIENCE_S, Answer, ask, ask_all, played, prompt

Start = Callable[..., Any]


async def test_answers_bear_the_version_that_sampled_them(kind: Kind, backend: Backend) -> None:
    for version in range(3):
        batch = await played(backend, step=version)
        stamped = {each for e in batch.episodes for row in e.rows for each in row.versions if each >= 0}
        assert stamped == {backend.learner.version} == {version}
        backend.learner.update(batch)
        await asyncio.to_thread(backend.publish)


@pytest.mark.needs("model", "learns")
async def test_after_an_update_nothing_of_the_older_weights_is_used(kind: Kind, start: Start) -> None:
    backend: Backend = await start()
    oracle = kind.ask(backend)
    opening = list(range(70))
    for step in range(2):
        batch = await played(backend, step=step)
        asked = [[*opening, 1], opening, prompt(backend, 0, 0)]
        answers = await ask_all(backend, [(ids, Sampling(max_tokens=6)) for ids in asked])
        before = [oracle.logprobs(answer.prompt, answer.ids) for answer in answers]
        backend.learner.update(batch)  # what was asked last is what an engine still holds
        await asyncio.to_thread(backend.publish)
        for answer, older in zip(answers, before, strict=True):
            assert oracle.logprobs(answer.prompt, answer.ids) != pytest.approx(older, abs=1e-2), "it learned too little"
            onward = await ask(backend, [*answer.prompt, *answer.ids, 7], Sampling(max_tokens=4))
            again = await ask(backend, answer.prompt, Sampling(max_tokens=4))
            for found in (onward, again):
                assert found.logprobs == pytest.approx(oracle.logprobs(found.prompt, found.ids), abs=kind.tolerance)
                assert set(found.versions) == {step + 1}


@pytest.mark.needs("model", "learns", "overlaps", "long")
async def test_generations_caught_by_an_update_go_on_under_the_new_weights(kind: Kind, start: Start) -> None:
    """Wherever the update falls, a token after it has the log-prob of the new weights over all that stands before."""
    backend: Backend = await start(max_staleness=1)
    oracle = kind.ask(backend)
    batch = await played(backend)
    answers: list[Answer] = []
    begun, over = asyncio.Event(), asyncio.Event()

    async def keep_asking(number: int) -> None:
        while not over.is_set():
            answers.append(await ask(backend, [number, 9, 9], Sampling(max_tokens=60 + 25 * number)))
            begun.set()

    async with asyncio.timeout(PATIENCE_S):
        crowd = [asyncio.ensure_future(keep_asking(number)) for number in range(3)]
        await begun.wait()
        await asyncio.to_thread(backend.learner.update, batch)
        await asyncio.to_thread(backend.publish)
        over.set()
        await asyncio.gather(*crowd)
    caught = [answer for answer in answers if set(answer.versions) == {0, 1}]
    assert caught, "the update caught nobody"
    for answer in caught:
        assert list(answer.versions) == sorted(answer.versions)
        given = answer.versions.count(0)
        expected = oracle.logprobs([*answer.prompt, *answer.ids[:given]], answer.ids[given:])
        assert answer.logprobs[given:] == pytest.approx(expected, abs=kind.tolerance)


@pytest.mark.needs("learns", "overlaps", "long")
async def test_an_update_ends_though_the_engine_never_rests(kind: Kind, start: Start) -> None:
    backend: Backend = await start(max_staleness=1)
    batch = await played(backend)
    over = threading.Event()

    async def keep_busy(number: int) -> None:
        while not over.is_set():
            await ask(backend, [number], Sampling(max_tokens=40))

    async with asyncio.timeout(PATIENCE_S):
        crowd = [asyncio.ensure_future(keep_busy(number)) for number in range(6)]
        await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.to_thread(backend.learner.update, batch)
        await asyncio.to_thread(backend.publish)
        over.set()
        await asyncio.gather(*crowd)
    assert backend.learner.version == 3
