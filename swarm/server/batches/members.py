"""Members: which groups are alive, which episodes have a place in them, which of these ended, and their bytes.

Knows no batch rule: who may join, and what is taken or dropped, is said from outside (`swarm.server.batches.batch`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from swarm.server.batches.group import Group, bytes_of
from swarm.server.batches.staleness import Ages
from swarm.server.batches.turns import Turns
from swarm.store import Sample


@dataclass(slots=True)
class _Look:
    """Places taken by stream, groups by task and stream, and groups by turn and stream."""

    taken: Counter[str] = field(default_factory=Counter)
    playing: dict[tuple[str, str], list[Group]] = field(default_factory=dict)
    turns: dict[tuple[int, str], Group] = field(default_factory=dict)


class Members:
    """The alive groups and their members; a group is whole with `size` ended ones, or never where it is `loose`."""

    def __init__(self, size: int, ages: Ages, turns: Turns, clock: Callable[[], float], *, loose: bool) -> None:
        self._size = size
        self._ages = ages
        self._turns = turns
        self._clock = clock
        self._loose = loose
        self._of: dict[str, Group] = {}
        self._seen: _Look | None = None
        self._whole = 0
        self.alive: list[Group] = []
        self.ended: dict[str, Sample] = {}
        """Members that have ended, the oldest first."""
        self.bytes = 0
        """Bytes of their captured tokens."""
        self.groups_named = 0
        """Groups ever named; a name is never used again."""

    @property
    def open(self) -> set[str]:
        """Members that have not ended."""
        return self._of.keys() - self.ended.keys()

    def group_of(self, episode: str) -> Group | None:
        """Return the group an episode has a place in."""
        return self._of.get(episode)

    def joined(self, episode: str) -> Group:
        """Return a member's group."""
        return self._of[episode]

    def look(self) -> _Look:
        """Look at the groups, once for all who wait in line until one of them changes something."""
        if self._seen is None:
            self._seen = look = _Look()
            for group in self.alive:
                look.taken[group.stream] += len(group) if self._loose else 1
                look.playing.setdefault((group.task_id, group.stream), []).append(group)
                if group.turn is not None:
                    look.turns[group.turn, group.stream] = group
        return self._seen

    def new(self, task_id: str, stream: str) -> Group:
        """Return a group that is not alive before somebody joins it."""
        return Group(f"{task_id}#{self.groups_named + 1}", task_id, stream, self._clock())

    def join(self, group: Group, episode: str) -> None:
        """Give the episode a place in a group."""
        if group not in self.alive:
            self.alive.append(group)
            self.groups_named += 1
        group.open.add(episode)
        group.touched_at = self._clock()
        self._of[episode] = group
        self._ages.began(episode)
        self._seen = None

    def end(self, sample: Sample) -> Group:
        """Take a member's sample; return its group."""
        group = self._of[sample.episode]
        group.open.remove(sample.episode)
        self.add(group, sample)
        return group

    def leave(self, episode: str) -> None:
        """Free the place of an open member; an empty group is gone."""
        self._turns.forget(episode)
        group = self._of.pop(episode)
        group.open.remove(episode)
        self._ages.gone(episode)
        self._shrunk(group)

    def named(self, sample: Sample) -> Group:
        """Return the group of a sample that was read back, by its name."""
        for group in self.alive:
            if group.name == sample.group:
                return group
        group = Group(sample.group, sample.task_id, sample.stream, self._clock())
        group.turn = None if self._loose else sample.turn
        number = sample.group.rpartition("#")[2]
        self.groups_named = max(self.groups_named, int(number) if number.isdecimal() else 0)
        self.alive.append(group)
        self._seen = None
        return group

    def add(self, group: Group, sample: Sample) -> None:
        """Put an ended episode into a group."""
        group.ended.append(sample)
        group.touched_at = self._clock()
        self._of[sample.episode] = group
        self._seen = None
        self.ended[sample.episode] = sample
        self._ages.sampled(sample.episode, sample.nodes)
        self.bytes += bytes_of(sample.nodes)
        if not self._loose and len(group.ended) == self._size:
            self._whole += 1
            group.whole_since = self._whole

    def give_turn(self, group: Group, turn: int | None) -> None:
        """Let a group that began without a turn play for this one."""
        group.turn = turn
        if turn is not None:
            self._turns.give(group, turn)
        self._seen = None

    def take_out(self, samples: Sequence[Sample]) -> tuple[Group, ...]:
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
                self.alive.remove(group)
        return tuple(out[name] for name in sorted(out))

    def drop(self, sample: Sample) -> Sample:
        """Drop a sample; its place in its group is free again."""
        group = self._of[sample.episode]
        group.ended.remove(sample)
        group.whole_since = None
        self._turns.undo(group.stream, sample.episode)
        self._forget(sample)
        self._shrunk(group)
        return sample

    def drop_group(self, group: Group) -> None:
        """Drop a group that has no open member."""
        for sample in group.ended:
            self._turns.undo(group.stream, sample.episode)
            self._forget(sample)
        self.alive.remove(group)
        self._seen = None

    def _shrunk(self, group: Group) -> None:
        group.touched_at = self._clock()
        self._seen = None
        if not len(group):
            self.alive.remove(group)

    def _forget(self, sample: Sample) -> None:
        del self._of[sample.episode]
        self._turns.forget(sample.episode)
        del self.ended[sample.episode]
        self._ages.gone(sample.episode)
        self.bytes -= bytes_of(sample.nodes)
