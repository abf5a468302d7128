"""Streams: how a batch's places are shared out among them, and how far each one got.

A place is a group (under `episodes` an episode). Without shares it goes to whoever comes first. With shares places are
dealt by deficit round robin: each stream is owed its share of one place more, and the place goes to the one that would
be owed a whole place first. What was given differs from what is owed by less than one place at every moment (earliest
pseudo-deadline first: Baruah, Cohen, Plaxton, Varvel, Algorithmica 15, 1996), and shares that divide a batch are exact
in it.

The *window* of places dealt out is the batch's, then those of batches rolled out ahead, then surplus ones. A batch is
made of each stream's own places, so it waits for a stream that plays nothing. New shares open a new account from the
next place on. A cursor counts a stream's groups played to their end (under `episodes` group_size episodes as one). Pure
bookkeeping: no clock, no waiting, no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from swarm.errors import InvalidRequest, JobConflict
from swarm.rollout.staleness import BatchPlace, BatchSelection
from swarm.rollout.task_sampler import TaskSampler
from swarm.store import StreamRow, TaskListRow
from swarm.wire import StreamStatus

MOST_CHARTED = 32
"""Streams with metrics of their own: names come from clients, and each is a curve in a tracker for ever."""
_ANYONE = ""
"""Whose places all are where streams have no shares."""
_FINEST = 1_000_000
"""Shares are read as fractions with denominators up to this, so that 0.4, 0.3 and 0.3 are exactly 4 : 3 : 3."""


class DeficitRoundRobin:
    """Deals places to streams by their shares; exact, in whole numbers (a place is `unit` of them)."""

    def __init__(self, shares: Mapping[str, float], deficits: Mapping[str, float]) -> None:
        largest = Fraction(max(shares.values()))
        parts = {
            name: (Fraction(share) / largest).limit_denominator(_FINEST) or Fraction(1, _FINEST)
            for name, share in sorted(shares.items())  # by name, so that ties fall the same way in every life
        }
        scale = lcm(*(part.denominator for part in parts.values()))
        self._part = {name: int(part * scale) for name, part in parts.items()}
        self._unit = sum(self._part.values())
        self._deficits = {name: round(Fraction(deficits.get(name, 0.0)) * self._unit) for name in parts}

    @property
    def shares(self) -> dict[str, float]:
        return {name: part / self._unit for name, part in self._part.items()}

    def deal(self) -> str:
        for name, part in self._part.items():
            self._deficits[name] += part
        chosen = min((name for name, deficit in self._deficits.items() if deficit > 0), key=self._latest)
        self._deficits[chosen] -= self._unit
        return chosen

    def deficits(self, undealt: Counter[str]) -> dict[str, float]:
        """Return what each stream would be owed, in places, had the last places not been dealt: `undealt` by stream."""
        count = sum(undealt[name] for name in self._deficits)
        return {
            name: (owed + undealt[name] * self._unit - count * self._part[name]) / self._unit
            for name, owed in self._deficits.items()
        }

    def _latest(self, name: str) -> tuple[int, int]:
        """Return how many more places may be dealt before the stream would be owed a whole one, then its turn."""
        return -((self._deficits[name] - self._unit) // self._part[name]), -self._deficits[name]


@dataclass(slots=True)
class _Stream:
    cursor: int = 0
    trained: int = 0
    ended: int = 0  # episodes since the cursor last moved, under the rule `episodes`


class Streams:
    """All streams of a training: `needed` places make a batch, `surplus` more are dealt out beforehand. `ahead` sets of
    how many batches the places may be taken at present; the others' are dealt out later."""

    def __init__(self, shares: Mapping[str, float], needed: int, surplus: int, episodes_per_turn: int) -> None:
        self._needed = needed
        self._surplus = surplus
        self._batches = 1
        self._turn = episodes_per_turn
        self._known: dict[str, _Stream] = {}
        self._order: dict[str, None] = {}
        self._round_robin: DeficitRoundRobin | None = None
        self._window: list[str] = []
        self._moved: set[str] = set()
        self.samplers: dict[str, TaskSampler] = {}
        """Where each stream that has a task list stands in it."""
        self.shares: Mapping[str, float] = {}
        """Each stream's part of each batch, between 0 and 1; empty where every stream comes as it comes."""
        if shares:
            self._deal_anew(shares, {}, ())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self._known, *self.shares}))

    @property
    def charted(self) -> tuple[str, ...]:
        """Streams that are measured each for itself, at most `MOST_CHARTED`: those with shares, then as they came. The
        same in every life of the server: a curve in a tracker that ends in the middle says nothing."""
        return tuple(dict.fromkeys([*self.shares, *self._order]))[:MOST_CHARTED]

    def note_begin(self, stream: str) -> None:
        self._order.setdefault(stream)

    def check(self, stream: str) -> None:
        if self.shares and stream not in self.shares:
            known = ", ".join(sorted(self.shares))
            raise InvalidRequest(f"expected one of the job's streams ({known}), found {stream!r}", param="stream")

    def set_ahead(self, batches: int) -> None:
        """Let the places of so many batches be taken from now on; those of a batch that is taken are gone."""
        self._batches = batches
        self._deal()

    def admits(self, stream: str, taken: Counter[str]) -> bool:
        if self._round_robin is None:
            return taken.total() < self._places
        return taken[stream] < self._window.count(stream)

    def all_taken(self, taken: Counter[str]) -> bool:
        if self._round_robin is None:
            return taken.total() >= self._places
        return not Counter(self._window) - taken

    def place(self, stream: str, slack: int = 0) -> BatchPlace:
        return BatchPlace(stream if self._round_robin is not None else _ANYONE, slack)

    def selection(self, alive: Iterable[BatchPlace] = ()) -> BatchSelection:
        """Return the next batch, to be filled; where age matters, `alive` are all places that are taken."""
        whole = range(max(1, self._batches))
        if self._round_robin is None:
            return BatchSelection([Counter({_ANYONE: self._needed}) for _ in whole], self._needed, alive)
        starts = [number * self._needed for number in whole]
        batches = [Counter(self._window[start : start + self._needed]) for start in starts]
        return BatchSelection(batches, self._needed, alive)

    def count_missing(self, done: Counter[str]) -> Counter[str]:
        """Return how many places of the next batch are not done, by stream; under "" where streams have no shares."""
        if self._round_robin is None:
            return Counter({_ANYONE: max(0, self._needed - done.total())})
        return Counter(self._window[: self._needed]) - done

    def take_batch(self, batch: Counter[str]) -> None:
        """The batch is taken, so many groups of each stream; its places are dealt out anew, for a batch to come."""
        for stream, count in batch.items():
            self._stream(stream).trained += count
        self._moved.update(self.names)
        self._window = self._window[self._needed :]
        self._deal()

    def find_sampler(self, stream: str, digest: str) -> TaskSampler:
        """Return the pass of a stream that plays the list with that digest; raise JobConflict where it does not."""
        found = self.samplers.get(stream)
        if found is None:
            raise JobConflict(f"stream {stream!r} has no task list yet; name its tasks first (POST /streams/tasks)")
        found.check(digest)
        return found

    def list_tasks(self, listed: TaskListRow) -> TaskSampler:
        """Give a stream its task list; the first pass goes on at its cursor, with what was played by name before."""
        self.samplers[listed.stream] = made = TaskSampler(listed, self._turn, self._stream(listed.stream).cursor)
        return made

    def count_group(self, stream: str) -> None:
        self._stream(stream).cursor += 1
        self._moved.add(stream)

    def count_episode(self, stream: str) -> None:
        found = self._stream(stream)
        found.ended += 1
        if found.ended == self._turn:
            found.ended, found.cursor = 0, found.cursor + 1
            self._moved.add(stream)

    def rows_with_shares(self, shares: Mapping[str, float]) -> list[StreamRow]:
        new = DeficitRoundRobin(shares, {}).shares
        return self._make_rows({*self.names, *new}, new, {})

    def set_shares(self, shares: Mapping[str, float], alive: Sequence[str]) -> None:
        """Deal all places anew that are not taken; `alive` are the streams of those that are."""
        for name in self.names:
            self._stream(name)  # it stays known without a share too
        self._moved.update(self.names)
        self._deal_anew(shares, {}, alive)

    def reclaim(self, taken: Counter[str]) -> None:
        """Deal the places anew that streams without a share have left."""
        left = Counter(self._window) - taken
        for stream in left.keys() - self.shares.keys():
            for _ in range(left[stream]):
                self._window.remove(stream)
        self._deal()

    def readmit(self, alive: Sequence[str]) -> None:
        """Give places to those that were read back of streams without a share; `alive` are all that were."""
        if self.shares and not self.shares.keys() >= set(alive):
            self._deal_anew(self.shares, {}, alive)

    def recover(
        self,
        moved: Sequence[StreamRow],
        job: Mapping[str, float],
        lists: Sequence[TaskListRow] = (),
        stream_order: Sequence[str] = (),
    ) -> None:
        """Go on from what was written; `job` holds the shares where none were written, `came` is the streams' order."""
        self._order = dict.fromkeys(stream_order)
        stood = {stream.name: stream for stream in moved}
        for stream in moved:
            self._known[stream.name] = _Stream(stream.cursor, stream.trained)
        for listed in lists:
            if (at := stood.get(listed.stream)) is None:
                self.list_tasks(listed)
            else:
                self.samplers[listed.stream] = TaskSampler(listed, self._turn, at.next_task_index, at.unfinished)
        shares = {stream.name: stream.share for stream in moved if stream.share is not None} or job
        if shares:
            self._deal_anew(shares, {stream.name: stream.credit for stream in moved}, ())

    def status(self, alive: Counter[str], unfinished: Mapping[str, Mapping[str, int]]) -> tuple[StreamStatus, ...]:
        names = sorted({*self.names, *alive})
        found = [(name, self._known.get(name, _Stream())) for name in names]
        return tuple(
            StreamStatus(
                name=name,
                share=self.shares.get(name),
                cursor=stream.cursor,
                groups_open=alive[name],
                groups_trained=stream.trained,
                unfinished=unfinished.get(name, {}),
            )
            for name, stream in found
        )

    def take_moved(self) -> list[StreamRow]:
        """Return where the streams stand that moved since the last call, as it is written down."""
        names, self._moved = self._moved, set()
        for stream, found in self.samplers.items():
            if found.moved:
                found.moved = False
                names.add(stream)
        return self._rows_of(names)

    def list_rows(self) -> list[StreamRow]:
        return self._rows_of(self.names)

    def _rows_of(self, names: Iterable[str]) -> list[StreamRow]:
        account = self._round_robin
        return self._make_rows(names, self.shares, {} if account is None else account.deficits(Counter(self._window)))

    def _make_rows(
        self, names: Iterable[str], shares: Mapping[str, float], deficits: Mapping[str, float]
    ) -> list[StreamRow]:
        rows = []
        for name in sorted(names):
            stream, found = self._known.get(name, _Stream()), self.samplers.get(name)
            progress = (0, ()) if found is None else (found.next_task_index, found.unfinished)
            row = StreamRow(name, shares.get(name), stream.cursor, stream.trained, deficits.get(name, 0.0), *progress)
            rows.append(row)
        return rows

    def _deal_anew(self, shares: Mapping[str, float], deficits: Mapping[str, float], alive: Sequence[str]) -> None:
        self._moved.update(shares)  # all shares are written together, so that a restart never finds a part of them
        self._round_robin = DeficitRoundRobin(shares, deficits)
        self.shares = self._round_robin.shares
        self._window = list(alive)
        self._deal()

    @property
    def _places(self) -> int:
        return self._batches * self._needed + self._surplus

    def _deal(self) -> None:
        if self._round_robin is not None:
            free = max(0, self._places - len(self._window))
            self._window += [self._round_robin.deal() for _ in range(free)]

    def _stream(self, name: str) -> _Stream:
        return self._known.setdefault(name, _Stream())
