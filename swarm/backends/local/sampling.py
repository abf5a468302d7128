"""Sampling: from logits to the next token of every row, with its log-prob.

Promises: the log-prob is that of the distribution the token was drawn from (temperature first, then top-k, then
top-p on what is left, renormalised), in fp32; a greedy row (temperature 0) gets the model's own log-prob. Ids that
a guide forbids have no part in it: a guided answer's log-probs are those of the masked distribution, which no learner
recomputes, so such a call is not trained unless the server says so.
A draw costs one uniform number, so a seeded request's tokens do not depend on its neighbours in the batch.
Knows nothing of requests or models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.backends.protocols import Sampling

_COLDEST = 1e-30
"""Lower temperatures count as this one, at which the likeliest id is certain and fp32 logits do not yet overflow."""


class Draw(NamedTuple):
    """Ids (B,) with their log-probs (B,), and for each row the likeliest ids with theirs, as many as it asked for."""

    ids: Tensor
    logprobs: Tensor
    top: list[tuple[tuple[int, float], ...]]


def sample(logits: Tensor, rules: Sequence[Sampling], uniforms: Tensor) -> Draw:
    """Draw from fp32 logits (B, V), -inf where an id must not come, by uniforms (B,) in [0, 1), float64."""
    logprobs = distribution(logits, rules)
    ids = _invert(logprobs, uniforms)
    greedy = [rule.temperature == 0 for rule in rules]
    if any(greedy):
        ids = torch.where(torch.tensor(greedy, device=ids.device), logits.argmax(-1), ids)
    top = [_likeliest(logprobs, row, rule.top_logprobs) for row, rule in enumerate(rules)]
    return Draw(ids, logprobs.gather(-1, ids[:, None])[:, 0], top)


def _likeliest(logprobs: Tensor, row: int, count: int) -> tuple[tuple[int, float], ...]:
    """Return the `count` likeliest ids that could come in a row of (B, V), with their log-probs, likeliest first."""
    if not count:
        return ()
    values, ids = logprobs[row].topk(min(count, logprobs.shape[-1]))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return tuple((token, value) for token, value in pairs if value > -math.inf)


def distribution(logits: Tensor, rules: Sequence[Sampling]) -> Tensor:
    """Return the log-probs (B, V) each row is drawn from: -inf where top-k or top-p cut."""
    temperatures = [max(rule.temperature, _COLDEST) if rule.temperature else 1.0 for rule in rules]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)[:, None]
    logprobs = logits.log_softmax(-1)
    for row, rule in enumerate(rules):
        if rule.temperature > 0 and (rule.top_k > 0 or rule.top_p < 1.0):
            logprobs[row] = _cut(logprobs[row], rule.top_k, rule.top_p)
    return logprobs


def _cut(logprobs: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the `top_k` likeliest (0: all), then the fewest of them whose mass reaches `top_p`; renormalise (V,)."""
    ordered, order = logprobs.sort(descending=True, stable=True)
    if top_k > 0:
        ordered[top_k:] = -torch.inf
    mass = ordered.softmax(-1)
    beyond = mass.cumsum(-1) - mass >= top_p
    beyond[0] = False  # also where fp32 rounds `top_p` to 0
    ordered[beyond] = -torch.inf
    return torch.full_like(logprobs, -torch.inf).scatter(0, order, ordered.log_softmax(-1))


def _invert(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Return the ids (B,) at which each row's cumulative distribution passes its uniform number."""
    mass = logprobs.double().exp().cumsum(-1)
    total = mass[:, -1:]
    draw = (uniforms[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(mass, draw, right=True)[:, 0]
