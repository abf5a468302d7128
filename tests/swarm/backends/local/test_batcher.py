"""Batching: whoever asks beside whom, answers are those of a plain forward, and what is drawn is what was asked."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local import batcher as batcher_module
from swarm.backends.local import kv_cache
from swarm.backends.local.batcher import Batcher, Generation, sample
from swarm.backends.local.micro_batch import group_by_length
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Sampling
from swarm.rendering.messages import BackendError
from tests.swarm.backends.local import models
from tests.swarm.backends.local.models import REFUSED, SERVED

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
    found, groups = np.array(lengths, np.int64), group_by_length(lengths, 8192, 256)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
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


def test_answers_are_computed_once_while_they_go_alike_and_go_on_from_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = models.make_policy()
    monkeypatch.setattr(batcher_module, "_FLOPS_PER_BYTE", 0)  # however little is saved
    prompts, seeds = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3]], [5, 6, 5, 5, 6, 7]
    rules = [Sampling(max_tokens=12, seed=seed) for seed in seeds]
    alone = [
        models.answer_of(models.generate(_batcher(policy), [ids], rule)[0])
        for ids, rule in zip(prompts, rules, strict=True)
    ]
    batcher, fed = _batcher(policy, slots=6), _count_fed(policy, monkeypatch)
    together = [Generation(list(ids), rule) for ids, rule in zip(prompts, rules, strict=True)]
    for generation in together:
        batcher.add(generation)
    while batcher.busy:
        batcher.step()
    assert [models.answer_of(turn) for turn in together] == alone
    histories = {tuple(turn.ids[:end]) for turn in together for end in range(turn.prompt_length, len(turn.ids))}
    assert sum(fed) <= 4 + 3 + len(histories)
    for turn in together:
        models.assert_forced(policy, turn)


def test_answers_are_fed_beside_short_prompts_and_without_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = models.make_policy()
    monkeypatch.setattr(batcher_module, "_TINY", sum(weight.numel() for weight in policy.model.parameters()))
    batcher, fed = _batcher(policy, positions=600), _count_fed(policy, monkeypatch)
    turns = models.generate(batcher, [[1, 2, 3, 4]], 9, steps=1)
    for prompt, forwards in (([4, 3, 2], 1), ([1] * 400, 2)):
        turns.append(Generation(prompt, Sampling(max_tokens=3)))
        batcher.add(turns[-1])
        before = len(fed)
        assert set(batcher.step()) >= {turns[0], turns[-1]}
        assert len(fed) - before == forwards
    while batcher.busy:
        batcher.step()
    for turn in turns:
        models.assert_forced(policy, turn)


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


_KEPT = kv_cache.CacheShape(layers=2, heads=2, key_width=3, value_width=5)
_POSITIONS = 40


def test_as_many_rows_are_made_as_fit_in_the_bytes_and_too_few_for_one_are_refused_with_those_needed() -> None:
    row = kv_cache.slot_bytes(_KEPT, torch.float32, _POSITIONS)
    cache = kv_cache.SlotCache(_KEPT, 1, _POSITIONS, torch.float32, torch.device("cpu"))
    assert row == sum(held.numel() * held.element_size() for held in cache._memory)
    for dtype, limit, rows in (
        (torch.float32, 3 * row + 1, 3),
        (torch.float32, 99 * row, 64),
        (torch.bfloat16, row, 2),
    ):
        assert kv_cache.count_slots(_KEPT, dtype, _POSITIONS, limit, 64) == rows
    with pytest.raises(BackendError, match=rf"{row:,} bytes.*allows {row - 1:,}: set kv_cache_bytes to {row:,}"):
        kv_cache.count_slots(_KEPT, torch.float32, _POSITIONS, row - 1, 64)


_EXPECTED = {
    "deepseek_v3": kv_cache.CacheShape(2, 4, 16, 4),
    "falcon": kv_cache.CacheShape(2, 1, 8, 8),
    "gpt_bigcode": kv_cache.CacheShape(2, 1, 8, 8),
    "llama": kv_cache.CacheShape(2, 2, 8, 8),
}


def _made(kind: str, fields: dict[str, Any]) -> Any:
    return transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[kind](**fields)).eval()


@pytest.mark.parametrize("family", [*_EXPECTED, "deepseek_v2", "gemma3"])
def test_heads_and_widths_are_those_the_model_hands_to_its_cache_and_shapes_alone_tell_them(family: str) -> None:
    with torch.device("meta"):
        skeleton = _made(*SERVED[family])
    found = kv_cache.measure_cache_shape(_made(*SERVED[family]))
    assert found == kv_cache.measure_cache_shape(skeleton) == _EXPECTED.get(family, found)


@pytest.mark.parametrize("family", ["falcon-alibi", "jamba"])
def test_a_model_that_keeps_anything_else_is_named(family: str) -> None:
    kind, fields, _ = REFUSED[family]
    with pytest.raises(BackendError, match=rf"found that {kind} .*choose another model"):
        kv_cache.measure_cache_shape(_made(kind, fields))


def test_layers_that_keep_different_shapes_are_refused() -> None:
    model = _made(*SERVED["llama"])
    layer = model.model.layers[1].self_attn
    layer.k_proj, layer.v_proj = (torch.nn.Linear(32, 32, bias=False) for _ in range(2))
    layer.num_key_value_groups = 1
    with pytest.raises(BackendError, match=r"\[\(2, 8, 8\), \(4, 8, 8\)\]"):
        kv_cache.measure_cache_shape(model)


_SLOTS, _SLOT_POSITIONS = 3, 24
_prompts = st.lists(st.integers(0, 1), min_size=1, max_size=_SLOT_POSITIONS - 1)


@given(st.lists(st.tuples(_prompts, st.integers(0, 99)), max_size=40))
def test_a_placement_s_cached_prefix_is_what_the_slot_or_its_donor_holds(steps: list[tuple[list[int], int]]) -> None:
    table = kv_cache.SlotTable(_SLOTS, _SLOT_POSITIONS)
    held: dict[int, list[int]] = {}
    busy: list[int] = []
    for prompt, choice in steps:
        if table.busy.all() or (busy and choice % 3 == 0):
            table.release(busy.pop(choice % len(busy)))
        assert table.busy.sum() == len(busy)
        placement = table.place(prompt)
        assert placement.slot not in busy
        assert placement.cached < len(prompt)
        source = placement.slot if placement.donor is None else placement.donor
        assert held.get(source, [])[: placement.cached] == prompt[: placement.cached]
        busy.append(placement.slot)
        table.cached[placement.slot] = len(prompt)
        held[placement.slot] = prompt


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=2, max_size=4), st.integers(0, 3)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 4)), max_size=6),
)
def test_twins_are_rows_of_equal_ids_cached_and_fed_alike(
    placed: list[tuple[list[int], int]], steps: list[tuple[int, int, int]]
) -> None:
    table = kv_cache.SlotTable(5, _SLOT_POSITIONS)
    held = {}
    for prompt, cached in placed:
        slot = table.place(prompt).slot
        table.cached[slot], held[slot] = min(cached, len(prompt) - 1), list(prompt)
    for token, one, other in steps:
        rows = np.array(sorted(held))[: 1 + one % len(held)]
        table.append(rows, np.full(len(rows), token))
        for row in rows.tolist():
            held[row].append(token)
        if one != other:
            table.exchange(one, other)
            held = {{one: other, other: one}.get(row, row): ids for row, ids in held.items()}
    rows = np.array(sorted(held))
    lengths = np.minimum(table.known[rows] - table.cached[rows], 3)
    places, of = table.find_twins(rows, lengths)
    facts = [(held[row], table.cached[row], length) for row, length in zip(rows.tolist(), lengths, strict=True)]
    assert [facts[place] for place in places[of]] == facts
    assert places.tolist() == [n for n, fact in enumerate(facts) if fact not in facts[:n]]


def test_rows_whose_digests_collide_are_no_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "_FACTOR", np.uint64(0))
    table = kv_cache.SlotTable(3, _SLOT_POSITIONS)
    rows = np.array([table.place(prompt).slot for prompt in ([1, 2], [1, 3], [1, 2])])
    places, of = table.find_twins(rows, np.array([2, 2, 2]))
    assert places.tolist() == of.tolist() == [0, 1, 2]


def test_a_sibling_is_told_of_the_oldest_row_that_will_hold_its_prompt_and_borrows_what_that_has() -> None:
    table = kv_cache.SlotTable(4, 200)
    prompt = list(range(100))
    leader, second, third = (table.place([*prompt, tail]).slot for tail in (900, 901, 902))
    assert table.find_leader(leader) is None
    assert table.find_leader(second) == (leader, 100)
    assert table.find_leader(third) == (leader, 100)
    table.cached[leader] = 60
    assert table.borrow(second) == kv_cache.SlotAssignment(second, 60, leader)
    assert table.borrow(second) is None
    table.cached[leader] = 101
    assert table.borrow(third) == kv_cache.SlotAssignment(third, 100, leader)
    assert table.find_leader(third) is None
