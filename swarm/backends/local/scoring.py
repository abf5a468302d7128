"""Log-probs of a batch's sampled tokens under some policy: what forward passes, with and without gradients, share.

Promises: all passes compute alike, at the job's temperature and in fp32, and hold the policy's lock for one
micro-batch at a time, so that an engine's reading and a waiting writer are never kept for long.
Knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from swarm.backends.local.losses import all_logprobs
from swarm.backends.local.micro import MicroBatch
from swarm.backends.local.policy import Policy
from swarm.backends.local.rows import Row


def every_logprob(policy: Policy, micro: MicroBatch, temperature: float) -> Tensor:
    """Return log-probs (M, V) of the whole vocabulary at the places of a micro-batch's M sampled tokens."""
    return all_logprobs(policy.head(micro.features(policy)), temperature)


def scored(policy: Policy, micros: Iterable[MicroBatch], temperature: float) -> Iterator[tuple[Row, Tensor]]:
    """Yield each row with the log-probs (K,) of its sampled tokens under the policy, without gradient, on the CPU."""
    for micro in micros:
        yield from zip(micro.rows, _chosen(policy, micro, temperature), strict=True)


@torch.no_grad()
def _chosen(policy: Policy, micro: MicroBatch, temperature: float) -> Sequence[Tensor]:
    targets = torch.cat([row.targets for row in micro.rows])
    with policy.lock.reading():
        every = every_logprob(policy, micro, temperature)
        found = every.gather(-1, targets.to(every.device)[:, None])[:, 0].cpu()
    parts: Sequence[Tensor] = found.split([len(row.targets) for row in micro.rows])
    return parts
