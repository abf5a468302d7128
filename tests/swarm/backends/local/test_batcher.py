"""Batching: whoever asks beside whom, answers are those of a plain forward, and what is drawn is what was asked."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local import batcher as batcher_module
from swarm.backends.local.batcher import Batcher, Generation, group_by_length, sample
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Sampling
from tests.swarm.backends.local import models

_TOLERANCE = 5e-5


def _batcher(policy: Policy, slots: int = 4, positions: int = 96, seed: int = 0) -> Batcher:
    return Batcher(policy, slots=slots, positions=positions, seed=seed)


def _count_fed(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fed: list[int] = []
    plain = policy.decode

    def counting(ids: torch.Tensor, *inputs: Any) -> torch.Tensor:
        fed.append(ids.numel())
        return plain(ids, *inputs)

    monkeypatch.setattr(policy, "decode", counting)
    return fed


def test_a_new_turn_feeds_only_its_new_tokens_and_gets_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = models.make_policy()
    batcher = _batcher(policy)
    fed = _count_fed(policy, monkeypatch)
    ids = models.make_prompts(1)[0] + [3] * 20
    for _ in range(4):
        turn = models.generate(batcher, [ids], 3)[0]
        models.assert_forced(policy, turn)
        ids = [*turn.ids, 7, 8, 9]
    assert fed[0] == turn.prompt_length - 3 * 6
    assert fed[3:] == [4, 1, 1] * 3


@cache
def _shared_policy() -> Policy:
    return models.make_policy()


@given(st.integers(0, 10_000))
def test_random_conversations_over_few_slots_are_always_right(seed: int) -> None:
    policy = _shared_policy()
    rng = random.Random(seed)
    batcher = _batcher(policy, slots=rng.randint(1, 3), seed=seed)
    histories = [[rng.randrange(2) for _ in range(rng.randint(1, 12))] for _ in range(3)]
    for _ in range(3):
        chosen = rng.sample(range(3), rng.randint(1, 3))
        turns = models.generate(batcher, [histories[i] for i in chosen], Sampling(max_tokens=rng.randint(1, 4)))
        for i, turn in zip(chosen, turns, strict=True):
            models.assert_forced(policy, turn)
            histories[i] = [*turn.ids[: rng.randint(1, len(turn.ids))], rng.randrange(2)]


@torch.no_grad()
def _change_weights(policy: Policy, seed: int = 1) -> None:
    for parameter in policy.model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
    policy.version += 1
    policy.revision += 1


@given(st.lists(st.integers(1, 700), max_size=80))
def test_grouping_loses_nobody_and_bounds_padding(lengths: list[int]) -> None:
    found = np.array(lengths, np.int64)
    groups = list(group_by_length(found))
    assert sorted(index for group in groups for index in group.tolist()) == list(range(len(lengths)))
    for group in groups:
        longest = found[group].max()
        assert 0 <= (longest - found[group]).sum() <= 256
        assert len(group) * longest <= 8192


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99))
def test_everybody_gets_a_first_token_in_bounded_time_and_in_order(lengths: list[int], slots: int, seed: int) -> None:
    batcher = _batcher(_shared_policy(), slots=slots, seed=seed)
    budget, answer = 16, 3
    rng = random.Random(seed)
    generations = [Generation([rng.randrange(2) for _ in range(n)], Sampling(max_tokens=answer)) for n in lengths]
    first: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batcher_module, "_PREFILL", budget)
        patch.setattr(batcher_module, "_FORWARD", budget)
        for generation in generations:
            batcher.add(generation)
        steps = 0
        while batcher.busy:
            steps += 1
            for generation in batcher.step():
                first.setdefault(generations.index(generation), steps)
    assert sorted(first) == list(range(len(lengths)))
    for place in range(len(lengths)):
        prompts = sum(-(-length // budget) + 1 for length in lengths[: place + 1])
        assert first[place] <= prompts + answer * (place // slots + 1)


def test_a_group_s_shared_prompt_is_computed_once_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "_CHUNK", 16)
    policy = models.make_policy()
    opening = (models.make_prompts(1, seed=4)[0] * 9)[:60]
    siblings = [[*opening, *tail] for tail in ([], [1], [1, 2, 3], [4] * 5)]
    alone = [
        models.answer_of(models.generate(_batcher(policy), [ids], Sampling(max_tokens=5, seed=3))[0])
        for ids in siblings
    ]
    fed = _count_fed(policy, monkeypatch)
    together = models.generate(_batcher(policy), siblings, Sampling(max_tokens=5, seed=3))
    assert [models.answer_of(turn) for turn in together] == alone
    for turn in together:
        models.assert_forced(policy, turn)
    tails = [1 + len(ids) - len(opening) for ids in siblings]
    assert sum(fed) <= len(opening) + sum(tails) + 4 * 5 + 3 * max(tails)  # once, the rest, the answers, padding


def test_several_revisions_are_all_followed_and_each_token_bears_its_version() -> None:
    policy = models.make_policy()
    batcher = _batcher(policy)
    (generation,) = models.generate(batcher, [[1, 2, 3, 4]], 6, steps=0)
    for place in range(6):
        if place in (2, 3, 5):
            _change_weights(policy, seed=place)
            policy.version = int(place == 5)
        batcher.step()
        start = generation.prompt_length + place
        expected = models.forced_logprobs(policy, generation.ids[:start], generation.ids[start:])
        assert [generation.fresh[-1].logprob] == pytest.approx(expected, abs=_TOLERANCE)
    assert [token.version for token in generation.fresh] == [0, 0, 0, 0, 0, 1]


def _uniforms(count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    "rule",
    [
        *({"temperature": cold} for cold in (1e-4, 1e-38, 1e-46, 1e-300)),
        *({"top_p": small} for small in (1e-9, 1e-50, 5e-324)),
    ],
    ids=str,
)
def test_the_coldest_temperature_and_the_smallest_top_p_draw_the_likeliest_id(rule: dict[str, float]) -> None:
    ids, logprobs, _ = sample(torch.tensor([[0.0, 2.0, 1.0]]), [Sampling(1, **rule)], _uniforms(1))  # type: ignore[arg-type]
    assert (ids.tolist(), logprobs.tolist()) == ([1], [0.0])


def test_a_large_vocabulary_is_drawn_from_as_its_exact_cumulative_distribution_says() -> None:
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(3)) * 3
    logits[:, 1000:2100] = -torch.inf
    draws = 500
    uniforms = _uniforms(4 * draws)
    ids, *_ = sample(logits.repeat(draws, 1), [Sampling(1)] * (4 * draws), uniforms)
    sums = logits.double().softmax(-1).cumsum(-1).repeat(draws, 1)
    low = sums.gather(-1, (ids[:, None] - 1).clamp(min=0))[:, 0] * (ids > 0)
    high = sums.gather(-1, ids[:, None])[:, 0]
    assert ((low - 1e-6 <= uniforms) & (uniforms <= high + 1e-6)).all()
    assert not ((ids >= 1000) & (ids < 2100)).any()


@given(st.integers(0, 999), st.integers(1, 2999))
def test_the_last_draw_of_a_large_vocabulary_is_an_id_that_could_come(seed: int, possible: int) -> None:
    logits = torch.full((1, 3000), -torch.inf)
    logits[0, :possible] = torch.randn(possible, generator=torch.Generator().manual_seed(seed)) * 5
    last = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert sample(logits, [Sampling(max_tokens=1)], last).ids.item() < possible
