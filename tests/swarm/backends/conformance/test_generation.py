"""Whatever generates: log-probs, greedy answers, company, prefixes, chunks, limits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from swarm.backends.protocols import Backend, GenerationRequest, RequestRefused, Sampling
from tests.swarm.backends.conformance.kinds import Kind, Oracle
from tests.swarm.backends.conformance.support import Answer, ask, ask_all, prompt

Start = Callable[..., Any]
_GREEDY = Sampling(max_tokens=6, temperature=0)


def ragged(count: int, longest: int = 90, seed: int = 0) -> list[list[int]]:
    """Prompts of uneven lengths."""
    rng = random.Random(seed)
    return [[rng.randrange(250) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def assert_forced(kind: Kind, oracle: Oracle, answer: Answer, temperature: float = 1.0) -> None:
    expected = oracle.logprobs(answer.prompt, answer.ids, temperature)
    assert answer.logprobs == pytest.approx(expected, abs=kind.tolerance)


@pytest.mark.needs("model")
async def test_logprobs_are_a_teacher_forced_forward_s(kind: Kind, backend: Backend) -> None:
    temperatures = [1.0, 0.6, 1.3]
    asked = [(ids, Sampling(max_tokens=6, temperature=temperatures[i % 3])) for i, ids in enumerate(ragged(9))]
    for i, answer in enumerate(await ask_all(backend, asked)):
        assert len(answer.ids) == 6
        assert_forced(kind, kind.ask(backend), answer, temperatures[i % 3])


@pytest.mark.needs("model", "exact")
async def test_a_greedy_answer_is_the_plain_loop_s_token_by_token(kind: Kind, backend: Backend) -> None:
    oracle = kind.ask(backend)
    for answer in await ask_all(backend, [(ids, _GREEDY) for ids in ragged(5)]):
        ids = list(answer.prompt)
        for _ in answer.ids:
            following = oracle.distribution(ids)
            ids.append(following.index(max(following)))
        assert ids == [*answer.prompt, *answer.ids]


@pytest.mark.needs("exact")
async def test_neither_order_nor_company_change_an_answer(kind: Kind, start: Start) -> None:
    backend = await start()
    asked = [(ids, Sampling(max_tokens=5, seed=i)) for i, ids in enumerate(ragged(6))]
    asked += [(ids, _GREEDY) for ids in ragged(3, seed=1)]
    together = await ask_all(backend, asked)
    backwards = (await ask_all(await start(), asked[::-1]))[::-1]
    lonely = await start(max_concurrency=1)
    alone = [await ask(lonely, ids, rule) for ids, rule in asked]
    for other in (backwards, alone):
        assert [answer.ids for answer in other] == [answer.ids for answer in together]
        for one, two in zip(other, together, strict=True):
            assert one.logprobs == pytest.approx(two.logprobs, abs=kind.tolerance)


@pytest.mark.needs("model", "exact")
async def test_a_conversation_that_goes_on_is_as_if_it_were_read_anew(kind: Kind, start: Start) -> None:
    backend, fresh = await start(), await start()
    oracle = kind.ask(backend)
    ids = ragged(1)[0][:40]
    for turn in range(3):
        answer = await ask(backend, ids, Sampling(max_tokens=6, seed=turn))
        again = await ask(fresh, ids, Sampling(max_tokens=6, seed=turn))
        assert answer.ids == again.ids
        assert_forced(kind, oracle, answer)
        ids = [*ids, *answer.ids, *range(turn, turn + 9)]


@pytest.mark.needs("model")
async def test_siblings_that_share_an_opening_do_not_mix(kind: Kind, backend: Backend) -> None:
    oracle = kind.ask(backend)
    opening = [int(token) for token in range(70)]
    await ask(backend, opening, Sampling(max_tokens=2))
    siblings = [[*opening, 7], [*opening, 8], opening, opening[:64], opening[:65], [*opening[:40], 9, 9], opening[:3]]
    for _ in range(2):
        for answer in await ask_all(backend, [(ids, Sampling(max_tokens=4)) for ids in siblings]):
            assert_forced(kind, oracle, answer)


async def test_chunks_carry_a_logprob_for_each_id_and_one_version(kind: Kind, backend: Backend) -> None:
    chunks = [
        chunk
        async for chunk in backend.engine.generate(GenerationRequest("r", prompt(backend, 1), Sampling(max_tokens=40)))
    ]
    assert all(chunk.ids and len(chunk.ids) == len(chunk.logprobs) for chunk in chunks)
    assert all(value <= 0 for chunk in chunks for value in chunk.logprobs)
    assert {chunk.version for chunk in chunks} == {backend.learner.version} == {0}
    assert [chunk.finish is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


async def test_max_tokens_ends_an_answer_by_length(kind: Kind, backend: Backend) -> None:
    answer = await ask(backend, prompt(backend, 1), Sampling(max_tokens=1))
    assert (len(answer.ids), answer.finish) == (1, "length")


@pytest.mark.needs("model")
async def test_a_stop_id_ends_an_answer_and_belongs_to_it(kind: Kind, backend: Backend) -> None:
    ids = prompt(backend, 1)
    free = await ask(backend, ids, _GREEDY)
    stop = free.ids[3]
    held = await ask(backend, ids, Sampling(max_tokens=6, temperature=0, stop_ids=(249, stop)))
    assert held.ids == free.ids[: free.ids.index(stop) + 1]
    assert held.finish == "stop"


@pytest.mark.needs("long")
async def test_a_full_context_ends_an_answer_by_length(kind: Kind, backend: Backend) -> None:
    answer = await ask(backend, [5] * 120, Sampling(max_tokens=99))
    assert (len(answer.ids), answer.finish) == (8, "length")
    assert_forced(kind, kind.ask(backend), answer)


_WRONG = (
    ([], 4, "1 to 127 prompt ids, found 0"),
    ([1] * 128, 4, "1 to 127 prompt ids, found 128"),
    ([1, 5000], 4, "prompt ids from 0 to"),
    ([1, -1], 4, "prompt ids from 0 to"),
    ([1], 0, "max_tokens of 1 or more, found 0"),
)


@pytest.mark.needs("checks")
async def test_a_wrong_request_is_refused_alone(kind: Kind, backend: Backend) -> None:
    for ids, tokens, said in _WRONG:
        with pytest.raises(RequestRefused, match=f"wrong.*{said}"):
            await ask(backend, ids, Sampling(max_tokens=tokens), "wrong")
        assert len((await ask(backend, [1], Sampling(max_tokens=2))).ids) == 2
    assert backend.failure() is None
