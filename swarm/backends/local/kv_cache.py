"""The key-value cache: its shape, its rows, and which prompt gets which row.

One row per sequence, one position per token; padded positions go to a scratch position past the end that no mask
admits. A batch over neighbouring rows is a view and copies nothing (`exchange` moves rows). It stands in for a
`transformers` Cache: a layer given a 4D mask needs `update` alone.

An assignment's cached prefix equals the prompt's first tokens; of idle rows one that the prompt extends is taken, else
the least recently used is emptied. The shape is measured by feeding one token (on the meta device at no cost).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.rendering.messages import BackendError

_COPY_PAYS = 8
"""Fewest shared tokens for which copying a prefix between rows beats computing them again."""
_WAIT_PAYS = 32
"""Fewest shared tokens for which waiting until another row holds them beats computing them twice."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, of many digits: what digests of ids are powers of."""


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The row chosen for a prompt; its first `cached` tokens are valid once copied from `donor`, if any."""

    slot: int
    cached: int
    donor: int | None = None


class SlotTable:
    """Token ids, lengths, use and age of every row. `known` (rows,) counts a row's tokens, `cached` (rows,) those whose
    keys and values are valid; `busy` (rows,) says who is in use. They are read from outside and written here alone."""

    def __init__(self, slots: int, positions: int) -> None:
        self._ids: npt.NDArray[np.int64] = np.zeros((slots, positions + 1), np.int64)
        self.known: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self.cached: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self.busy: npt.NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self._used: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self._digests: npt.NDArray[np.uint64] = np.zeros(slots, np.uint64)
        """Of each row's ids: those of equal ids are equal."""
        self._powers = np.multiply.accumulate(np.full(positions + 1, _FACTOR))
        self._clock = 0

    def place(self, prompt: Sequence[int]) -> SlotAssignment:
        """Take a row for a prompt; at least one idle row and one token are needed. At most all but one is cached."""
        ids = np.asarray(prompt, np.int64)
        assignment = self._choose(ids[:-1])
        slot = assignment.slot
        self._ids[slot, : ids.size] = ids
        self._digests[slot] = ids.astype(np.uint64) @ self._powers[: ids.size]
        self.known[slot], self.cached[slot] = ids.size, assignment.cached
        self.busy[slot] = True
        self._used[slot] = self._tick()
        return assignment

    def _choose(self, prompt: npt.NDArray[np.int64]) -> SlotAssignment:
        shared = np.minimum(self._common_prefixes(prompt), self.cached)
        keeps = np.where(~self.busy & (shared == self.cached), shared, -1)
        donor, heir = int(shared.argmax()), int(keeps.argmax())
        if keeps[heir] >= max(1, shared[donor]):
            return SlotAssignment(heir, int(keeps[heir]))
        oldest = int(np.where(self.busy, np.iinfo(np.int64).max, self._used).argmin())
        own, lent = int(shared[oldest]), int(shared[donor])
        return SlotAssignment(oldest, lent, donor) if lent - own >= _COPY_PAYS else SlotAssignment(oldest, own)

    def _common_prefixes(self, prompt: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        differs = self._ids[:, : prompt.size + 1] != np.append(prompt, -1)
        found: npt.NDArray[np.int64] = np.minimum(differs.argmax(1), self.known)
        return found

    def count_missing(self) -> npt.NDArray[np.int64]:
        """Return, for each row, how many of its tokens its cache lacks; 0 for an idle one."""
        lacking: npt.NDArray[np.int64] = (self.known - self.cached) * self.busy
        return lacking

    def sort_by_age(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        ordered: npt.NDArray[Any] = rows[self._used[rows].argsort()]
        return ordered

    def find_leader(self, slot: int) -> tuple[int, int] | None:
        """Return an older busy row that will hold much of what `slot` still lacks, and how many of its tokens."""
        if self.known[slot] - 1 - self.cached[slot] < _WAIT_PAYS:
            return None
        shared = self._common_prefixes(self._ids[slot, : self.known[slot] - 1])
        shared[~self.busy | (self._used >= self._used[slot])] = 0
        longest = int(shared.max())
        if longest - self.cached[slot] < _WAIT_PAYS:
            return None
        return int(np.where(shared == longest, self._used, np.iinfo(np.int64).max).argmin()), longest

    def borrow(self, slot: int) -> SlotAssignment | None:
        """Let a busy row reuse the longest prefix another row holds; None where copying does not pay."""
        shared = np.minimum(self._common_prefixes(self._ids[slot, : self.known[slot] - 1]), self.cached)
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
        self._digests[rows] += ids.astype(np.uint64) * self._powers[self.known[rows]]
        self.known[rows] += 1

    def find_twins(self, rows: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """Return of `rows` (B,), which are about to be fed their next `lengths` (B,), the places of those that differ,
        ascending (U,), and for each row the place there of the one that has its ids, cached and fed alike (B,)."""
        alike = np.stack([self.known[rows], self.cached[rows], lengths])
        _, first, of = np.unique(
            self._digests[rows] + self._powers[:3] @ alike.astype(np.uint64), return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        places, of = first[order], np.argsort(order)[of]
        later = np.flatnonzero(places[of] != np.arange(len(rows)))
        if later.size:
            earlier, ends = places[of[later]], alike[0, later]
            one, other = (self._ids[rows[each], : ends.max()] for each in (earlier, later))
            differ = (one != other) & (np.arange(ends.max()) < ends[:, None])
            if differ.any() or (alike[:, earlier] != alike[:, later]).any():
                return np.arange(len(rows)), np.arange(len(rows))  # digests that collide
        return places, of

    def exchange(self, one: int, other: int) -> int:
        for column in (self._ids, self.known, self.cached, self.busy, self._used, self._digests):
            column[[one, other]] = column[[other, one]]
        return int(self.cached[[one, other]].max())

    def release(self, slot: int) -> None:
        """Make a row idle; what it holds may serve a later prompt."""
        self.busy[slot] = False
        self._used[slot] = self._tick()

    def forget(self) -> None:
        """Make nothing valid, as after a change of weights. Idle rows are equally old then: a resumed run is alike."""
        self.cached[:] = 0
        self._used[~self.busy] = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Layers, heads that have keys and values of their own, and the widths of a head's key and value."""

    layers: int
    heads: int
    key_width: int
    value_width: int

    @property
    def numbers(self) -> int:
        return self.layers * self.heads * (self.key_width + self.value_width)


@torch.no_grad()
def measure_cache_shape(model: Any) -> CacheShape:
    """Return the shape of `model`'s cache; raise BackendError where that is not keys and values of every layer."""
    weight, cache = model.get_input_embeddings().weight, _ShapeRecorder()
    with torch.device(weight.device):
        zero = torch.zeros(1, 1, dtype=torch.long)
        mask = torch.zeros(1, 1, 1, 1, dtype=weight.dtype)
        try:
            model(input_ids=zero, attention_mask=mask, position_ids=zero, past_key_values=cache, use_cache=True)
        except Exception as error:
            if not weight.is_meta or not cache.shapes:
                raise BackendError(
                    f"expected a model that reads on from keys and values alone, found that {model.config.model_type} "
                    f"does not ({type(error).__name__}: {error}): choose another model"
                ) from error
            layers = model.config.get_text_config(decoder=True).num_hidden_layers  # experts do not run on shapes alone
            cache.shapes |= dict.fromkeys(range(layers), cache.shapes[0])
    found = set(cache.shapes.values())
    if sorted(cache.shapes) != list(range(len(cache.shapes))) or len(found) != 1:
        raise BackendError(
            f"expected a model that keeps keys and values of the same shape in every layer, found that "
            f"{model.config.model_type} keeps {sorted(found) or 'none'}: choose another model"
        )
    heads, key_width, value_width = found.pop()
    return CacheShape(len(cache.shapes), heads, key_width, value_width)


def slot_bytes(shape: CacheShape, dtype: torch.dtype, positions: int) -> int:
    return shape.numbers * (positions + 1) * dtype.itemsize


def count_slots(shape: CacheShape, dtype: torch.dtype, positions: int, limit: int, wanted: int) -> int:
    """Return how many rows of `positions`, at most `wanted`, fit in `limit` bytes; raise BackendError if none does."""
    needed = slot_bytes(shape, dtype, positions)
    if limit < needed:
        raise BackendError(
            f"a sequence of max_context {positions} takes {needed:,} bytes of key-value cache and kv_cache_bytes "
            f"allows {limit:,}: set kv_cache_bytes to {needed:,} or more, or a shorter max_context"
        )
    return min(wanted, limit // needed)


class _ShapeRecorder:
    """A cache that records (heads, key width, value width) by layer and stores no tensor."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.shapes[layer] = keys.shape[1], keys.shape[3], values.shape[3]
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0


_ROUND = 16


class SlotCache:
    """Keys, and values, (layers, rows, heads, positions + 1, width) each; the last position is scratch. A forward is
    prepared by `bind` and then calls `update` in every layer. For neighbouring rows the history is a view with strides
    (heads * (positions + 1) * width, (positions + 1) * width, width, 1): its first two dimensions flatten for free."""

    def __init__(self, shape: CacheShape, slots: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        self.scratch = positions
        sizes = (shape.layers, slots, shape.heads, positions + 1)
        self._memory = [_zeros((*sizes, width), dtype, device) for width in (shape.key_width, shape.value_width)]
        self._lines = _split_layers(memory.view(shape.layers, -1, memory.shape[-1]) for memory in self._memory)
        """All positions of a layer's keys, then of its values, one below the other."""
        starts = torch.arange(slots * shape.heads, device=device).view(slots, shape.heads, 1)
        self._starts = starts * (positions + 1)
        """Where each row's heads begin in a layer's lines, (rows, heads, 1)."""
        self._columns = torch.arange(positions, device=device)
        self._never = torch.tensor(-torch.inf, dtype=dtype, device=device)
        self._flat = self._columns
        self._gathered: Tensor | None = None
        self._history: Sequence[Tensor] = ()

    def bind(self, rows: npt.NDArray[np.int64], positions: Tensor, end: int) -> Tensor:
        """Aim the next forward at `rows` (B,) and `positions` (B, T); return its mask (B, 1, T, S), added to scores.
        `end` is one past the greatest real position; S is `end`, rounded up to spare kernels odd shapes."""
        seen = min(self.scratch, -(-end // _ROUND) * _ROUND)
        first, last = int(rows[0]), int(rows[0]) + len(rows)
        if (rows == np.arange(first, last)).all():
            self._gathered, taken, starts = None, slice(first, last), self._starts[first:last]
        else:
            self._gathered, taken = torch.from_numpy(rows).to(positions.device), slice(None)
            starts = self._starts[self._gathered]
        self._history = _split_layers(memory[:, taken, :, :seen] for memory in self._memory)
        self._flat = (starts + positions[:, None]).flatten()
        return torch.where(self._columns[:seen] > positions[:, None, :, None], self._never, 0.0)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values (B, heads, T, width); return the rows' whole history (B, heads, S, width)."""
        return self._swap(2 * layer, keys), self._swap(2 * layer + 1, values)

    def _swap(self, place: int, fresh: Tensor) -> Tensor:
        self._lines[place].index_copy_(0, self._flat, fresh.flatten(0, 2))
        history = self._history[place]
        return history if self._gathered is None else history.index_select(0, self._gathered)

    def copy(self, source: int, target: int, length: int) -> None:
        for memory in self._memory:
            memory[:, target, :, :length] = memory[:, source, :, :length]

    def spread(self, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], positions: Tensor) -> None:
        """Copy what rows `sources` (C,) hold at `positions` (C, T) to rows `targets` (C,)."""
        one, other = (torch.from_numpy(rows)[:, None].to(positions.device) for rows in (sources, targets))
        for memory in self._memory:
            memory[:, other, :, positions] = memory[:, one, :, positions]

    def wipe(self) -> None:
        for memory in self._memory:
            memory.zero_()

    def exchange(self, one: int, other: int, length: int) -> None:
        kept = [memory[:, one, :, :length].clone() for memory in self._memory]
        self.copy(other, one, length)
        for memory, moved in zip(self._memory, kept, strict=True):
            memory[:, other, :, :length] = moved

    def get_seq_length(self, *_: Any) -> int:
        return 0  # positions are given to the model


def _zeros(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros that on a CPU take memory page by page, once they are written: most rows stay far from full."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    return torch.frombuffer(mmap(-1, prod(sizes) * dtype.itemsize), dtype=dtype).view(sizes)


def _split_layers(memories: Iterable[Tensor]) -> Sequence[Tensor]:
    return list(chain.from_iterable(zip(*(memory.unbind() for memory in memories), strict=True)))
