"""Micro-batches: rows laid out for one forward and backward, within a budget of tokens, and their log-probs.

Promises: each row is in exactly one micro-batch; a micro-batch's features stand in the order of its rows' sampled
tokens, as `rows.flat_tokens` has them, whatever the layout. What a step learns does not depend on the layout. Every
pass computes log-probs alike, at the job's temperature and in fp32; `scored` holds the policy's lock for one
micro-batch at a time, so that neither an engine's reading nor a waiting writer is delayed for long.
Knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from swarm.backends.algorithms.losses import all_logprobs
from swarm.backends.algorithms.rows import Row
from swarm.backends.local.model.policy import Policy


class MicroBatch(Protocol):
    """Rows that one forward computes together."""

    @property
    def rows(self) -> Sequence[Row]:
        """The rows, in the order of their features."""
        ...

    @property
    def tokens(self) -> int:
        """Ids that are fed to the model, padding included."""
        ...

    def features(self, policy: Policy) -> Tensor:
        """Return what `policy.head` turns into logits (M, F), at the place before each of the M sampled tokens."""
        ...


class PaddedRows:
    """Rows side by side, padded right with id 0; causal attention keeps the padding from every real token."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.ids = torch.nn.utils.rnn.pad_sequence([row.ids for row in rows], batch_first=True)
        """(B, T)"""
        counts = torch.tensor([len(row.places) for row in rows])
        starts = torch.arange(len(rows)) * self.ids.shape[1]
        self.places = torch.cat([row.places for row in rows]) + starts.repeat_interleave(counts)
        """(M,), in ids flattened."""

    @property
    def tokens(self) -> int:
        """Ids that are fed to the model, padding included."""
        return self.ids.numel()

    def features(self, policy: Policy) -> Tensor:
        """Return what `policy.head` turns into logits (M, F)."""
        found = policy.features(self.ids.to(policy.device), use_cache=False)
        return found.flatten(0, 1)[self.places.to(policy.device)]


def padded_rows(rows: Sequence[Row], tokens: int) -> Iterator[PaddedRows]:
    """Split rows, longest first, so that no micro-batch holds more than `tokens` padded ids (but always one row)."""
    taken: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        if taken and (len(taken) + 1) * len(taken[0].ids) > tokens:
            yield PaddedRows(taken)
            taken = []
        taken.append(row)
    if taken:
        yield PaddedRows(taken)


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
