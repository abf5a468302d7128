"""Groups and the batch rule: which episodes make a step.

An episode joins a group of its task and stream with a free place, else opens one where its stream has a place. By
`batch_rule`, a batch is the first episodes_per_step / group_size whole groups (`groups`); the same without groups of
exactly equal rewards, dropped at once (`varied_groups`); or the first episodes_per_step to end, grouped by task in any
size (`episodes`). No group exceeds group_size; what is whole beyond a batch comes first in the next one. A group
lacking members with none open or prepared is dropped after lease_ttl_s untouched: a dead client never holds a step up.
Beyond `pool_bytes` the oldest ended episodes are dropped; after a whole batch's worth `starved` says so.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swarm.job import Job
from swarm.rollout.streams import BatchSelection, EpisodeAges, Streams
from swarm.store.tables import Sample, TaskListRow
from swarm.timelines import Node

_CONTEXT_BYTES = 40
_SAMPLED_BYTES = 80
"""What CPython keeps for a token: a place in a tuple and an int; where sampled, log-prob and version besides."""
UNDONE = frozenset({"partial_group", "failed_task", "pool_bytes", "stale", "erased"})
"""Why an episode is dropped whose group is not whole, and which is played again for it (but not under `episodes`)."""
EMPTY = frozenset({"no_calls", "no_trained_calls"})
"""Why one is dropped that ended with nothing to train."""


@dataclass(slots=True, eq=False)
class Group:
    """Episodes of one task and stream; `touched_at` is when one was last admitted, ended or given up. `open` holds the
    ids of members that have not ended; `whole_since` counts up over groups as they become whole; `played` is set when
    it was whole once, `skipped` once its task failed so often that nobody is to complete it. `task_index` is the turn
    of the stream's task list that it was begun for, None where a client named the task."""

    name: str
    task_id: str
    stream: str
    touched_at: float
    open: set[str] = field(default_factory=set)
    ended: list[Sample] = field(default_factory=list)
    whole_since: int | None = None
    played: bool = False
    skipped: bool = False
    task_index: int | None = None

    def __len__(self) -> int:
        return len(self.open) + len(self.ended)

    @property
    def episodes(self) -> list[str]:
        return [*self.open, *(sample.episode for sample in self.ended)]

    @property
    def constant(self) -> bool:
        rewards = {each.reward for sample in self.ended for each in sample.trained_rewards}
        return len(rewards | {sample.reward for sample in self.ended if not sample.call_rewards}) == 1


def bytes_of(nodes: Sequence[Node]) -> int:
    return sum(_CONTEXT_BYTES * len(node.context) + _SAMPLED_BYTES * len(node.sampled) for node in nodes)


@dataclass(slots=True)
class _GroupIndex:
    """Places taken by stream, groups by task and stream, and groups by turn and stream."""

    taken: Counter[str] = field(default_factory=Counter)
    playing: dict[tuple[str, str], list[Group]] = field(default_factory=dict)
    by_task_index: dict[tuple[int, str], Group] = field(default_factory=dict)


class Groups:
    """The groups that are alive: those of the present step, and what is left over for the next."""

    def __init__(self, job: Job, clock: Callable[[], float]) -> None:
        self._job = job
        self._loose = loose = job.batch_rule == "episodes"
        self._size = job.group_size
        self._most_bytes = job.pool_bytes
        self._clock = clock
        self._needed = job.episodes_per_step if loose else job.tasks_per_step
        self.ages = EpisodeAges(job.max_staleness)
        surplus = job.surplus_groups * (job.group_size if loose else 1)
        self.streams = Streams(job.streams, self._needed, surplus, job.group_size)
        self.streams.set_ahead(self.ages.count_batches(job.steps))
        self._alive: list[Group] = []
        self._of: dict[str, Group] = {}
        self._task_indexes: dict[str, int] = {}  # the turns of members, of those that count for one
        self._ended: dict[str, Sample] = {}  # members that have ended, the oldest first
        self._index: _GroupIndex | None = None
        self._whole = 0
        self.groups_named = 0
        """Groups ever named, or episodes begun in former lives of the server if these are more: no name comes again."""
        self.bytes = 0
        """Bytes of the captured tokens of members that have ended."""
        self.taken_bytes = 0
        """Bytes that were held when the last batch was taken."""
        self._starved = 0

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._alive))

    @property
    def collected(self) -> int:
        return len(self._ended)

    @property
    def full(self) -> bool:
        """Every place is taken, or a batch is there already, or one would be that does not wait for older places."""
        if self.complete:
            return True
        if self.ages.bounded and self._enough and self._fill_batch(self.streams.selection())[0].whole:
            return True
        return self.streams.all_taken(self.taken) and (self._loose or all(len(g) == self._size for g in self._alive))

    @property
    def complete(self) -> bool:
        return self._enough and self._fill_batch()[0].whole

    @property
    def _enough(self) -> bool:
        """As much is done as a batch needs: whoever looks at every change need not choose before that."""
        return len(self._list_done()) >= self._needed

    @property
    def awaited(self) -> set[str]:
        if not self.ages.bounded:
            return self._of.keys() - self._ended.keys()
        selection = self._fill_batch()[0]
        waited = [unit for unit in self._units() if selection.fits(*self._place(*unit))]
        return {episode for group, episodes in waited for episode in episodes if episode in group.open}

    @property
    def taken(self) -> Counter[str]:
        return self._look_up().taken

    @property
    def done(self) -> Counter[str]:
        return Counter(unit.stream for unit in self._list_done())

    @property
    def starved(self) -> str | None:
        """Why no batch will ever fit into `pool_bytes`, or None."""
        if self._starved < self._job.episodes_per_step:
            return None
        return (
            f"pool_bytes is too small: {self._starved} ended episodes were dropped to stay within "
            f"{self._most_bytes} bytes before one batch of {self._job.episodes_per_step} was there; give the job a "
            "larger pool_bytes, or fewer episodes per step"
        )

    @property
    def orphaned(self) -> list[Group]:
        if self._loose:
            return []
        lacking = (g for g in self._alive if not g.open and len(g) < self._size)
        return sorted(lacking, key=lambda group: group.touched_at)

    def count_missing(self) -> dict[str, dict[str, int]]:
        lacking: dict[str, dict[str, int]] = {}
        for group in self.orphaned:
            tasks = lacking.setdefault(group.stream, {})
            tasks[group.task_id] = tasks.get(group.task_id, 0) + self._size - len(group)
        return lacking

    def group_of(self, episode: str) -> Group | None:
        return self._of.get(episode)

    def task_index_of(self, episode: str) -> int | None:
        return self._task_indexes.get(episode)

    def find_place(self, task_id: str, stream: str = "default") -> Group | None:
        """Return the group an episode may join now (a new one is not kept before `join`), or None."""
        admits = self.streams.admits(stream, self.taken)
        for group in self._look_up().playing.get((task_id, stream), ()):
            if admits if self._loose else len(group) < self._size:
                return group
        return self._make_group(task_id, stream) if admits else None

    def find_next_place(self, stream: str, digest: str) -> tuple[Group, int] | None:
        """Return the group, and its turn, of the next free place of the stream's task list; else as `find_place`."""
        sampler, admits = self.streams.find_sampler(stream, digest), self.streams.admits(stream, self.taken)
        index = self._look_up()
        for task_index in (*sampler.lacking, sampler.next_task_index):
            task = sampler.task_at(task_index)
            if self._loose:
                group = next(iter(index.playing.get((task, stream), ())), None)
            else:
                group = index.by_task_index.get((task_index, stream))
            if group is None and admits:
                group = self._make_group(task, stream)
                group.task_index = None if self._loose else task_index
                return group, task_index
            if group is not None and (admits if self._loose else len(group) < self._size):
                return group, task_index
        return None

    def list_tasks(self, listed: TaskListRow) -> list[Group]:
        """Give a stream its task list; return the groups dropped for it, which nobody completes now."""
        self.streams.list_tasks(listed)
        named = [group for group in self.orphaned if group.stream == listed.stream and group.task_index is None]
        return [self.drop(group) for group in named]

    def join(self, group: Group, episode: str, task_index: int | None = None) -> None:
        if group not in self._alive:
            self._alive.append(group)
            self.groups_named += 1
        group.open.add(episode)
        self._of[episode] = group
        self._touch(group)
        self.ages.begin(episode)
        turn, sampler = group.task_index if task_index is None else task_index, self.streams.samplers.get(group.stream)
        if turn is not None and sampler is not None and sampler.begin_play(turn):
            self._task_indexes[episode] = turn

    def join_late(self, episode: str, task_id: str, stream: str) -> Group:
        """Give a place to an episode whose own was given away while its team was undecided, whatever the room."""
        group = self.find_place(task_id, stream) or self._make_group(task_id, stream)
        self.join(group, episode)
        return group

    def set_shares(self, shares: Mapping[str, float]) -> None:
        self.streams.set_shares(shares, self._oldest_first())

    def end(self, sample: Sample) -> list[Sample]:
        group = self._of[sample.episode]
        group.open.remove(sample.episode)
        self._add(group, sample)
        self._count_play(group.stream, sample.episode, open=-1, ended=1)
        if self._loose:
            self.streams.count_episode(group.stream)
        elif group.whole_since is not None and not group.played:
            group.played = True
            self.streams.count_group(group.stream)
        return self._filter_group(group)

    def fail(self, episode: str) -> bool:
        """Free the place of an episode whose agent failed; return whether its task is skipped now for that."""
        group = self._of[episode]
        skipped = self._count_play(group.stream, episode, open=-1, failed=1)
        group.skipped = group.skipped or skipped
        self._leave(episode)
        return skipped

    def leave(self, episode: str, *, ended: bool = False) -> None:
        """Free the place of an episode that was given up, or `ended` with nothing to train; an empty group is gone."""
        plays = {"ended" if self._loose else "empty": 1} if ended else {}
        self._count_play(self._of[episode].stream, episode, open=-1, **plays)
        self._leave(episode)

    def drop_idle(self) -> list[Group]:
        before = self._clock() - self._job.lease_ttl_s
        return [self.drop(group) for group in self.orphaned if group.skipped or group.touched_at <= before]

    def drop(self, group: Group) -> Group:
        return self._take_out(group.ended, again=True)[0]

    def drop_samples(self, episodes: Iterable[str]) -> list[Sample]:
        samples = [self._ended[episode] for episode in episodes if episode in self._ended]
        self._take_out(samples, again=True)
        return samples

    def drop_heavy(self) -> list[Sample]:
        dropped = []
        while self.bytes > self._most_bytes:
            dropped += self.drop_samples([next(iter(self._ended))])
        self._starved += len(dropped)
        return dropped

    def drop_stale(self) -> list[Sample]:
        return self.drop_samples(sorted(self.ages.too_old))

    def drop_all(self) -> list[Sample]:
        dropped = list(self._ended.values())
        self._take_out(dropped)
        return dropped

    @property
    def outdated(self) -> set[str]:
        return self.ages.too_old - self._ended.keys()

    def take(self) -> tuple[Group, ...]:
        selection, units = self._fill_batch()
        if not selection.whole:
            raise RuntimeError(f"expected a complete batch, found {self.collected} ended episodes")
        samples = [sample for unit in units for sample in (unit.ended if isinstance(unit, Group) else [unit])]
        self.taken_bytes = self.bytes
        batch = self._take_out(samples)
        self.ages.learning = True
        self.streams.set_ahead(self.ages.count_batches(self._job.steps))
        self.streams.take_batch(Counter(unit.stream for unit in units))
        self._starved = 0
        return batch

    def finish_update(self, version: int) -> None:
        self.ages.version, self.ages.learning = version, False
        self.streams.set_ahead(self.ages.count_batches(self._job.steps))

    def recover(self, pool: Sequence[Sample], prepared: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
        """Take what waited in a former life of the server, and give what is prepared its places again, unless others
        have them. Returns what it died before it dropped: samples that teach nothing, and that the rule filters out."""
        for sample in pool:
            group = self._find_or_make(sample)
            self._add(group, sample)
            sampler = self.streams.samplers.get(sample.stream)
            if sample.task_index is not None and sampler is not None:
                self._task_indexes[sample.episode] = sample.task_index
                sampler.count(
                    sample.task_index, **{"empty" if sample.untrained_reason and not self._loose else "ended": 1}
                )
            group.played = group.whole_since is not None
        for sample in prepared:
            group = self._find_or_make(sample)
            if self._loose or len(group) < self._size:
                self.join(group, sample.episode, sample.task_index)
                self.ages.record_versions(sample.episode, sample.nodes)
        self.streams.readmit(self._oldest_first())
        empty = [sample for sample in self._ended.values() if sample.untrained_reason]
        self._take_out(empty)
        return empty, [sample for group in self for sample in self._filter_group(group)]

    def restore_plays(self, played: Mapping[tuple[str, int, str], int]) -> None:
        for (stream, task_index, reason), plays in played.items():
            if (sampler := self.streams.samplers.get(stream)) is None or (reason in UNDONE and not self._loose):
                continue
            sampler.count(task_index, **{"empty" if reason in EMPTY and not self._loose else "ended": plays})

    def _find_or_make(self, sample: Sample) -> Group:
        for group in self._alive:
            if group.name == sample.group:
                return group
        group = Group(sample.group, sample.task_id, sample.stream, self._clock())
        group.task_index = None if self._loose else sample.task_index
        number = sample.group.rpartition("#")[2]
        self.groups_named = max(self.groups_named, int(number) if number.isdecimal() else 0)
        self._alive.append(group)
        self._index = None
        return group

    def _look_up(self) -> _GroupIndex:
        if self._index is None:
            self._index = index = _GroupIndex()
            for group in self._alive:
                index.taken[group.stream] += len(group) if self._loose else 1
                index.playing.setdefault((group.task_id, group.stream), []).append(group)
                if group.task_index is not None:
                    index.by_task_index[group.task_index, group.stream] = group
        return self._index

    def _make_group(self, task_id: str, stream: str) -> Group:
        return Group(f"{task_id}#{self.groups_named + 1}", task_id, stream, self._clock())

    def _add(self, group: Group, sample: Sample) -> None:
        group.ended.append(sample)
        self._of[sample.episode] = group
        self._ended[sample.episode] = sample
        self._touch(group)
        self.ages.record_versions(sample.episode, sample.nodes)
        self.bytes += bytes_of(sample.nodes)
        if not self._loose and len(group.ended) == self._size:
            self._whole += 1
            group.whole_since = self._whole

    def _touch(self, group: Group) -> None:
        group.touched_at = self._clock()
        self._index = None
        if not len(group):
            self._alive.remove(group)

    def _leave(self, episode: str) -> None:
        group = self._of.pop(episode)
        group.open.remove(episode)
        self._task_indexes.pop(episode, None)
        self.ages.forget(episode)
        self._touch(group)

    def _take_out(self, samples: Sequence[Sample], *, again: bool = False) -> tuple[Group, ...]:
        """Take samples out of their groups; return them as groups of their own. `again`: their turns are not over."""
        out: dict[str, Group] = {}
        self._index = None
        for sample in sorted(samples, key=lambda sample: sample.episode):
            group = self._of.pop(sample.episode)
            out.setdefault(group.name, replace(group, open=set(), ended=[])).ended.append(sample)
            group.ended.remove(sample)
            group.whole_since = None
            if again:
                group.touched_at = self._clock()
                if not self._loose:
                    self._count_play(group.stream, sample.episode, ended=-1)
            self._task_indexes.pop(sample.episode, None)
            del self._ended[sample.episode]
            self.ages.forget(sample.episode)
            self.bytes -= bytes_of(sample.nodes)
            if not len(group):
                self._alive.remove(group)
        return tuple(out[name] for name in sorted(out))

    def _list_done(self) -> Sequence[Group | Sample]:
        if self._loose:
            return list(self._ended.values())
        whole = [group for group in self._alive if group.whole_since is not None]
        return sorted(whole, key=lambda group: group.whole_since or 0)

    def _fill_batch(self, selection: BatchSelection | None = None) -> tuple[BatchSelection, list[Group | Sample]]:
        if selection is None:
            alive = self._units() if self.ages.bounded else []
            selection = self.streams.selection(self._place(*unit) for unit in alive)
        return selection, [
            unit
            for unit in self._list_done()
            if selection.take(*self._place(unit, unit.episodes if isinstance(unit, Group) else [unit.episode]))
        ]

    def _oldest_first(self) -> list[str]:
        units = sorted(self._units(), key=lambda unit: self.ages.slack(unit[1]))
        return [group.stream for group, _ in units]

    def _units(self) -> list[tuple[Group, list[str]]]:
        if self._loose:
            return [(group, [episode]) for group in self._alive for episode in group.episodes]
        return [(group, group.episodes) for group in self._alive]

    def _place(self, unit: Group | Sample, episodes: Iterable[str]) -> tuple[str, int]:
        return self.streams.owner(unit.stream), self.ages.slack(episodes)

    def _count_play(self, stream: str, episode: str, **plays: int) -> bool:
        task_index, sampler = self._task_indexes.get(episode), self.streams.samplers.get(stream)
        return task_index is not None and sampler is not None and sampler.count(task_index, **plays)

    def _filter_group(self, group: Group) -> list[Sample]:
        filtered = self._job.batch_rule == "varied_groups" and group.whole_since is not None and group.constant
        dropped = list(group.ended) if filtered else []
        self._take_out(dropped)
        return dropped
