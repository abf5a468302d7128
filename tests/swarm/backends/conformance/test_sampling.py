"""What is drawn: the settings are honoured, and frequencies are those of the distribution that the log-probs name."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from swarm.backends.protocols import Backend, Sampling
from tests.swarm.backends.conformance.kinds import Kind
from tests.swarm.backends.conformance.support import ask, ask_all, drawn_from, prompt

Start = Callable[..., Any]
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


@pytest.mark.parametrize("wrong", ["warm", "no tail", "one id too often", "shifted"])
def test_a_wrong_sampler_is_found_out_and_a_right_one_is_not(wrong: str) -> None:
    rng = random.Random(0)
    masses = [math.exp(rng.gauss(0, 2)) for _ in range(40)]
    logprobs = [math.log(mass / sum(masses)) for mass in masses]
    order = sorted(range(40), key=lambda i: -masses[i])
    others = {
        "warm": [mass**0.85 for mass in masses],
        "no tail": [mass if i in order[:8] else 0.0 for i, mass in enumerate(masses)],
        "one id too often": [mass * (1.6 if i == order[0] else 1.0) for i, mass in enumerate(masses)],
        "shifted": masses[1:] + masses[:1],
    }

    def drawn(weights: Sequence[float]) -> list[int]:
        found = Counter(rng.choices(range(40), weights, k=_DRAWS))
        return [found[i] for i in range(40)]

    assert drawn_from(drawn(masses), logprobs)
    assert not drawn_from(drawn(others[wrong]), logprobs)


def test_an_id_that_cannot_come_is_found_out_at_once() -> None:
    assert drawn_from([50, 50, 0], [math.log(0.5), math.log(0.5), -math.inf])
    assert not drawn_from([50, 49, 1], [math.log(0.5), math.log(0.5), -math.inf])


_CUTS = (
    Sampling(max_tokens=5, top_k=3),
    Sampling(max_tokens=5, top_p=0.4),
    Sampling(max_tokens=5, top_k=5, top_p=0.7, temperature=0.7),
    Sampling(max_tokens=5, top_p=0.0),
    Sampling(max_tokens=5, top_k=10_000),
)


@pytest.mark.needs("model", "exact")
async def test_logprobs_are_those_of_what_the_cuts_left(kind: Kind, backend: Backend) -> None:
    """Every request has its own cuts, side by side in one batch."""
    oracle = kind.ask(backend)
    answers = await ask_all(backend, [(prompt(backend, 1), rule) for rule in _CUTS * 2])
    for answer, rule in zip(answers, _CUTS * 2, strict=True):
        ids = list(answer.prompt)
        for token, logprob in zip(answer.ids, answer.logprobs, strict=True):
            left = cut(oracle.distribution(ids, rule.temperature), rule.top_k, max(rule.top_p, 1e-9))
            assert logprob == pytest.approx(left[token], abs=kind.tolerance)
            ids.append(token)


@pytest.mark.needs("model")
async def test_greedy_logprobs_are_the_model_s_own(kind: Kind, backend: Backend) -> None:
    answer = await ask(backend, prompt(backend, 1), Sampling(max_tokens=5, temperature=0, top_p=0.1))
    assert answer.logprobs == pytest.approx(kind.ask(backend).logprobs(answer.prompt, answer.ids), abs=kind.tolerance)


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


async def test_without_a_seed_answers_vary_and_the_job_s_seed_fixes_them_all(kind: Kind, start: Start) -> None:
    said = []
    for seed in (3, 3, 4):
        backend: Backend = await start(seed=seed)
        rule = Sampling(max_tokens=8)
        said.append([(await ask(backend, prompt(backend, 1, 900_000_000), rule)).ids for _ in range(3)])
    assert said[0] == said[1] != said[2]
    assert len(set(said[0])) > 1


async def test_as_many_likeliest_ids_are_told_as_were_asked_for(kind: Kind, backend: Backend) -> None:
    for count in (0, 1, 5):
        answer = await ask(backend, prompt(backend, 1), Sampling(max_tokens=4, top_logprobs=count))
        assert [len(place) for place in answer.top] == [count] * (len(answer.ids) if count else 0)
        for place in answer.top:
            assert [value for _, value in place] == sorted((value for _, value in place), reverse=True)


@pytest.mark.needs("model")
async def test_the_likeliest_ids_are_the_distribution_s(kind: Kind, backend: Backend) -> None:
    rule = Sampling(max_tokens=3, temperature=0.7, top_k=2, top_logprobs=4)
    answer = await ask(backend, prompt(backend, 1), rule)
    ids = list(answer.prompt)
    for token, place in zip(answer.ids, answer.top, strict=True):
        left = cut(kind.ask(backend).distribution(ids, 0.7), top_k=2)
        assert len(place) == 2, "ids that a cut left out were told"
        assert [value for _, value in place] == pytest.approx(sorted(left)[:-3:-1], abs=kind.tolerance)
        assert all(left[other] == pytest.approx(value, abs=kind.tolerance) for other, value in place)
        ids.append(token)
