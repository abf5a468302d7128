"""Which tokens each slot of the cache holds, who uses it, and where a new prompt should go.

Promises: the prefix a placement says is cached equals the prompt's first tokens; a busy slot is never given
away; of idle slots, one that the prompt extends is taken as it is, else the least recently used is emptied.
Does not know keys, values or models: it answers with numbers, and the caller moves the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_COPY_PAYS = 8
"""Fewest shared tokens for which copying a prefix between slots beats computing them again."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A slot for a prompt, its first `cached` tokens valid once those of `donor` are copied (None: they are there)."""

    slot: int
    cached: int
    donor: int | None = None


class SlotTable:
    """Token ids, valid length, use and age of every slot."""

    def __init__(self, slots: int, positions: int) -> None:
        self._ids: npt.NDArray[np.int64] = np.full((slots, positions + 1), -1, np.int64)
        self._cached: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self._busy: npt.NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self._used: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self._clock = 0

    def idle(self) -> int:
        """Return how many slots are free to be placed on."""
        return int(self._busy.size - self._busy.sum())

    def place(self, prompt: Sequence[int]) -> Placement:
        """Take a slot for a prompt; at least one idle slot and one token are needed. At most all but one is cached."""
        shared = self._shared(np.asarray(prompt[:-1], np.int64))
        keeps = np.where(~self._busy & (shared == self._cached), shared, -1)
        donor, heir = int(shared.argmax()), int(keeps.argmax())
        if keeps[heir] >= max(1, shared[donor]):
            return self._take(heir, Placement(heir, int(keeps[heir])))
        oldest = int(np.where(self._busy, np.iinfo(np.int64).max, self._used).argmin())
        own, lent = int(shared[oldest]), int(shared[donor])
        placement = Placement(oldest, lent, donor) if lent - own >= _COPY_PAYS else Placement(oldest, own)
        return self._take(oldest, placement)

    def _shared(self, prompt: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return, for each slot, how many leading tokens of `prompt` it holds validly."""
        differs = self._ids[:, : prompt.size + 1] != np.append(prompt, -2)
        found: npt.NDArray[np.int64] = np.minimum(differs.argmax(1), self._cached)
        return found

    def _take(self, slot: int, placement: Placement) -> Placement:
        if placement.donor is not None:
            self._ids[slot, : placement.cached] = self._ids[placement.donor, : placement.cached]
        self._cached[slot] = placement.cached
        self._busy[slot] = True
        return placement

    def record(self, rows: npt.NDArray[Any], positions: npt.NDArray[Any], ids: npt.NDArray[Any]) -> None:
        """Note that slots `rows` (B,) now hold `ids` (B, T) at `positions` (B, T); scratch positions are ignored."""
        self._ids[rows[:, None], positions] = ids

    def reach(self, rows: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        """Note that the first `ends` (B,) tokens of slots `rows` (B,) are valid."""
        self._cached[rows] = ends

    def release(self, slot: int) -> None:
        """Make a slot idle; what it holds may serve a later prompt."""
        self._clock += 1
        self._busy[slot] = False
        self._used[slot] = self._clock

    def forget(self) -> None:
        """Make nothing valid any more, as after a change of the weights; use is untouched."""
        self._cached[:] = 0
