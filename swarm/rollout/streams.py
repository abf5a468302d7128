"""Streams: how a batch's places and their tasks are shared out among them, and how far each one got.

A place is a group (under `episodes` an episode). Without shares all are of one stream, ANYONE. With shares places are
dealt by deficit round robin: the place goes to the stream that would be owed a whole one first (earliest
pseudo-deadline first: Baruah, Cohen, Plaxton, Varvel, Algorithmica 15, 1996), and shares that divide a batch are exact
in it. The *window* of places dealt out is the batch's, then those of batches rolled out ahead, then surplus ones. A
cursor counts a stream's groups played to their end (under `episodes` group_size episodes as one).

Staleness: a token of version v learned by weights of version w is w - v old; nothing older than S = `max_staleness` is
learned. A place is as old as its oldest token can be; its slack is how many batches may go before it. With V updates
done, W batches taken and B places a batch, at most (S + 1 + V) B places are ever given away (as in SkyRL).

Invariant: n(k), the alive places of slack at most k, never exceeds Q(k) = (k + 1) B. A place is given away with slack k
= S - (W - V); each batch takes at least n(k) - (Q(k) - B) <= B of those of slack at most k (the demands are nested),
after which every slack falls by one; all else only lowers n. Streams with shares keep it each for itself. Surplus
groups and late team decisions can still be too old: they are given up and counted, never trained.

A stream has one task list for ever. Turn t is task t modulo the list's length, with as many places as a group has
members, and is over once as many plays were ended. Free places of begun turns go first, in order, then the next turn:
in each pass every task is played once. A lost, aborted, fenced or dropped play is played again; one that ended with
nothing to train too, but only as often as its turn has places. A turn is skipped in this pass after MOST_FAILURES
failures of its agent, and as many more for each ended play, so that a breaking task holds nothing up.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import lcm

from swarm.errors import InvalidRequest, JobConflict
from swarm.store.tables import StreamRow, TaskListRow
from swarm.timelines import Node
from swarm.wire import StreamStatus


class BatchSelection:
    """Fills the next batch with what is done, place by place: each of a stream, with its slack. `batches` are the
    places of the next ones, by stream (at least one), `needed` is how many make a batch."""

    def __init__(self, batches: Sequence[Counter[str]], needed: int, alive: Iterable[tuple[str, int]]) -> None:
        by_slack: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for stream, slack in alive:
            by_slack[stream][slack] += 1
        self._missing = needed
        self._room = {stream: _room([batch[stream] for batch in batches], by_slack[stream]) for stream in batches[0]}

    @property
    def whole(self) -> bool:
        return self._missing == 0

    def fits(self, stream: str, slack: int) -> bool:
        room = self._room.get(stream)
        return room is not None and slack >= 0 and all(room[: slack + 1])

    def take(self, stream: str, slack: int) -> bool:
        if not self.fits(stream, slack):
            return False
        room, upto = self._room[stream], slack + 1
        room[:upto] = [left - 1 for left in room[:upto]]
        self._missing -= 1
        return True


def _room(batches: list[int], alive: Counter[int]) -> list[int]:
    at_most = accumulate(alive[slack] for slack in range(len(batches)))
    later = accumulate(batches[1:], initial=0)
    reserved = accumulate((max(0, n - fit) for n, fit in zip(at_most, later, strict=True)), max)
    return [batches[0], *(max(0, batches[0] - needed) for needed in reserved)]


class EpisodeAges:
    """How old the alive episodes are; `most` is the job's max_staleness, and where it is 0 nothing has an age."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.bounded = most > 0
        self._oldest: dict[str, int] = {}
        self.version = 0
        """Updates done."""
        self.learning = False
        """A batch was taken, and its update is not done."""

    def count_batches(self, steps: int) -> int:
        """Return how many batches' places may be taken: no more than the job's `steps` want."""
        return max(0, min(self.version + self._most + 1, steps) - self._next) if self.bounded else 1

    def begin(self, episode: str) -> None:
        """An episode began: its tokens will be no older than the weights that serve now."""
        if self.bounded:
            self._oldest[episode] = self.version

    def record_versions(self, episode: str, nodes: Sequence[Node]) -> None:
        if self.bounded:
            versions = [version for node in nodes if node.trained for version in node.versions]
            self._oldest[episode] = min(versions, default=self.version)

    def forget(self, episode: str) -> None:
        self._oldest.pop(episode, None)

    def slack(self, episodes: Iterable[str]) -> int:
        """Return how many batches may still go before these episodes are learned; negative: they are too old."""
        if not self.bounded:
            return 0
        return self._most - (self._next - min(self._oldest[episode] for episode in episodes))

    @property
    def too_old(self) -> set[str]:
        oldest = self._next - self._most
        return {episode for episode, version in self._oldest.items() if version < oldest}

    @property
    def _next(self) -> int:
        return self.version + self.learning


MOST_CHARTED = 32
"""Streams with metrics of their own: names come from clients, and each is a curve in a tracker for ever."""
ANYONE = ""
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
        self.shares = {name: part / self._unit for name, part in self._part.items()}
        self._deficits = {name: round(Fraction(deficits.get(name, 0.0)) * self._unit) for name in parts}

    def deal(self) -> str:
        for name, part in self._part.items():
            self._deficits[name] += part

        def latest(name: str) -> tuple[int, int]:
            """Return how many more places may be dealt before the stream would be owed a whole one, then its turn."""
            return -((self._deficits[name] - self._unit) // self._part[name]), -self._deficits[name]

        chosen = min((name for name, deficit in self._deficits.items() if deficit > 0), key=latest)
        self._deficits[chosen] -= self._unit
        return chosen

    def deficits(self, undealt: Counter[str]) -> dict[str, float]:
        """Return what each stream would be owed, in places, had the last places not been dealt: `undealt` by stream."""
        count = sum(undealt[name] for name in self._deficits)
        return {
            name: (owed + undealt[name] * self._unit - count * self._part[name]) / self._unit
            for name, owed in self._deficits.items()
        }


MOST_FAILURES = 3
"""Failed plays after which a turn is skipped, as many again for each of its plays that was ended."""


@dataclass(slots=True)
class _TaskProgress:
    """How many of its plays are open, ended, had nothing to train and count not, and failed by their agent."""

    open: int = 0
    ended: int = 0
    empty: int = 0
    failed: int = 0


class TaskSampler:
    """Where one stream stands in its task list; `plays` are those of each task in a pass."""

    def __init__(
        self, listed: TaskListRow, plays: int, next_task_index: int = 0, unfinished: Iterable[int] = ()
    ) -> None:
        self.listed = listed
        self.next_task_index = next_task_index
        """The next one to be begun."""
        self.moved = True
        """What is written of it has changed."""
        self._ids = listed.ids
        self._plays = plays
        self._begun = {begun: _TaskProgress() for begun in sorted(unfinished)}
        self._lacking = set(self._begun)

    @property
    def unfinished(self) -> tuple[int, ...]:
        return tuple(sorted(self._begun))

    @property
    def lacking(self) -> Sequence[int]:
        return sorted(self._lacking)

    def task_at(self, task_index: int) -> str:
        return self._ids[task_index % len(self._ids)]

    def check(self, digest: str, count: int | None = None) -> None:
        if digest != self.listed.digest:
            others = "others" if count is None else f"{count} others"
            raise JobConflict(
                f"stream {self.listed.stream!r} plays {len(self._ids)} tasks (digest {self.listed.digest[:12]}), and "
                f"this client has {others} (digest {digest[:12]}); play the stream's own tasks, or play these in a "
                "stream of their own (stream=NAME, or --stream NAME)"
            )

    def begin_play(self, task_index: int) -> bool:
        """A play of a turn begins; return False, and take no notice, where the turn is over."""
        if task_index == self.next_task_index:
            self._begun[task_index] = _TaskProgress()
            self._lacking.add(task_index)
            self.next_task_index = task_index + 1
            self.moved = True
        self.count(task_index, open=1)
        return task_index in self._begun

    def count(self, task_index: int, *, open: int = 0, ended: int = 0, empty: int = 0, failed: int = 0) -> bool:
        """Count what became of plays of a turn that is not over; return whether it is skipped now, as its agent failed.
        `empty` ones ended with nothing to train: as many as the turn has places are played again, more count as ended.
        """
        progress = self._begun.get(task_index)
        if progress is None:
            return False
        again = min(empty, self._plays - progress.empty)
        progress.open += open
        progress.failed += failed
        progress.empty += again
        progress.ended += ended + empty - again
        skipped = failed > 0 and progress.failed >= MOST_FAILURES * (1 + progress.ended)
        if skipped or progress.ended >= self._plays:
            del self._begun[task_index]
            self._lacking.discard(task_index)
            self.moved = True
        elif progress.open + progress.ended < self._plays:
            self._lacking.add(task_index)
        else:
            self._lacking.discard(task_index)
        return skipped


@dataclass(slots=True)
class _Progress:
    """Groups played to their end, groups trained, and under `episodes` those that ended since the cursor moved."""

    cursor: int = 0
    trained: int = 0
    ended: int = 0


class Streams:
    """All streams of a training: `needed` places make a batch, `surplus` more are dealt out beforehand. `ahead` sets of
    how many batches the places may be taken at present; the others' are dealt out later."""

    def __init__(self, shares: Mapping[str, float], needed: int, surplus: int, episodes_per_turn: int) -> None:
        self._needed = needed
        self._surplus = surplus
        self._batches = 1
        self._turn = episodes_per_turn
        self._progress: dict[str, _Progress] = {}
        self._round_robin: DeficitRoundRobin | None = None
        self._window: list[str] = []
        self._moved: set[str] = set()
        self.samplers: dict[str, TaskSampler] = {}
        """Where each stream that has a task list stands in it."""
        self.shares: Mapping[str, float] = {}
        """Each stream's part of each batch, between 0 and 1; empty where every stream comes as it comes."""
        self._deal_anew(shares, {}, ())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self._progress, *self.shares}))

    @property
    def charted(self) -> tuple[str, ...]:
        """Streams that are measured each for itself, the same in every life: those with shares, then by name."""
        return tuple(dict.fromkeys([*self.shares, *sorted(self._progress)]))[:MOST_CHARTED]

    def check(self, stream: str) -> None:
        if self.shares and stream not in self.shares:
            known = ", ".join(sorted(self.shares))
            raise InvalidRequest(f"expected one of the job's streams ({known}), found {stream!r}", param="stream")

    def set_ahead(self, batches: int) -> None:
        """Let the places of so many batches be taken from now on; those of a batch that is taken are gone."""
        self._batches = batches
        self._deal()

    def admits(self, stream: str, taken: Counter[str]) -> bool:
        owner = self.owner(stream)
        return self._by_owner(taken)[owner] < self._dealt[owner]

    def all_taken(self, taken: Counter[str]) -> bool:
        return not self._dealt - self._by_owner(taken)

    def selection(self, alive: Iterable[tuple[str, int]] = ()) -> BatchSelection:
        """Return the next batch, to be filled; where age matters, `alive` are all places that are taken."""
        starts = range(0, max(1, self._batches) * self._needed, self._needed)
        batches = [Counter(self._window[start : start + self._needed]) for start in starts]
        return BatchSelection(batches, self._needed, alive)

    def count_missing(self, done: Counter[str]) -> Counter[str]:
        """Return how many places of the next batch are not done, by stream; under "" where streams have no shares."""
        return Counter(self._window[: self._needed]) - self._by_owner(done)

    def take_batch(self, batch: Counter[str]) -> None:
        """The batch is taken, so many groups of each stream; its places are dealt out anew, for a batch to come."""
        for stream, count in batch.items():
            self._of(stream).trained += count
        self._moved.update(self.names)
        self._window = self._window[self._needed :]
        self._deal()

    def find_sampler(self, stream: str, digest: str) -> TaskSampler:
        """Return the pass of a stream that plays the list with that digest; raise JobConflict where it does not."""
        sampler = self.samplers.get(stream)
        if sampler is None:
            raise JobConflict(f"stream {stream!r} has no task list yet; name its tasks first (POST /streams/tasks)")
        sampler.check(digest)
        return sampler

    def list_tasks(self, listed: TaskListRow) -> None:
        """Give a stream its task list; the first pass goes on at its cursor, with what was played by name before."""
        self.samplers[listed.stream] = TaskSampler(listed, self._turn, self._of(listed.stream).cursor)

    def count_group(self, stream: str) -> None:
        self._of(stream).cursor += 1
        self._moved.add(stream)

    def count_episode(self, stream: str) -> None:
        progress = self._of(stream)
        progress.ended += 1
        if progress.ended == self._turn:
            progress.ended = 0
            self.count_group(stream)

    def set_shares(self, shares: Mapping[str, float], alive: Sequence[str]) -> None:
        """Deal all places anew that are not taken; `alive` are the streams of those that are."""
        for name in self.names:
            self._of(name)  # it stays known without a share too
        self._moved.update(self.names)
        self._deal_anew(shares, {}, alive)

    def reclaim(self, taken: Counter[str]) -> None:
        """Deal the places anew that streams without a share have left."""
        left = self._dealt - taken if self.shares else Counter[str]()
        for stream in left.keys() - self.shares.keys():
            for _ in range(left[stream]):
                self._window.remove(stream)
        self._deal()

    def readmit(self, alive: Sequence[str]) -> None:
        """Give places to those that were read back of streams without a share; `alive` are all that were."""
        if self.shares and not self.shares.keys() >= set(alive):
            self._deal_anew(self.shares, {}, alive)

    def recover(self, rows: Sequence[StreamRow], job: Mapping[str, float], lists: Sequence[TaskListRow] = ()) -> None:
        """Go on from what was written; `job` holds the shares where none were written."""
        stood = {row.name: row for row in rows}
        self._progress |= {row.name: _Progress(row.cursor, row.trained) for row in rows}
        for listed in lists:
            if (at := stood.get(listed.stream)) is None:
                self.list_tasks(listed)
            else:
                self.samplers[listed.stream] = TaskSampler(listed, self._turn, at.next_task_index, at.unfinished)
        shares = {row.name: row.share for row in rows if row.share is not None} or job
        self._deal_anew(shares, {row.name: row.credit for row in rows}, ())

    def status(self, alive: Counter[str], unfinished: Mapping[str, Mapping[str, int]]) -> tuple[StreamStatus, ...]:
        streams = ((name, self._progress.get(name, _Progress())) for name in sorted({*self.names, *alive}))
        return tuple(
            StreamStatus(
                name=name,
                share=self.shares.get(name),
                cursor=progress.cursor,
                groups_open=alive[name],
                groups_trained=progress.trained,
                unfinished=unfinished.get(name, {}),
            )
            for name, progress in streams
        )

    def take_moved(self) -> list[StreamRow]:
        names, self._moved = self._moved, set()
        for stream, sampler in self.samplers.items():
            if sampler.moved:
                sampler.moved = False
                names.add(stream)
        return self.list_rows(names)

    def list_rows(
        self, names: Iterable[str] | None = None, shares: Mapping[str, float] | None = None
    ) -> list[StreamRow]:
        credit: Mapping[str, float] = {}
        if shares is not None:
            shares = DeficitRoundRobin(shares, {}).shares
            names = {*self.names, *shares}
        elif self._round_robin is not None:
            credit = self._round_robin.deficits(self._dealt)
        rows = []
        for name in sorted(self.names if names is None else names):
            progress, sampler = self._progress.get(name, _Progress()), self.samplers.get(name)
            standing = (0, ()) if sampler is None else (sampler.next_task_index, sampler.unfinished)
            share = (self.shares if shares is None else shares).get(name)
            rows.append(StreamRow(name, share, progress.cursor, progress.trained, credit.get(name, 0.0), *standing))
        return rows

    def owner(self, stream: str) -> str:
        return stream if self._round_robin is not None else ANYONE

    def _by_owner(self, counts: Counter[str]) -> Counter[str]:
        return counts if self._round_robin is not None else Counter({ANYONE: counts.total()})

    def _deal_anew(self, shares: Mapping[str, float], deficits: Mapping[str, float], alive: Sequence[str]) -> None:
        self._moved.update(shares)  # all shares are written together, so that a restart never finds a part of them
        self._round_robin = DeficitRoundRobin(shares, deficits) if shares else None
        self.shares = self._round_robin.shares if self._round_robin is not None else {}
        self._window = list(alive)
        self._deal()

    def _deal(self) -> None:
        places = self._batches * self._needed + self._surplus
        if self._round_robin is None:
            self._window = [ANYONE] * places
        else:
            self._window += [self._round_robin.deal() for _ in range(places - len(self._window))]
        self._dealt = Counter(self._window)

    def _of(self, name: str) -> _Progress:
        return self._progress.setdefault(name, _Progress())
