"""Continuous batching changes the speed and nothing else: every token is what a plain full forward would give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.backends.local.generating import batcher as batcher_module
from swarm.backends.local.generating.batcher import Batcher, group_by_length
from swarm.backends.local.generating.generation import Generation
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import Sampling
from tests.swarm.backends.local.models import KINDS, VOCABULARY, forced_logprobs, greedy_loop, make_policy

_GREEDY = Sampling(max_tokens=6, temperature=0.0)
_TOLERANCE = 1e-5


def _batcher(policy: Policy, slots: int = 4, positions: int = 96, seed: int = 0) -> Batcher:
    return Batcher(policy, slots=slots, positions=positions, seed=seed)


def _prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30))] for _ in range(count)]


def _run(batcher: Batcher, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generation]:
    generations = [Generation(list(prompt), sampling) for prompt in prompts]
    for generation in generations:
        batcher.add(generation)
    while batcher.busy:
        batcher.step()
    return generations


def _answer(generation: Generation) -> list[int]:
    return [token.id for token in generation.fresh]


def _assert_forced(policy: Policy, generation: Generation) -> None:
    prompt, answer = generation.ids[: generation.prompt_length], generation.ids[generation.prompt_length :]
    temperature = generation.sampling.temperature or 1.0
    expected = forced_logprobs(policy, prompt, answer, temperature)
    assert [token.logprob for token in generation.fresh] == pytest.approx(expected, abs=_TOLERANCE / temperature)
    assert _answer(generation) == answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_full_forward(kind: str, temperature: float) -> None:
    policy = make_policy(kind)
    for generation in _run(_batcher(policy), _prompts(11), Sampling(max_tokens=7, temperature=temperature)):
        _assert_forced(policy, generation)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_plain_loop_s_answer_whatever_the_batch_and_order(kind: str) -> None:
    policy = make_policy(kind)
    prompts = _prompts(9)
    expected = [greedy_loop(policy, prompt, 6) for prompt in prompts]
    together = [_answer(g) for g in _run(_batcher(policy), prompts, _GREEDY)]
    alone = [_answer(_run(_batcher(policy, slots=1), [prompt], _GREEDY)[0]) for prompt in prompts]
    backwards = [_answer(g) for g in _run(_batcher(policy, slots=3), prompts[::-1], _GREEDY)][::-1]
    assert together == alone == backwards == expected


def test_a_long_prompt_fed_in_pieces_beside_short_ones_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "_CHUNK", 7)
    monkeypatch.setattr(batcher_module, "_WASTE", 3)
    policy = make_policy()
    prompts = [[5] * 60, *_prompts(5)]
    for generation in _run(_batcher(policy), prompts, Sampling(max_tokens=5)):
        _assert_forced(policy, generation)


def _count_fed(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fed: list[int] = []
    plain = policy.decode

    def counting(ids: torch.Tensor, *inputs: Any) -> torch.Tensor:
        fed.append(ids.numel())
        return plain(ids, *inputs)

    monkeypatch.setattr(policy, "decode", counting)
    return fed


def test_a_new_turn_feeds_only_its_new_tokens_and_gets_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    batcher = _batcher(policy)
    fed = _count_fed(policy, monkeypatch)
    ids = _prompts(1)[0] + [3] * 20
    for _ in range(4):
        turn = _run(batcher, [ids], Sampling(max_tokens=3))[0]
        _assert_forced(policy, turn)
        ids = [*turn.ids, 7, 8, 9]
    assert fed[0] == turn.prompt_length - 3 * 6
    assert fed[3:] == [4, 1, 1] * 3


def test_siblings_share_an_opening_and_each_stays_right() -> None:
    policy = make_policy()
    batcher = _batcher(policy, slots=3)
    opening = [int(i) for i in range(20)]
    turns = _run(batcher, [opening], Sampling(max_tokens=2))
    for _ in range(3):
        turns = _run(batcher, [[*turns[0].ids, 1, 2], [*opening, 4], [*opening[:12], 9]], Sampling(max_tokens=3))
        for turn in turns:
            _assert_forced(policy, turn)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_random_conversations_over_few_slots_are_always_right(seed: int) -> None:
    policy = _SHARED_POLICY
    rng = random.Random(seed)
    batcher = _batcher(policy, slots=rng.randint(1, 3), seed=seed)
    histories = [[rng.randrange(2) for _ in range(rng.randint(1, 12))] for _ in range(3)]
    for _ in range(3):
        chosen = rng.sample(range(3), rng.randint(1, 3))
        turns = _run(batcher, [histories[i] for i in chosen], Sampling(max_tokens=rng.randint(1, 4)))
        for i, turn in zip(chosen, turns, strict=True):
            _assert_forced(policy, turn)
            histories[i] = [*turn.ids[: rng.randint(1, len(turn.ids))], rng.randrange(2)]


_SHARED_POLICY = make_policy()


@torch.no_grad()
def _change_weights(policy: Policy, seed: int = 1) -> None:
    for parameter in policy.model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
    policy.version += 1
    policy.revision += 1


def test_no_cached_key_outlives_its_policy_version() -> None:
    policy = make_policy()
    batcher = _batcher(policy)
    first = _run(batcher, [[1, 2, 3] * 8], Sampling(max_tokens=3))[0]
    _change_weights(policy)
    second = _run(batcher, [[*first.ids, 4]], Sampling(max_tokens=3))[0]
    _assert_forced(policy, second)
    assert {token.version for token in first.fresh} == {0}
    assert {token.version for token in second.fresh} == {1}


def test_a_generation_caught_by_an_update_goes_on_under_the_new_weights() -> None:
    policy = make_policy()
    batcher = _batcher(policy)
    generation = Generation([1, 2, 3, 4], Sampling(max_tokens=4))
    batcher.add(generation)
    batcher.step()
    batcher.step()
    _change_weights(policy)
    while batcher.busy:
        batcher.step()
    assert [token.version for token in generation.fresh] == [0, 0, 1, 1]
    later = forced_logprobs(policy, generation.ids[:6], generation.ids[6:])
    assert [token.logprob for token in generation.fresh[2:]] == pytest.approx(later, abs=_TOLERANCE)


def test_a_stop_id_ends_the_answer_and_belongs_to_it() -> None:
    policy = make_policy()
    plain = greedy_loop(policy, [1, 2, 3], 6)
    sampling = Sampling(max_tokens=6, temperature=0.0, stop_ids=(plain[2],))
    generation = _run(_batcher(policy), [[1, 2, 3]], sampling)[0]
    assert _answer(generation) == plain[: plain.index(plain[2]) + 1]
    assert generation.finish == "stop"


def test_max_tokens_and_a_full_context_end_with_length() -> None:
    policy = make_policy()
    short = _run(_batcher(policy), [[1, 2]], Sampling(max_tokens=3))[0]
    full = _run(_batcher(policy, positions=8), [[1, 2, 3, 4, 5]], Sampling(max_tokens=99))[0]
    assert (len(short.fresh), short.finish) == (3, "length")
    assert (len(full.fresh), full.finish) == (3, "length")
    _assert_forced(policy, full)


def test_a_cancelled_generation_gives_its_slot_to_the_next() -> None:
    batcher = _batcher(make_policy(), slots=1)
    endless, waiting = Generation([1], Sampling(max_tokens=90)), Generation([2], Sampling(max_tokens=2))
    batcher.add(endless)
    batcher.add(waiting)
    batcher.step()
    assert not waiting.fresh
    endless.cancelled = True
    batcher.step()
    assert len(waiting.fresh) == 1
    assert len(endless.fresh) == 1


def test_a_seeded_request_draws_the_same_whoever_shares_its_batch() -> None:
    policy = make_policy()
    seeded = Sampling(max_tokens=8, seed=5)
    alone = _answer(_run(_batcher(policy), [[1, 2, 3]], seeded)[0])
    batcher = _batcher(policy, seed=9)
    for prompt in _prompts(3):
        batcher.add(Generation(prompt, Sampling(max_tokens=5)))
    assert _answer(_run(batcher, [[1, 2, 3]], seeded)[0]) == alone
    assert _answer(_run(batcher, [[1, 2, 3]], Sampling(max_tokens=8, seed=6))[0]) != alone


def test_the_job_s_seed_decides_what_unseeded_requests_draw() -> None:
    policy = make_policy()
    answers = [
        [_answer(g) for g in _run(_batcher(policy, seed=seed), _prompts(4), Sampling(max_tokens=8))]
        for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]


@given(st.lists(st.integers(1, 700), max_size=80))
def test_grouping_loses_nobody_and_bounds_padding(lengths: list[int]) -> None:
    found = np.array(lengths, np.int64)
    groups = list(group_by_length(found))
    assert sorted(index for group in groups for index in group.tolist()) == list(range(len(lengths)))
    for group in groups:
        longest = found[group].max()
        assert 0 <= (longest - found[group]).sum() <= 256
        assert len(group) * longest <= 8192


def test_running_answers_advance_in_every_step_however_many_prompts_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "_PREFILL", 8)
    monkeypatch.setattr(batcher_module, "_WASTE", 0)
    policy = make_policy()
    batcher = _batcher(policy, slots=12)
    running = Generation([1, 2, 3], Sampling(max_tokens=60))
    batcher.add(running)
    batcher.step()
    crowd = [Generation([(7 * i + j) % VOCABULARY for j in range(30)], Sampling(max_tokens=2)) for i in range(10)]
    for generation in crowd:
        batcher.add(generation)
    fed = _count_fed(policy, monkeypatch)
    for advanced in range(2, 20):
        fed.clear()
        batcher.step()
        assert len(running.fresh) == advanced
        answers = 1 + sum(1 for generation in crowd if generation.fresh)
        assert sum(fed) <= 8 + answers
    while batcher.busy:
        batcher.step()
    for generation in [running, *crowd]:
        _assert_forced(policy, generation)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99))
def test_everybody_gets_a_first_token_in_bounded_time_and_in_order(lengths: list[int], slots: int, seed: int) -> None:
    batcher = _batcher(_SHARED_POLICY, slots=slots, seed=seed)
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
    policy = make_policy()
    opening = _prompts(1, seed=4)[0] * 9
    opening = opening[:60]
    siblings = [[*opening, *tail] for tail in ([], [1], [1, 2, 3], [4] * 5)]
    alone = [_answer(_run(_batcher(policy), [ids], Sampling(max_tokens=5, seed=3))[0]) for ids in siblings]
    fed = _count_fed(policy, monkeypatch)
    together = _run(_batcher(policy), siblings, Sampling(max_tokens=5, seed=3))
    assert [_answer(turn) for turn in together] == alone
    for turn in together:
        _assert_forced(policy, turn)
    tails = [1 + len(ids) - len(opening) for ids in siblings]
    assert sum(fed) <= len(opening) + sum(tails) + 4 * 5 + 3 * max(tails)  # once, the rest, the answers, padding


def test_siblings_of_a_cancelled_leader_go_on_with_one_of_them_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher_module, "_CHUNK", 16)
    policy = make_policy()
    batcher = _batcher(policy)
    opening = [i % VOCABULARY for i in range(70)]
    generations = [Generation([*opening, tail], Sampling(max_tokens=3)) for tail in range(3)]
    for generation in generations:
        batcher.add(generation)
    batcher.step()
    generations[0].cancelled = True
    fed = _count_fed(policy, monkeypatch)
    while batcher.busy:
        batcher.step()
    assert not generations[0].fresh
    for generation in generations[1:]:
        _assert_forced(policy, generation)
    assert sum(fed) < len(opening) + 16


def test_an_update_makes_a_running_group_compute_its_shared_prompt_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    batcher = _batcher(policy)
    opening = [i % VOCABULARY for i in range(64)]
    generations = [Generation([*opening, tail], Sampling(max_tokens=4)) for tail in range(4)]
    for generation in generations:
        batcher.add(generation)
    while not all(len(generation.fresh) >= 2 for generation in generations):
        batcher.step()
    _change_weights(policy)
    fed = _count_fed(policy, monkeypatch)
    while batcher.busy:
        batcher.step()
    assert len(opening) < sum(fed) < 2 * len(opening)
    for generation in generations:
        kept = [token for token in generation.fresh if token.version == 1]
        start = len(generation.ids) - len(kept)
        expected = forced_logprobs(policy, generation.ids[:start], generation.ids[start:])
        assert [token.logprob for token in kept] == pytest.approx(expected, abs=_TOLERANCE)


def test_several_revisions_within_one_version_are_all_followed() -> None:
    policy = make_policy()
    batcher = _batcher(policy)
    generation = Generation([1, 2, 3, 4], Sampling(max_tokens=6))
    batcher.add(generation)
    for place in range(6):
        if place in (2, 3, 5):
            _change_weights(policy, seed=place)
            policy.version = 0
        batcher.step()
        start = generation.prompt_length + place
        expected = forced_logprobs(policy, generation.ids[:start], generation.ids[start:])
        assert [generation.fresh[-1].logprob] == pytest.approx(expected, abs=_TOLERANCE)
    assert {token.version for token in generation.fresh} == {0}
