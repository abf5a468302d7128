"""Whatever renders and generates: texts, log-probs, greedy answers, company, prefixes, limits, and what is drawn."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from swarm.backends.protocols import Backend, Sampling
from swarm.rendering.messages import RequestRefused
from tests.swarm.backends.conformance.kinds import Answer, Kind, Oracle, ask, ask_all, drawn_from, prompt

Start = Callable[..., Any]
_GREEDY = Sampling(max_tokens=6, temperature=0)


def ragged(count: int, longest: int = 90, seed: int = 0) -> list[list[int]]:
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


_DRAWS = 800


def cut(logprobs: Sequence[float], top_k: int = 0, top_p: float = 1.0) -> list[float]:
    """The `top_k` likeliest, then the fewest of them whose mass, renormalised, reaches `top_p`; by the definition."""
    order = sorted(range(len(logprobs)), key=lambda i: -logprobs[i])[: top_k or None]
    mass = math.fsum(math.exp(logprobs[i]) for i in order)
    kept, reached = [], 0.0
    for i in order:
        if reached >= top_p:
            break
        kept.append(i)
        reached += math.exp(logprobs[i]) / mass
    total = math.fsum(math.exp(logprobs[i]) for i in kept)
    return [value - math.log(total) if i in set(kept) else -math.inf for i, value in enumerate(logprobs)]


_RULES = (
    (Sampling(max_tokens=1), Sampling(max_tokens=1, temperature=1.5)),
    (Sampling(max_tokens=1, temperature=0.5), Sampling(max_tokens=1, temperature=0.7)),
    (Sampling(max_tokens=1, top_k=9, top_p=0.8), Sampling(max_tokens=1, top_k=9, top_p=0.9)),
)
"""What is asked for, and what is near it and must not be taken for it."""


@pytest.mark.slow
@pytest.mark.needs("model")
async def test_frequencies_are_those_of_the_distribution(kind: Kind, start: Start) -> None:
    backend: Backend = await start(max_concurrency=64)
    ids = prompt(backend, 1)
    answers = await ask_all(backend, [(ids, rule) for rule, _ in _RULES for _ in range(_DRAWS)])
    for number, (rule, other) in enumerate(_RULES):
        drawn = Counter(answer.ids[0] for answer in answers[number * _DRAWS :][:_DRAWS])
        right, wrong = (
            cut(kind.ask(backend).distribution(ids, each.temperature), each.top_k, each.top_p) for each in (rule, other)
        )
        found = [drawn[token] for token in range(len(right))]
        assert drawn_from(found, right), rule
        assert not drawn_from(found, wrong), f"too few draws to tell {rule} from {other}"


async def test_a_seed_fixes_an_answer_whoever_else_is_asked(kind: Kind, start: Start) -> None:
    backend: Backend = await start()
    ids = prompt(backend, 1, 900_000_000)
    first = await ask(backend, ids, Sampling(max_tokens=8, seed=11))
    crowd = [(prompt(backend, number), Sampling(max_tokens=9)) for number in range(5)]
    second = (await ask_all(backend, [*crowd, (ids, Sampling(max_tokens=8, seed=11))]))[-1]
    elsewhere = await ask(await start(), ids, Sampling(max_tokens=8, seed=11))
    assert first.ids == second.ids == elsewhere.ids
    others = await ask_all(backend, [(ids, Sampling(max_tokens=8, seed=seed)) for seed in range(4)])
    assert len({answer.ids for answer in others}) > 1


@pytest.mark.needs("model")
async def test_the_likeliest_ids_are_the_distribution_s(kind: Kind, backend: Backend) -> None:
    rule = Sampling(max_tokens=3, temperature=0.7, top_k=2, top_logprobs=4)
    answer = await ask(backend, prompt(backend, 1), rule)
    ids = list(answer.prompt)
    for token, place in zip(answer.ids, answer.top, strict=True):
        left = cut(kind.ask(backend).distribution(ids, 0.7), top_k=2)
        assert len(place) == 2
        assert [value for _, value in place] == pytest.approx(sorted(left)[:-3:-1], abs=kind.tolerance)
        assert all(left[other] == pytest.approx(value, abs=kind.tolerance) for other, value in place)
        ids.append(token)
