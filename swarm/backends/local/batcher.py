"""Continuous batching: every step advances all admitted generations by what each still has to feed the model.

Promises: a generation's tokens and log-probs depend on its own ids alone, whoever shares the batch; keys and
values computed under one policy version never serve another; a cancelled generation's slot is free at the next
step. Fresh prompts (many tokens) and running answers (one token) go through the same step, in few forwards.
Knows nothing of threads, event loops or time: `engine.py` calls `step` and carries its results away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.backends.local.cache import SlotCache
from swarm.backends.local.guides import Guide
from swarm.backends.local.policy import Policy
from swarm.backends.local.sampling import sample
from swarm.backends.local.slots import SlotTable
from swarm.backends.protocols import Finish, GrammarRefused, Sampling

_Array = npt.NDArray[Any]

_CHUNK = 512
"""Most tokens of one prompt fed in one step, so that a long prompt does not hold up the others."""
_FORWARD = 8192
"""Most tokens, padding included, in one forward."""
_WASTE = 256
"""Padding tokens that cost as much as one more forward (tiny model, one core: 0.8 ms against 4 us a token)."""


class Sampled(NamedTuple):
    """One sampled token."""

    id: int
    logprob: float
    version: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, eq=False)
class Generation:
    """One request on its way: prompt and sampled ids, its slot, and what was sampled but not sent yet.

    `cached` counts the leading ids whose keys and values are in the slot; `since` is the carrier's to use. `refused`
    says why its guide could not go on: then it is over and its last token is void.
    """

    ids: list[int]
    sampling: Sampling
    guide: Guide | None = None
    generator: torch.Generator | None = None
    prompt_length: int = 0
    slot: int = -1
    cached: int = 0
    cancelled: bool = False
    finish: Finish | None = None
    refused: str | None = None
    since: float = 0.0
    fresh: list[Sampled] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)
        if self.sampling.seed is not None:
            self.generator = torch.Generator().manual_seed(self.sampling.seed)


class Batcher:
    """Generations waiting and running over one slot cache. One thread uses it; `generator` draws for the unseeded."""

    def __init__(self, policy: Policy, *, slots: int, positions: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self._policy = policy
        self._positions = positions
        self._table = SlotTable(slots, positions)
        self._cache = SlotCache(policy.config, slots, positions, policy.dtype, policy.device)
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._version = policy.version
        self._revision = policy.revision

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self._waiting or self._running)

    def add(self, generation: Generation) -> None:
        """Queue a generation; it starts, in order of arrival, when a slot is free."""
        self._waiting.append(generation)

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Run the forwards of one step; return the generations that got a token (`finish` set on the finished)."""
        self._follow_version()
        self._drop_cancelled()
        self._admit()
        ready: list[Generation] = []
        features: list[Tensor] = []
        for group in group_by_length(self._running):
            hidden, done = self._forward(group)
            features.append(hidden)
            ready += done
        if ready:
            self._extend(ready, torch.cat(features))
            self._retire()
        return ready

    def _follow_version(self) -> None:
        self._version = self._policy.version
        if self._revision == self._policy.revision:
            return
        self._revision = self._policy.revision
        self._table.forget()
        for generation in self._running:
            generation.cached = 0

    def _drop_cancelled(self) -> None:
        for generation in self._running:
            if generation.cancelled:
                self._let_go(generation)
        self._running = [generation for generation in self._running if not generation.cancelled]

    def _admit(self) -> None:
        while self._waiting and self._table.idle():
            generation = self._waiting.popleft()
            if generation.cancelled:
                continue
            placement = self._table.place(generation.ids)
            if placement.donor is not None:
                self._cache.copy(placement.donor, placement.slot, placement.cached)
            generation.slot, generation.cached = placement.slot, placement.cached
            self._running.append(generation)

    def _forward(self, group: Sequence[Generation]) -> tuple[Tensor, list[Generation]]:
        """Feed each of `group` its next ids; return the features (N, F) of the N that are fed up, and those N."""
        starts = np.array([generation.cached for generation in group])
        lengths = np.array([pending(generation) for generation in group])
        rows = np.array([generation.slot for generation in group])
        columns = np.arange(lengths[0])
        positions = starts[:, None] + columns
        positions[columns >= lengths[:, None]] = self._cache.scratch
        ids = np.zeros(positions.shape, np.int64)
        for row, (generation, start, length) in enumerate(zip(group, starts.tolist(), lengths.tolist(), strict=True)):
            ids[row, :length] = generation.ids[start : start + length]
        ends = starts + lengths
        features = self._run_model(rows, positions, ids, int(ends.max()))
        self._table.record(rows, positions, ids)
        self._table.reach(rows, ends)
        done: list[int] = []
        for row, (generation, end) in enumerate(zip(group, ends.tolist(), strict=True)):
            generation.cached = end
            if end == len(generation.ids):
                done.append(row)
        return features[done, lengths[done] - 1], [group[row] for row in done]

    def _run_model(self, rows: _Array, positions: _Array, ids: _Array, end: int) -> Tensor:
        device = self._policy.device
        places = torch.from_numpy(positions).to(device)
        mask = self._cache.bind(rows, places, end)
        return self._policy.features(
            torch.from_numpy(ids).to(device),
            attention_mask=mask, position_ids=places, past_key_values=self._cache, use_cache=True,
        )  # fmt: skip

    def _extend(self, ready: Sequence[Generation], features: Tensor) -> None:
        """Sample one token for each of `ready` (N) from its features (N, F)."""
        rules = [generation.sampling for generation in ready]
        uniforms = torch.rand(len(ready), generator=self.generator, dtype=torch.float64)
        for row, generation in enumerate(ready):
            if generation.generator is not None:
                uniforms[row] = torch.rand((), generator=generation.generator, dtype=torch.float64)
        logits = self._policy.head(features)
        _forbid(ready, logits)
        ids, logprobs, top = sample(logits, rules, uniforms.to(features.device))
        for generation, token, logprob, likeliest in zip(ready, ids.tolist(), logprobs.tolist(), top, strict=True):
            generation.ids.append(token)
            generation.fresh.append(Sampled(token, logprob, self._version, likeliest))
            _accept(generation, token)
            generation.finish = self._finish(generation, token)

    def _finish(self, generation: Generation, token: int) -> Finish | None:
        if token in generation.sampling.stop_ids or generation.refused:
            return "stop"
        sampled = len(generation.ids) - generation.prompt_length
        full = len(generation.ids) >= self._positions
        return "length" if full or sampled >= generation.sampling.max_tokens else None

    def _let_go(self, generation: Generation) -> None:
        self._table.release(generation.slot)
        generation.guide = None

    def _retire(self) -> None:
        for generation in self._running:
            if generation.finish:
                self._let_go(generation)
        self._running = [generation for generation in self._running if not generation.finish]


def _forbid(generations: Sequence[Generation], logits: Tensor) -> None:
    """Take from the logits (N, V) of guided generations what their grammars do not allow."""
    for row, generation in enumerate(generations):
        if generation.guide is None:
            continue
        try:
            logits[row].masked_fill_(~generation.guide.allowed().to(logits.device), -torch.inf)
        except GrammarRefused as error:
            generation.refused = str(error)


def _accept(generation: Generation, token: int) -> None:
    if generation.guide is None or generation.refused:
        return
    try:
        generation.guide.accept(token)
    except GrammarRefused as error:
        generation.refused = str(error)


def pending(generation: Generation) -> int:
    """Return how many ids the next step feeds to the model."""
    return min(len(generation.ids) - generation.cached, _CHUNK)


def group_by_length(generations: Sequence[Generation]) -> Iterator[list[Generation]]:
    """Split into groups for one forward each, longest first, so that padding never costs more than a forward."""
    group: list[Generation] = []
    longest = waste = 0
    for generation in sorted(generations, key=pending, reverse=True):
        length = pending(generation)
        waste += longest - length
        if group and (waste > _WASTE or (len(group) + 1) * longest > _FORWARD):
            yield group
            group = []
        if not group:
            longest, waste = length, 0
        group.append(generation)
    if group:
        yield group
