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
from torch.nn import functional

from swarm.backends.protocols import Sampling

_COLDEST = 1e-30
"""Lower temperatures count as this one, at which the likeliest id is certain and fp32 logits do not yet overflow."""
_BLOCK = 512
"""Ids of a large vocabulary that are summed before the sums are summed."""


class SampledBatch(NamedTuple):
    """The next token of each row: ids (B,), log-probs (B,), and the likeliest ids with theirs where asked for."""

    ids: Tensor
    logprobs: Tensor
    top: list[tuple[tuple[int, float], ...]]


def sample(logits: Tensor, rules: Sequence[Sampling], uniforms: Tensor) -> SampledBatch:
    """Draw from fp32 logits (B, V), -inf where an id must not come, by uniforms (B,) in [0, 1), float64, on the CPU.

    Raises ArithmeticError where a row has NaN or infinity, or no id that may come.
    """
    logprobs = distribution(logits, rules)
    if logprobs[:, 0].isnan().any():  # one in a row of logits makes all its log-probs NaN
        raise ArithmeticError("the model's logits are no finite numbers")
    ids = _invert(logprobs, uniforms)
    greedy = [row for row, rule in enumerate(rules) if rule.temperature == 0]
    if greedy:
        ids[greedy] = logits[greedy].argmax(-1)
    top = [_likeliest(logprobs, row, rule.top_logprobs) for row, rule in enumerate(rules)]
    return SampledBatch(ids, logprobs.gather(-1, ids[:, None])[:, 0], top)


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
    cut = [row for row, rule in enumerate(rules) if rule.temperature > 0 and (rule.top_k > 0 or rule.top_p < 1.0)]
    if cut:
        logprobs[cut] = _cut(logprobs[cut], [rules[row].top_k for row in cut], [rules[row].top_p for row in cut])
    return logprobs


def _cut(logprobs: Tensor, top_k: Sequence[int], top_p: Sequence[float]) -> Tensor:
    """Keep of rows (R, V) the `top_k` likeliest (0: all), then the fewest whose mass reaches `top_p`; renormalise."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    size, device = logprobs.shape[-1], logprobs.device
    kept = torch.tensor([count if count > 0 else size for count in top_k], device=device)
    ordered[torch.arange(size, device=device) >= kept[:, None]] = -torch.inf
    mass = ordered.softmax(-1)
    beyond = mass.cumsum(-1) - mass >= torch.tensor(top_p, dtype=mass.dtype, device=device)[:, None]
    beyond[:, 0] = False  # also where fp32 rounds `top_p` to 0
    beyond &= torch.tensor([share < 1.0 for share in top_p], device=device)[:, None]
    ordered[beyond] = -torch.inf
    return torch.full_like(logprobs, -torch.inf).scatter(-1, order, ordered.log_softmax(-1))


def _invert(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Return the ids (B,) at which each row's cumulative distribution passes its uniform number.

    Over a large vocabulary only sums of blocks are made in float64, and then the ids of one block: what the rounding of
    a sum in fp32 moves is as little as the rounding of the exponentials.
    """
    mass = logprobs.exp()
    if mass.shape[-1] <= 2 * _BLOCK:
        sums = _exact(mass).cumsum(-1)
        return _passing(sums, uniforms.to(sums.device) * sums[:, -1]).to(mass.device)
    blocks = functional.pad(mass, (0, -mass.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))  # (B, V / K, K)
    sums = _exact(blocks.sum(-1)).cumsum(-1)
    draws = uniforms.to(sums.device) * sums[:, -1]
    block = _passing(sums, draws)
    before = functional.pad(sums, (1, 0)).gather(-1, block[:, None])[:, 0]
    within = _exact(blocks[torch.arange(len(mass), device=mass.device), block.to(mass.device)]).cumsum(-1)
    return (block * _BLOCK + _passing(within, draws - before)).to(mass.device)


def _passing(sums: Tensor, draws: Tensor) -> Tensor:
    """Return where rows of ascending `sums` (B, N) first exceed their draws (B,); one too large is the last."""
    total = sums[:, -1:]
    draws = draws[:, None].minimum(total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(sums, draws, right=True)[:, 0]


def _exact(mass: Tensor) -> Tensor:
    """Return fp32 numbers in float64, on the CPU where the device has none."""
    return (mass.cpu() if mass.device.type == "mps" else mass).double()
