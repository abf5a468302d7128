"""The rows of the cache: which tokens each one holds, whether it is in use, and which row a prompt gets.

Promises: the prefix that an assignment says is cached equals the prompt's first tokens; a busy row is never given away;
of idle rows, one that the prompt extends is taken as it is, else the least recently used is emptied. For a row whose
prompt an older one will soon hold, `leader` returns that one, so that what a group shares is computed once.
Does not know keys, values or models: it returns row numbers, and the caller moves the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_COPY_PAYS = 8
"""Fewest shared tokens for which copying a prefix between rows beats computing them again."""
_WAIT_PAYS = 32
"""Fewest shared tokens for which waiting until another row holds them beats computing them twice."""


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The row chosen for a prompt; its first `cached` tokens are valid once copied from `donor`, if any."""

    slot: int
    cached: int
    donor: int | None = None


class SlotTable:
    """Token ids, lengths, use and age of every row.

    `known` (rows,) counts a row's tokens, `cached` (rows,) those whose keys and values are valid; `busy` (rows,) says
    who is in use. They are read from outside and written here alone.
    """

    def __init__(self, slots: int, positions: int) -> None:
        self._ids: npt.NDArray[np.int64] = np.zeros((slots, positions + 1), np.int64)
        self.known: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self.cached: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self.busy: npt.NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self._used: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self._clock = 0

    def idle(self) -> int:
        """Return how many rows are free to be placed on."""
        return int(self.busy.size - self.busy.sum())

    def place(self, prompt: Sequence[int]) -> SlotAssignment:
        """Take a row for a prompt; at least one idle row and one token are needed. At most all but one is cached."""
        ids = np.asarray(prompt, np.int64)
        assignment = self._choose(ids[:-1])
        slot = assignment.slot
        self._ids[slot, : ids.size] = ids
        self.known[slot], self.cached[slot] = ids.size, assignment.cached
        self.busy[slot] = True
        self._used[slot] = self._tick()
        return assignment

    def _choose(self, prompt: npt.NDArray[np.int64]) -> SlotAssignment:
        shared = np.minimum(self._common(prompt), self.cached)
        keeps = np.where(~self.busy & (shared == self.cached), shared, -1)
        donor, heir = int(shared.argmax()), int(keeps.argmax())
        if keeps[heir] >= max(1, shared[donor]):
            return SlotAssignment(heir, int(keeps[heir]))
        oldest = int(np.where(self.busy, np.iinfo(np.int64).max, self._used).argmin())
        own, lent = int(shared[oldest]), int(shared[donor])
        return SlotAssignment(oldest, lent, donor) if lent - own >= _COPY_PAYS else SlotAssignment(oldest, own)

    def _common(self, prompt: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return, for each row, with how many leading tokens of `prompt` its own begin."""
        differs = self._ids[:, : prompt.size + 1] != np.append(prompt, -1)
        found: npt.NDArray[np.int64] = np.minimum(differs.argmax(1), self.known)
        return found

    def lacking(self) -> npt.NDArray[np.int64]:
        """Return, for each row, how many of its tokens its cache lacks; 0 for an idle one."""
        lacking: npt.NDArray[np.int64] = (self.known - self.cached) * self.busy
        return lacking

    def oldest_first(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return busy `rows` (B,) in the order in which they were taken."""
        ordered: npt.NDArray[Any] = rows[self._used[rows].argsort()]
        return ordered

    def leader(self, slot: int) -> tuple[int, int] | None:
        """Return an older busy row that will hold much of what `slot` still lacks, and how many of its tokens."""
        shared = self._common(self._ids[slot, : self.known[slot] - 1])
        shared[~self.busy | (self._used >= self._used[slot])] = 0
        longest = int(shared.max())
        if longest - self.cached[slot] < _WAIT_PAYS:
            return None
        return int(np.where(shared == longest, self._used, np.iinfo(np.int64).max).argmin()), longest

    def borrow(self, slot: int) -> SlotAssignment | None:
        """Let a busy row reuse the longest prefix another row holds; None where copying does not pay."""
        shared = np.minimum(self._common(self._ids[slot, : self.known[slot] - 1]), self.cached)
        donor = int(shared.argmax())
        if shared[donor] - self.cached[slot] < _COPY_PAYS:
            return None
        self.cached[slot] = shared[donor]
        return SlotAssignment(slot, int(shared[donor]), donor)

    def read(self, rows: npt.NDArray[Any], positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the ids (B, T) of `rows` (B,) at `positions` (B, T); 0 at the scratch position."""
        ids: npt.NDArray[np.int64] = self._ids[rows[:, None], positions]
        return ids

    def append(self, rows: npt.NDArray[Any], ids: npt.NDArray[np.int64]) -> None:
        """Note that `rows` (B,) go on with `ids` (B,), whose keys and values are not there yet."""
        self._ids[rows, self.known[rows]] = ids
        self.known[rows] += 1

    def reach(self, rows: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        """Note that the first `ends` (B,) tokens of `rows` (B,) are valid."""
        self.cached[rows] = ends

    def exchange(self, one: int, other: int) -> int:
        """Let two rows change places; return how many tokens of either are valid."""
        for column in (self._ids, self.known, self.cached, self.busy, self._used):
            column[[one, other]] = column[[other, one]]
        return int(self.cached[[one, other]].max())

    def release(self, slot: int) -> None:
        """Make a row idle; what it holds may serve a later prompt."""
        self.busy[slot] = False
        self._used[slot] = self._tick()

    def forget(self) -> None:
        """Make nothing valid any more, as after a change of the weights; use is untouched.

        Idle rows are all equally old then: where a prompt goes, and so which number it draws, depends on nothing
        before, and a run that is resumed here from a checkpoint goes on alike.
        """
        self.cached[:] = 0
        self._used[~self.busy] = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
