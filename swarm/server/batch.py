"""Groups and the batch rule: a step takes `tasks` groups of `group_size` episodes each.

An episode joins the open group of its task, or opens a new one while fewer than `tasks` are alive; the same task
may so have several groups in a step, each begun after the one before had all its members. An episode that is
given up frees its place. A group without open episodes that nobody completes is dropped after `idle_s`, so that
a dead client never holds a step for ever. Pure bookkeeping: no clock but the injected one, no waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swarm.server.episodes import Episode


@dataclass(slots=True, eq=False)
class Group:
    """Episodes of one task; `touched_at` is when one was last admitted, ended or given up."""

    name: str
    task_id: str
    touched_at: float
    open: set[Episode] = field(default_factory=set)
    ended: list[Episode] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.open) + len(self.ended)


class Groups:
    """The groups of the present step."""

    def __init__(self, tasks: int, group_size: int, idle_s: float, clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._size = group_size
        self._idle_s = idle_s
        self._clock = clock
        self._alive: list[Group] = []
        self._of: dict[Episode, Group] = {}
        self._named = 0

    @property
    def full(self) -> bool:
        """Every place of the batch is taken."""
        return len(self._alive) == self._tasks and all(len(group) == self._size for group in self._alive)

    @property
    def complete(self) -> bool:
        """Every place of the batch is taken by an ended episode."""
        return self.full and not any(group.open for group in self._alive)

    @property
    def collected(self) -> int:
        """Ended episodes waiting for the batch."""
        return sum(len(group.ended) for group in self._alive)

    def room(self, task_id: str) -> Group | None:
        """Return the group an episode of this task may join now (a new one is not kept before `join`), or None."""
        for group in self._alive:
            if group.task_id == task_id and len(group) < self._size:
                return group
        if len(self._alive) < self._tasks:
            return Group(f"{task_id}#{self._named + 1}", task_id, self._clock())
        return None

    def join(self, group: Group, episode: Episode) -> None:
        """Give the episode a place in a group `room` returned."""
        if group not in self._alive:
            self._alive.append(group)
            self._named += 1
        group.open.add(episode)
        group.touched_at = self._clock()
        self._of[episode] = group

    def end(self, episode: Episode) -> None:
        """Count the episode as ended."""
        group = self._of[episode]
        group.open.remove(episode)
        group.ended.append(episode)
        group.touched_at = self._clock()

    def leave(self, episode: Episode) -> None:
        """Free the place of an episode that was given up; a group with none left is gone."""
        group = self._of.pop(episode)
        group.open.remove(episode)
        group.touched_at = self._clock()
        if not len(group):
            self._alive.remove(group)

    def drop_idle(self) -> list[Group]:
        """Drop and return the partial groups that have no open episode and were not touched for `idle_s`."""
        before = self._clock() - self._idle_s
        idle = [g for g in self._alive if not g.open and len(g) < self._size and g.touched_at <= before]
        self._forget(idle)
        return idle

    def take(self) -> tuple[Group, ...]:
        """Return the complete batch, by group then episode id, and begin the next one."""
        if not self.complete:
            raise RuntimeError(f"expected a complete batch, found {self.collected} ended episodes")
        groups = sorted(self._alive, key=lambda group: group.name)
        self._forget(groups)
        for group in groups:
            group.ended.sort(key=lambda episode: episode.id)
        return tuple(groups)

    def _forget(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self._alive.remove(group)
            for episode in group.ended:
                del self._of[episode]
