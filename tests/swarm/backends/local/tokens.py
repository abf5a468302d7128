"""Random flat tokens for the loss and its metrics, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from swarm.backends.algorithms.rows import Tokens

VOCABULARY = 7


def make_tokens(counts: Sequence[int], seed: int = 0, *, drift: float = 0.3, age: int = 2) -> tuple[Tensor, Tokens]:
    """Logits (M, V), and M tokens of episodes with `counts` of them, sampled by policies up to `age` versions before 5.

    `drift` is how far the present, proximal and rollout policies are apart.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    total, sizes = sum(counts), torch.tensor(counts)
    logits, targets = noise(total, VOCABULARY), torch.randint(VOCABULARY, (total,), generator=generator)
    present = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    proximal = present + drift * noise(total)
    tokens = Tokens(
        targets=targets,
        rollout=proximal + drift * noise(total),
        versions=5 - torch.randint(age + 1, (total,), generator=generator),
        proximal=proximal,
        advantages=noise(len(counts)).repeat_interleave(sizes),
        weights=(noise(len(counts)).exp() / max(1, total)).repeat_interleave(sizes),
        episodes=torch.arange(len(counts)).repeat_interleave(sizes),
    )
    return logits, tokens


def select(tokens: Tokens, places: Tensor) -> Tokens:
    """The tokens at some places, in that order."""
    found = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
    return replace(tokens, **{name: value[places] for name, value in found.items() if value is not None})
