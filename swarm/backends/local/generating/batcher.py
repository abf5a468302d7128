"""Continuous batching: every step feeds the model the tokens that admitted generations still lack.

Promises: a generation's tokens and log-probs depend on its own ids alone, not on the batch; keys and
values computed under one revision of the weights never serve another; a cancelled generation's row is free at the
next step. Generations are admitted first come first served. Those whose prompt is fed run side by side in the first
rows of the cache and advance by one token in every step; of the prompts, oldest first, only so many tokens are fed in
one step that running answers are not held up. What prompts that arrive together share is computed once.
Knows nothing of threads, event loops or time: `engine.py` calls `step` and delivers its results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.backends.local.generating.cache import SlotCache
from swarm.backends.local.generating.generation import Generation, extend
from swarm.backends.local.generating.slots import SlotAssignment, SlotTable
from swarm.backends.local.model.policy import Policy

_Array = npt.NDArray[Any]

_CHUNK = 512
"""Most tokens of one prompt fed in one step."""
_PREFILL = 1024
"""Most tokens of all prompts fed in a step that also advances running answers."""
_FORWARD = 8192
"""Most tokens, padding included, in one forward, and most of all prompts in a step when no answer is running."""
_WASTE = 256
"""Padding tokens that cost as much as one more forward (tiny model, one core: 0.8 ms against 4 us a token)."""


class Batcher:
    """Generations waiting and running over one slot cache. One thread uses it; `generator` draws for the unseeded."""

    def __init__(self, policy: Policy, *, slots: int, positions: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        policy.fuse()
        self._policy = policy
        self._slots = slots
        self._positions = positions
        self._table = SlotTable(slots, positions)
        self._cache = SlotCache(policy.cache_shape, slots, positions, policy.dtype, policy.device)
        self._waiting: deque[Generation] = deque()
        self._running: dict[int, Generation] = {}
        """By row."""
        self._version = policy.version
        self._revision = policy.revision
        self._whole = True
        """Whether no step failed since the memory was last empty."""

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self._waiting or self._running)

    def add(self, generation: Generation) -> None:
        """Queue a generation; it starts, in order of arrival, when a row is free."""
        self._waiting.append(generation)

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Run the forwards of one step; return the generations that got a token (`finish` set on the finished)."""
        self._whole = False
        self._follow_version()
        self._drop_cancelled()
        self._join()
        self._admit()
        ready = self._extend(*self._advance())
        self._retire(ready)
        self._whole = True
        return ready

    @torch.inference_mode()
    def empty(self) -> tuple[list[Generation], list[Generation]]:
        """Remove all generations and their keys and values; return those that ran, and those that waited.

        After a failed step the memory is zeroed: numbers that are not finite come through masks.
        """
        running, waiting = list(self._running.values()), list(self._waiting)
        for generation in running:
            generation.slot, generation.leader = -1, None
        self._running.clear()
        self._waiting.clear()
        self._table = SlotTable(self._slots, self._positions)
        if not self._whole:
            self._cache.wipe()
            self._whole = True
        return running, waiting

    def _extend(self, rows: _Array, features: Tensor) -> list[Generation]:
        """Sample one token for each of `rows` (N) from its features (N, F); return whose they are."""
        ready = [self._running[row] for row in rows.tolist()]
        if ready:
            logits = self._policy.head(features)
            self._table.append(rows, extend(ready, logits, self.generator, self._version, self._positions))
        return ready

    def _follow_version(self) -> None:
        self._version = self._policy.version
        if self._revision == self._policy.revision:
            return
        self._revision = self._policy.revision
        self._table.forget()
        for generation in self._running.values():
            self._find_leader(generation)

    def _drop_cancelled(self) -> None:
        for generation in [generation for generation in self._running.values() if generation.cancelled]:
            self._release(generation)

    def _find_leader(self, generation: Generation) -> None:
        """Let a generation wait where an older one will soon hold much of what it would have to compute."""
        row, awaited = self._table.leader(generation.slot) or (None, 0)
        generation.leader = None if row is None else self._running[row]
        generation.awaited = awaited

    def _join(self) -> None:
        """Copy a leader's prefix to those who wait for it, once it is complete or the leader is gone."""
        for generation in self._running.values():
            leader = generation.leader
            if leader is None or (self._runs(leader) and self._table.cached[leader.slot] < generation.awaited):
                continue
            self._copy_prefix(self._table.borrow(generation.slot))
            self._find_leader(generation)

    def _runs(self, generation: Generation) -> bool:
        return self._running.get(generation.slot) is generation

    def _admit(self) -> None:
        while self._waiting and self._table.idle():
            generation = self._waiting.popleft()
            if generation.cancelled:
                continue
            assignment = self._table.place(generation.ids)
            self._copy_prefix(assignment)
            generation.slot = assignment.slot
            self._running[assignment.slot] = generation
            self._find_leader(generation)

    def _copy_prefix(self, assignment: SlotAssignment | None) -> None:
        if assignment is not None and assignment.donor is not None:
            self._cache.copy(assignment.donor, assignment.slot, assignment.cached)

    def _advance(self) -> tuple[_Array, Tensor]:
        """Run the forwards of this step; return the rows (N,) that lack no token now and their features (N, F)."""
        answers = self._move_answers_to_front()
        fed = [self._feed(np.arange(answers), np.ones(answers, np.int64))] if answers else []
        rows, lengths = self._portions(_PREFILL if answers else _FORWARD)
        fed += [self._feed(rows[group], lengths[group]) for group in group_by_length(lengths)]
        if not fed:
            return rows, torch.empty(0)
        if len(fed) == 1:
            return fed[0]
        return np.concatenate([done for done, _ in fed]), torch.cat([features for _, features in fed])

    def _move_answers_to_front(self) -> int:
        """Move the rows that lack one token to the front of the cache; return how many they are."""
        lacks_one = self._table.lacking() == 1
        count = int(lacks_one.sum())
        holes, strays = np.flatnonzero(~lacks_one[:count]), np.flatnonzero(lacks_one[count:]) + count
        for hole, stray in zip(holes.tolist(), strays.tolist(), strict=True):
            self._exchange(hole, stray)
        return count

    def _exchange(self, hole: int, stray: int) -> None:
        self._cache.exchange(hole, stray, self._table.exchange(hole, stray))
        moved, displaced = self._running.pop(stray), self._running.pop(hole, None)
        for generation, row in ((moved, hole), (displaced, stray)):
            if generation is not None:
                generation.slot = row
                self._running[row] = generation

    def _portions(self, budget: int) -> tuple[_Array, _Array]:
        """Return the rows (P,) whose prompts are fed now, and how many tokens of each, (P,), within a budget."""
        lacking = self._table.lacking()
        rows: list[int] = []
        lengths: list[int] = []
        for row in self._table.oldest_first(np.flatnonzero(lacking > 1)).tolist():
            if budget and self._running[row].leader is None:
                rows.append(row)
                lengths.append(min(int(lacking[row]), _CHUNK, budget))
                budget -= lengths[-1]
        return np.array(rows, np.int64), np.array(lengths, np.int64)

    def _feed(self, rows: _Array, lengths: _Array) -> tuple[_Array, Tensor]:
        """Feed `rows` (B,) their next `lengths` (B,) ids; return the N that lack none now, with features (N, F)."""
        starts = self._table.cached[rows]
        columns = np.arange(lengths.max())
        positions = np.where(columns < lengths[:, None], starts[:, None] + columns, self._cache.scratch)
        ends = starts + lengths
        features = self._run_model(rows, positions, self._table.read(rows, positions), int(ends.max()))
        self._table.reach(rows, ends)
        done = np.flatnonzero(ends == self._table.known[rows])
        if columns.size == 1 and done.size == rows.size:
            return rows, features[:, 0]
        return rows[done], features[done, lengths[done] - 1]

    def _run_model(self, rows: _Array, positions: _Array, ids: _Array, end: int) -> Tensor:
        device = self._policy.device
        places = torch.from_numpy(positions).to(device)
        mask = self._cache.bind(rows, places, end)
        if positions.shape[1] > 1:  # what pads has a place in memory, but none that a model of so many positions knows
            places = places.clamp(max=self._positions - 1)
        return self._policy.decode(torch.from_numpy(ids).to(device), places, mask, self._cache)

    def _retire(self, ready: Iterable[Generation]) -> None:
        for generation in ready:
            if generation.finish:
                self._release(generation)

    def _release(self, generation: Generation) -> None:
        self._table.release(generation.slot)
        del self._running[generation.slot]
        generation.guide = generation.leader = None


def group_by_length(lengths: _Array) -> Iterator[_Array]:
    """Split portions of `lengths` (P,) into groups for one forward each, so that padding never costs more than one.

    Yields indices, of the longest first.
    """
    group: list[int] = []
    longest = waste = 0
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        waste += longest - length
        if group and (waste > _WASTE or (len(group) + 1) * longest > _FORWARD):
            yield np.array(group)
            group = []
        if not group:
            longest, waste = length, 0
        group.append(index)
    if group:
        yield np.array(group)
