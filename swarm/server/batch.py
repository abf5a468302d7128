"""Groups and the batch rule: which episodes make a step.

An episode joins a group of its task and stream that has a place free, else it opens a new one where its stream still
has a place. What a batch is, by the job's `batch_rule`:

- `groups`: episodes_per_step / group_size groups, each with exactly group_size ended episodes. The first to be whole
  make the batch.
- `varied_groups`: the same, but a group that is whole and whose rewards are all equal (compared as the exact numbers
  that were sent) is filtered out at once, counted as drop_constant_group, and its place is free again.
- `episodes`: the first episodes_per_step to end, of whatever tasks. Those of one task are one group, of any size.

Over-full: no group ever gets more than group_size members (except under `episodes`, where groups have no size). Where
a task is asked for again while its group is full, a second group of it begins.
Turns: a client that leaves the task to the server gets the next place of the stream's task list; `swarm.server.passes`
counts them. A group has the turn it was begun for, and who joins it by the task's name plays for that turn too; under
`episodes` the episodes have turns, and groups have none.
Surplus: `surplus_groups` more places (under `episodes`: times group_size) are given away than a batch takes. What is
whole or open beyond the batch stays, and what is whole comes first in the next batch.
Staleness: with a `max_staleness` S of 1 or more, S batches are rolled out beyond the next one. It waits for what would
become too old; what is too old all the same is dropped (drop_stale). See `swarm.server.staleness`.
Partial: an episode that is given up frees its place. A group that lacks members and has none open or prepared is
orphaned; where it was not touched for lease_ttl_s it is dropped (drop_partial_group), so that a dead client never
holds a step up for ever, and sooner where nothing is played and those in line find no room.
Bytes: ended episodes hold at most `pool_bytes` of captured tokens; beyond it the oldest are dropped
(drop_pool_bytes) and their places are free again. Once a whole batch's worth was dropped so since the last batch, the
bound is too small for this job, and `starved` says so.

Nothing is dropped to make a batch divisible. Pure bookkeeping: no clock but the injected one, no waiting, no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swarm.job import Job
from swarm.server.group import Group, bytes_of
from swarm.server.passes import Pass
from swarm.server.staleness import Ages, Place, Selection
from swarm.server.streams import Streams
from swarm.store import Sample, TasksListed

_UNDONE = frozenset({"partial_group", "pool_bytes", "stale"})
"""Why an episode is dropped whose group is not whole, and which is played again for it (but not under `episodes`)."""
_EMPTY = frozenset({"no_calls", "no_trained_calls"})
"""Why one is dropped that ended with nothing to train."""


@dataclass(slots=True)
class _Look:
    """Places taken by stream, groups by task and stream, and groups by turn and stream."""

    taken: Counter[str] = field(default_factory=Counter)
    playing: dict[tuple[str, str], list[Group]] = field(default_factory=dict)
    turns: dict[tuple[int, str], Group] = field(default_factory=dict)


class Groups:
    """The groups that are alive: those of the present step, and what is left over for the next."""

    def __init__(self, job: Job, clock: Callable[[], float]) -> None:
        self._rule = job.batch_rule
        self._loose = job.batch_rule == "episodes"
        self._size = job.group_size
        self._idle_s = job.lease_ttl_s
        self._most_bytes = job.pool_bytes
        self._batch_episodes = job.episodes_per_step
        self._clock = clock
        unit = job.group_size if self._loose else 1
        self._needed = needed = job.episodes_per_step if self._loose else job.tasks_per_step
        self._steps = job.steps
        self._ages = Ages(job.max_staleness)
        self.streams = Streams(job.streams, needed, job.surplus_groups * unit, job.group_size)
        self.streams.ahead(self._ages.batches(self._steps))
        self._alive: list[Group] = []
        self._of: dict[str, Group] = {}
        self._turns_of: dict[str, int] = {}
        self._waiting: dict[str, Sample] = {}  # ended, oldest first
        self._seen: _Look | None = None
        self._bytes = 0
        self.taken_bytes = 0
        """Bytes that were held when the last batch was taken."""
        self._starved = 0
        self._turns = 0
        self.named = 0
        """Groups ever named; a name is never used again."""

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._alive))

    @property
    def full(self) -> bool:
        """Every place is taken, or a batch is there already, or one would be that does not wait for older places."""
        if self.complete:
            return True
        if self._ages.bounded and self._enough and self._chosen(self.streams.selection())[0].whole:
            return True
        return self.streams.all_taken(self.taken) and (self._loose or all(len(g) == self._size for g in self._alive))

    @property
    def complete(self) -> bool:
        """A batch is there."""
        return self._enough and self._chosen()[0].whole

    @property
    def _enough(self) -> bool:
        """As much is done as a batch needs: whoever looks at every change need not choose before that."""
        return len(self._done()) >= self._needed

    @property
    def awaited(self) -> set[str]:
        """Open episodes that a batch which is full, but not there, waits for."""
        if not self._ages.bounded:
            return self._of.keys() - self._waiting.keys()
        selection = self._chosen()[0]
        waited = [unit for unit in self._units() if selection.fits(self._place(*unit))]
        return {episode for group, episodes in waited for episode in episodes if episode in group.open}

    @property
    def collected(self) -> int:
        """Ended episodes waiting for their batch."""
        return len(self._waiting)

    @property
    def held_up(self) -> bool:
        """The batch waits only for streams that play nothing."""
        return self.streams.held_up(self.done, self.taken)

    def lend(self) -> None:
        """Give the places of streams that play nothing to those that come."""
        self.streams.lend(self.done)

    @property
    def bytes(self) -> int:
        """Bytes of captured tokens of the ended episodes (by the accounting of `bytes_of`)."""
        return self._bytes

    @property
    def taken(self) -> Counter[str]:
        """Places that are taken, by stream."""
        return self._looked().taken

    @property
    def done(self) -> Counter[str]:
        """Places whose episodes have all ended, by stream."""
        return Counter(unit.stream for unit in self._done())

    @property
    def starved(self) -> str | None:
        """Why no batch will ever fit into `pool_bytes`, or None."""
        if self._starved < self._batch_episodes:
            return None
        return (
            f"pool_bytes is too small: {self._starved} ended episodes were dropped to stay within "
            f"{self._most_bytes} bytes before one batch of {self._batch_episodes} was there; give the job a larger "
            "pool_bytes, or fewer episodes per step"
        )

    def room(self, task_id: str, stream: str = "default") -> Group | None:
        """Return the group an episode may join now (a new one is not kept before `join`), or None."""
        admits = self.streams.admits(stream, self.taken)
        for group in self._looked().playing.get((task_id, stream), ()):
            if self._has_place(group, admits):
                return group
        return self._new(task_id, stream) if admits else None

    def next_room(self, stream: str, digest: str) -> tuple[Group, int] | None:
        """Return the group, and its turn, of the next place of the stream's task list that can be had now, or None.

        The group is not kept before `join`. Raises JobConflict where the stream has another list.
        """
        found, admits = self.streams.passes.wanted(stream, digest), self.streams.admits(stream, self.taken)
        for turn in (*found.lacking, found.turn):
            group = self._begun_for(stream, turn, found.task(turn))
            if group is not None and self._has_place(group, admits):
                return group, turn
            if group is None and admits:
                made = self._new(found.task(turn), stream)
                made.turn = None if self._loose else turn
                return made, turn
        return None

    def list_tasks(self, listed: TasksListed) -> None:
        """Give a stream its task list; groups of former clients that lack members get turns of their tasks."""
        self._adopt(listed.stream, self.streams.list_tasks(listed).adopt)

    def adopt_again(self) -> None:
        """Give restored groups that began without a turn those that were theirs before."""
        for stream in self.streams.names:
            if (found := self.streams.passes.of(stream)) is not None:
                self._adopt(stream, found.untouched)

    def count_played(self, played: Mapping[tuple[str, int, str], int]) -> None:
        """Count plays of a former life that wait no more, by stream, turn and why they were dropped."""
        for (stream, turn, reason), plays in played.items():
            found = self.streams.passes.of(stream)
            if found is None:
                continue
            if self._loose or reason not in _UNDONE | _EMPTY:
                found.restored(turn, plays)
            elif reason in _EMPTY:
                found.restored_empty(turn, plays)

    def turn_of(self, episode: str) -> int | None:
        """Return the turn for which a member plays, or None."""
        return self._turns_of.get(episode)

    def join(self, group: Group, episode: str, turn: int | None = None) -> None:
        """Give the episode a place in a group `room` returned, or `next_room` with this turn."""
        new = group not in self._alive
        if new or self._loose:
            self.streams.take(group.stream, self.taken)
        if new:
            self._alive.append(group)
            self.named += 1
        group.open.add(episode)
        group.touched_at = self._clock()
        self._of[episode] = group
        self._ages.began(episode)
        self._seen = None
        self._take_turn(group, episode, turn)

    def join_late(self, episode: str, task_id: str, stream: str) -> Group:
        """Give a place to an episode whose own was given away while its team was undecided, whatever the room."""
        group = self.room(task_id, stream) or self._new(task_id, stream)
        self.join(group, episode)
        return group

    def of(self, episode: str) -> Group | None:
        """Return the group an episode has a place in."""
        return self._of.get(episode)

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Give streams new shares, from the next place that is taken."""
        oldest_first = sorted(self._units(), key=lambda unit: self._ages.slack(unit[1]))
        self.streams.set_shares(shares, [group.stream for group, _ in oldest_first])

    def end(self, sample: Sample) -> list[Sample]:
        """Take a member's sample; return what the rule filters out for it."""
        group = self._of[sample.episode]
        group.open.remove(sample.episode)
        self._add(group, sample)
        self._with_turn(sample.episode, Pass.ended)
        if self._loose:
            self.streams.played_episode(group.stream)
        elif group.whole_since is not None and not group.played:
            group.played = True
            self.streams.played_group(group.stream)
        return self._filtered(group)

    def leave(self, episode: str, *, ended: bool = False) -> None:
        """Free the place of an episode that was given up, or `ended` with nothing to train; an empty group is gone."""
        with_nothing = Pass.ended if self._loose else Pass.ended_empty
        self._with_turn(episode, with_nothing if ended else Pass.lost)
        self._turns_of.pop(episode, None)
        group = self._of.pop(episode)
        group.open.remove(episode)
        self._ages.gone(episode)
        self._shrunk(group)

    @property
    def orphaned(self) -> list[Group]:
        """Groups that lack members and have none in play, longest untouched first."""
        if self._loose:
            return []
        return sorted((g for g in self._alive if not g.open and len(g) < self._size), key=lambda g: g.touched_at)

    def unfinished(self) -> dict[str, dict[str, int]]:
        """Return how many places the orphaned groups lack, by stream and task."""
        lacking: dict[str, dict[str, int]] = {}
        for group in self.orphaned:
            tasks = lacking.setdefault(group.stream, {})
            tasks[group.task_id] = tasks.get(group.task_id, 0) + self._size - len(group)
        return lacking

    def drop_idle(self) -> list[Group]:
        """Drop and return the orphaned groups nobody completes."""
        before = self._clock() - self._idle_s
        return [self.drop(group) for group in self.orphaned if group.touched_at <= before]

    def drop(self, group: Group) -> Group:
        """Drop a group that has no member in play, and return it."""
        for sample in group.ended:
            self._undo(sample)
            self._forget(sample)
        self._alive.remove(group)
        self._seen = None
        return group

    def drop_heavy(self) -> list[Sample]:
        """Drop and return the oldest samples until the others hold no more than `pool_bytes`."""
        dropped = []
        while self._bytes > self._most_bytes:
            dropped.append(self._dropped(next(iter(self._waiting.values()))))
        self._starved += len(dropped)
        return dropped

    def drop_stale(self) -> list[Sample]:
        """Drop and return the samples no batch may take any more; the others of their groups stay."""
        return [self._dropped(self._waiting[episode]) for episode in sorted(self._ages.too_old & self._waiting.keys())]

    @property
    def outdated(self) -> set[str]:
        """Open episodes no batch may take any more."""
        return self._ages.too_old - self._waiting.keys()

    def take(self) -> tuple[Group, ...]:
        """Return the batch, by group then episode id, and begin the next one."""
        selection, units = self._chosen()
        if not selection.whole:
            raise RuntimeError(f"expected a complete batch, found {self.collected} ended episodes")
        samples = [sample for unit in units for sample in (unit.ended if isinstance(unit, Group) else [unit])]
        self.taken_bytes = self._bytes
        batch = self._taken_out(samples)
        self._ages.learning = True
        self.streams.ahead(self._ages.batches(self._steps))
        self.streams.took(Counter(unit.stream for unit in units))
        self._starved = 0
        return batch

    def updated(self, version: int) -> None:
        """The batch that was taken last is learned: this version serves now."""
        self._ages.version, self._ages.learning = version, False
        self.streams.ahead(self._ages.batches(self._steps))

    @property
    def learning(self) -> bool:
        """A batch was taken that is not learned."""
        return self._ages.learning

    def drop_all(self) -> list[Sample]:
        """Drop and return all samples that wait: no batch will come any more."""
        dropped = list(self._waiting.values())
        self._taken_out(dropped)
        return dropped

    def restore(self, sample: Sample) -> None:
        """Put a sample that was read back into its group, by the group's name."""
        group = self._named(sample)
        self._add(group, sample)
        if sample.turn is not None and (found := self.streams.passes.of(sample.stream)) is not None:
            self._turns_of[sample.episode] = sample.turn
            if sample.teaches or self._loose:
                found.restored(sample.turn)
            else:
                found.restored_empty(sample.turn)
        group.played = group.whole_since is not None

    def restore_open(self, sample: Sample) -> None:
        """Give a prepared episode that was read back its place again, unless others have it: `restore` them before."""
        group = self._named(sample)
        if self._loose or len(group) < self._size:
            self.join(group, sample.episode, sample.turn)
            self._ages.sampled(sample.episode, sample.nodes)

    def drop_empty(self) -> list[Sample]:
        """Drop and return restored samples that teach nothing: the server died before it dropped them."""
        empty = [sample for sample in self._waiting.values() if not sample.teaches]
        self._taken_out(empty)
        return empty

    def filter_all(self) -> list[Sample]:
        """Filter what was restored; return what the rule drops."""
        return [sample for group in list(self._alive) for sample in self._filtered(group)]

    def _looked(self) -> _Look:
        """Look at the groups, once for all who wait in line until one of them changes something."""
        if self._seen is None:
            self._seen = look = _Look()
            for group in self._alive:
                look.taken[group.stream] += len(group) if self._loose else 1
                look.playing.setdefault((group.task_id, group.stream), []).append(group)
                if group.turn is not None:
                    look.turns[group.turn, group.stream] = group
        return self._seen

    def _done(self) -> Sequence[Group | Sample]:
        """Return what a batch may be made of, first done first: whole groups, or ended episodes."""
        if self._loose:
            return list(self._waiting.values())
        whole = [group for group in self._alive if group.whole_since is not None]
        return sorted(whole, key=lambda group: group.whole_since or 0)

    def _chosen(self, selection: Selection | None = None) -> tuple[Selection, list[Group | Sample]]:
        """Fill the next batch as far as it goes; return it with what is in it."""
        if selection is None:
            alive = self._units() if self._ages.bounded else []
            selection = self.streams.selection(self._place(*unit) for unit in alive)
        return selection, [unit for unit in self._done() if selection.takes(self._place(unit, _episodes(unit)))]

    def _units(self) -> list[tuple[Group, list[str]]]:
        """Return what takes a place, group by group: the whole group, or one episode of it."""
        if self._loose:
            return [(group, [episode]) for group in self._alive for episode in group.episodes]
        return [(group, group.episodes) for group in self._alive]

    def _place(self, unit: Group | Sample, episodes: Iterable[str]) -> Place:
        return self.streams.place(unit.stream, self._ages.slack(episodes))

    def _adopt(self, stream: str, turn_of: Callable[[str], int | None]) -> None:
        found = self.streams.passes.of(stream)
        orphaned = [group for group in self.orphaned if group.stream == stream and group.turn is None]
        for group in orphaned:
            group.turn = turn = turn_of(group.task_id)
            if turn is not None and found is not None:
                self._turns_of |= dict.fromkeys((sample.episode for sample in group.ended), turn)
                found.restored(turn, len(group))
        self._seen = None

    def _begun_for(self, stream: str, turn: int, task_id: str) -> Group | None:
        """Return the group that plays a turn, or None."""
        if self._loose:
            return next(iter(self._looked().playing.get((task_id, stream), ())), None)
        return self._looked().turns.get((turn, stream))

    def _take_turn(self, group: Group, episode: str, turn: int | None) -> None:
        mine = group.turn if turn is None else turn
        found = self.streams.passes.of(group.stream)
        if mine is not None and found is not None and found.began(mine):
            self._turns_of[episode] = mine

    def _with_turn(self, episode: str, tell: Callable[[Pass, int], None]) -> None:
        """Tell the pass an episode plays in what became of it."""
        turn, found = self._turns_of.get(episode), self.streams.passes.of(self._of[episode].stream)
        if turn is not None and found is not None:
            tell(found, turn)

    def _undo(self, sample: Sample) -> None:
        """Have a sample that is dropped played again where its turn is not over; under `episodes` it was played."""
        if not self._loose:
            self._with_turn(sample.episode, Pass.undone)

    def _has_place(self, group: Group, admits: bool) -> bool:
        return admits if self._loose else len(group) < self._size

    def _new(self, task_id: str, stream: str) -> Group:
        return Group(f"{task_id}#{self.named + 1}", task_id, stream, self._clock())

    def _named(self, sample: Sample) -> Group:
        for group in self._alive:
            if group.name == sample.group:
                return group
        group = Group(sample.group, sample.task_id, sample.stream, self._clock())
        group.turn = None if self._loose else sample.turn
        number = sample.group.rpartition("#")[2]
        self.named = max(self.named, int(number) if number.isdecimal() else 0)
        self._alive.append(group)
        self._seen = None
        return group

    def _add(self, group: Group, sample: Sample) -> None:
        group.ended.append(sample)
        group.touched_at = self._clock()
        self._of[sample.episode] = group
        self._seen = None
        self._waiting[sample.episode] = sample
        self._ages.sampled(sample.episode, sample.nodes)
        self._bytes += bytes_of(sample.nodes)
        if not self._loose and len(group.ended) == self._size:
            self._turns += 1
            group.whole_since = self._turns

    def _filtered(self, group: Group) -> list[Sample]:
        if self._rule != "varied_groups" or group.whole_since is None or not group.constant:
            return []
        dropped = list(group.ended)
        self._taken_out(dropped)
        return dropped

    def _taken_out(self, samples: Sequence[Sample]) -> tuple[Group, ...]:
        """Take these samples out of their groups; return them as groups of their own."""
        out: dict[str, Group] = {}
        self._seen = None
        for sample in sorted(samples, key=lambda sample: sample.episode):
            group = self._of[sample.episode]
            out.setdefault(group.name, replace(group, open=set(), ended=[])).ended.append(sample)
            group.ended.remove(sample)
            group.whole_since = None
            self._forget(sample)
            if not len(group):
                self._alive.remove(group)
        return tuple(out[name] for name in sorted(out))

    def _dropped(self, sample: Sample) -> Sample:
        """Drop a sample; its place in its group is free again."""
        group = self._of[sample.episode]
        group.ended.remove(sample)
        group.whole_since = None
        self._undo(sample)
        self._forget(sample)
        self._shrunk(group)
        return sample

    def _shrunk(self, group: Group) -> None:
        group.touched_at = self._clock()
        self._seen = None
        if not len(group):
            self._alive.remove(group)

    def _forget(self, sample: Sample) -> None:
        del self._of[sample.episode]
        self._turns_of.pop(sample.episode, None)
        del self._waiting[sample.episode]
        self._ages.gone(sample.episode)
        self._bytes -= bytes_of(sample.nodes)


def _episodes(unit: Group | Sample) -> list[str]:
    return unit.episodes if isinstance(unit, Group) else [unit.episode]
