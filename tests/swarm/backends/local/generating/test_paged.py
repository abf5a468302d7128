"""The engine over transformers' continuous batching, where it differs from the project's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from swarm.backends.local.generating import paged
from swarm.backends.local.generating.paged import PagedBatcher
from swarm.backends.local.model.adapters import add_adapter
from swarm.backends.local.model.cache_shape import slot_bytes
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError
from tests.swarm.backends.local.models import (
    VOCABULARY,
    assert_forced,
    forced_logprobs,
    generate,
    make_model,
    make_policy,
    make_prompts,
)

_POSITIONS = 96


def _batcher(policy: Policy, sequences: int = 4, cache_bytes: int = 1 << 24) -> PagedBatcher:
    return PagedBatcher(policy, sequences=sequences, positions=_POSITIONS, cache_bytes=cache_bytes, seed=0)


def _room_for(policy: Policy, tokens: int) -> int:
    return tokens * (slot_bytes(policy.cache_shape, policy.dtype, 0) + paged._STEP_TOKENS * policy.dtype.itemsize)


def test_both_modules_have_the_same_weights_and_each_its_own_attention() -> None:
    policy = make_policy()
    attention = policy.config._attn_implementation
    batcher = _batcher(policy)
    assert all(one is two for one, two in zip(batcher._model.parameters(), policy.model.parameters(), strict=True))
    assert policy.config._attn_implementation == attention != batcher._model.config._attn_implementation


def test_an_adapter_that_learned_serves() -> None:
    model = make_model()
    add_adapter(model, rank=2, alpha=8, seed=0)
    policy = Policy(model)
    batcher = _batcher(policy)
    plain = forced_logprobs(policy, [1, 2, 3], [4])
    with policy.rewriting(), torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    assert forced_logprobs(policy, [1, 2, 3], [4]) != pytest.approx(plain, abs=0.01)
    for generation in generate(batcher, make_prompts(3, 60), 5):
        assert_forced(policy, generation)


@pytest.mark.slow
def test_where_memory_is_short_generations_take_turns_and_stay_right() -> None:
    policy = make_policy()
    batcher = _batcher(policy, sequences=4, cache_bytes=_room_for(policy, 6 * 32))
    most = batcher.free
    generations = generate(batcher, [[number] * 30 for number in range(5)], 50)
    assert batcher.free == most == 6 * 32
    for generation in generations:
        assert len(generation.fresh) == 50
        assert_forced(policy, generation)


def test_memory_for_less_than_one_sequence_is_refused_with_the_bytes_it_needs() -> None:
    policy = make_policy()
    needed = _room_for(policy, 4 * 32)
    _batcher(policy, cache_bytes=needed)
    with pytest.raises(BackendError, match=str(needed)):
        _batcher(policy, cache_bytes=needed - 1)


def test_all_memory_is_free_again_after_answers_and_cancellations() -> None:
    batcher = _batcher(make_policy())
    whole = batcher.free
    generate(batcher, make_prompts(5, 60), 5)
    assert batcher.free == whole
    endless = generate(batcher, make_prompts(8, 60), 90, steps=3)
    assert batcher.free < whole
    for generation in endless:
        generation.cancelled = True
    batcher.step()
    assert (batcher.free, batcher.busy) == (whole, False)


def _fed(batcher: PagedBatcher, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    plain = batcher._model.forward

    def counting(input_ids: torch.Tensor, **inputs: Any) -> Any:
        found.append(input_ids.numel())
        return plain(input_ids=input_ids, **inputs)

    monkeypatch.setattr(batcher._model, "forward", counting)
    return found


def test_blocks_that_prompts_share_are_computed_once_for_each_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    batcher = _batcher(policy)
    fed = _fed(batcher, monkeypatch)
    opening = [int(token) % VOCABULARY for token in range(64)]
    for expected in (66, 2):
        assert_forced(policy, generate(batcher, [[*opening, 1, 2]], 1)[0])
        assert fed.pop() == expected
    with policy.rewriting(), torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(1.1)
    assert_forced(policy, generate(batcher, [[*opening, 1, 2]], 1)[0])
    assert fed.pop() == 66


def test_the_process_s_random_stream_is_left_alone() -> None:
    policy = make_policy()
    before = torch.get_rng_state()
    generate(_batcher(policy), make_prompts(2, 60), 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_forward_that_is_not_the_model_s_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_model(seed=1)
    plain = paged._twin
    monkeypatch.setattr(paged, "_twin", lambda _: plain(other))
    with pytest.raises(BackendError, match=r"otherwise.*`slots`"):
        _batcher(make_policy())


def test_a_transformers_that_nobody_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.9.1")
    with pytest.raises(BackendError, match=r"transformers 5\.10, found 5\.9\.1.*`slots`"):
        _batcher(make_policy())
