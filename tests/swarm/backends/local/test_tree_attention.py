"""Attention over a packed tree is attention over each of its paths, in values and gradients, whoever else attends."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from swarm.backends.local import tree_attention
from swarm.backends.local.batcher import Batcher
from swarm.backends.local.micro_batch import PackedRows, PaddedRows, sort_depth_first
from swarm.backends.local.policy import Policy
from swarm.backends.local.tree_attention import TreeMask
from swarm.backends.protocols import Sampling
from tests.swarm.backends.local.models import VOCABULARY, generate, make_policy, row

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=9)
ROWS = st.lists(IDS, min_size=1, max_size=8)
HEADS, SHARED_HEADS, WIDTH = 4, 2, 8
PAIRS = {"no masks": 0, "some masks": 8, "one mask": 10**6, "as it is": None}
"""How many scores for each run are few enough for a mask of several runs."""


@contextmanager
def masking(pairs: int | None) -> Iterator[None]:
    with patch.object(
        tree_attention, "_break_even_pairs", tree_attention._break_even_pairs if pairs is None else lambda *_: pairs
    ):
        yield


def attend(inputs: list[Tensor], tree: TreeMask, scale: float | None, pairs: int | None) -> Tensor:
    with masking(pairs):
        out, _ = tree_attention.tree_attention(Layer(), *inputs, None, scaling=scale, tree=tree)
    return out.transpose(1, 2)


class Layer(nn.Module):
    """What transformers' attention functions read of the module that calls them."""

    num_key_value_groups = HEADS // SHARED_HEADS
    is_causal = True


def tensors(size: int, dtype: torch.dtype, heads: tuple[int, int, int] = (HEADS,) * 3) -> list[Tensor]:
    torch.manual_seed(size)
    made = [torch.randn(1, size, each, WIDTH).to(dtype).transpose(1, 2) for each in heads]
    return [each.requires_grad_() for each in made]


def sees(packed: PackedRows) -> Tensor:
    mask = torch.eye(packed.tokens, dtype=torch.bool)
    for segment in packed.tree.segments:
        for index in range(segment.start, segment.end):
            before = index - 1 if index > segment.start else packed.tree.segments[segment.parent].end - 1
            if index > segment.start or segment.parent >= 0:
                mask[index] |= mask[before]
    return mask


def outcome(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


def gap(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1.0)).item() for a, b in pairs)


@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
@given(ROWS)
def test_each_id_attends_to_its_path_and_to_nothing_else(pairs: int | None, drawn: list[list[int]]) -> None:
    packed = PackedRows(sort_depth_first([row(ids) for ids in drawn]))
    inputs = tensors(packed.tokens, torch.float32)
    dense = nn.functional.scaled_dot_product_attention(*inputs, attn_mask=sees(packed), scale=0.3)
    assert gap(outcome(attend(inputs, packed.tree, 0.3, pairs), inputs), outcome(dense, inputs)) < 1e-5


@pytest.mark.slow
def test_long_paths_are_right_where_the_kernel_cuts_them_into_tiles() -> None:
    rng = random.Random(0)
    prompt = [rng.randrange(9) for _ in range(700)]
    rows = [row([*prompt, *(rng.randrange(9) for _ in range(300 + 100 * n))], [0]) for n in range(2)]
    packed = PackedRows(sort_depth_first(rows))
    inputs = tensors(packed.tokens, torch.float32)
    expected = outcome(nn.functional.scaled_dot_product_attention(*inputs, attn_mask=sees(packed)), inputs)
    for pairs in PAIRS.values():
        assert gap(outcome(attend(inputs, packed.tree, None, pairs), inputs), expected) < 1e-5


def test_threads_with_and_without_trees_share_a_module() -> None:
    policy = make_policy("qwen3")
    rng = random.Random(1)
    rows = [row([7, 3, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30)))]) for _ in range(12)]
    packed, other = (PackedRows(sort_depth_first(each)) for each in (rows, rows[::2]))
    batcher = Batcher(policy, slots=4, positions=64, seed=0)
    works: list[Callable[[], list[Tensor]]] = [
        lambda: features_and_gradient(policy, packed),
        lambda: features_and_gradient(policy, other),
        lambda: [PaddedRows(rows).features(policy).detach()],
        lambda: [policy.model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=9, do_sample=False)],
        lambda: generated(batcher),
    ]
    alone = [work() for work in works]
    together: list[list[list[Tensor]]] = [[] for _ in works]
    barrier = threading.Barrier(len(works))

    def run(number: int) -> None:
        barrier.wait()
        together[number] += [works[number]() for _ in range(4)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(runs) for runs in together] == [4] * len(works)
    assert max(gap(found, each) for each, runs in zip(alone, together, strict=True) for found in runs) < 1e-5


def features_and_gradient(policy: Policy, packed: PackedRows) -> list[Tensor]:
    features = packed.features(policy)
    return [features.detach(), *torch.autograd.grad(features.pow(2).mean(), list(policy.model.base_model.parameters()))]


def generated(batcher: Batcher) -> list[Tensor]:
    generations = generate(batcher, [[n, 5, 6] for n in range(6)], Sampling(max_tokens=9, temperature=0.0))
    return [torch.tensor([[token.id, token.logprob] for token in each.fresh]) for each in generations]
