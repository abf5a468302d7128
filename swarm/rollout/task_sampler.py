"""Passes over task lists: which task of a stream comes next, where the server chooses.

A stream has one task list for ever. Turn t is task t modulo the list's length, with as many places as a group has
members, and is over once as many plays were ended. Free places of begun turns go first, in order, then the next turn:
in each pass every task is played once. A lost, aborted, fenced or dropped play is played again; one that ended with
nothing to train too, but only as often as its turn has places. A turn is skipped in this pass after MOST_FAILURES
failures of its agent, and as many more for each ended play, so that a breaking task holds nothing up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from swarm.errors import JobConflict
from swarm.store.tables import Sample, TaskListRow
from swarm.timelines import Node

_CONTEXT_BYTES = 40
_SAMPLED_BYTES = 80
"""What CPython keeps for a token: a place in a tuple and an int; where sampled, log-prob and version besides."""


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


MOST_FAILURES = 3
"""Failed plays after which a turn is skipped, as many again for each of its plays that was ended."""
UNDONE = frozenset({"partial_group", "failed_task", "pool_bytes", "stale", "erased"})
"""Why an episode is dropped whose group is not whole, and which is played again for it (but not under `episodes`)."""
EMPTY = frozenset({"no_calls", "no_trained_calls"})
"""Why one is dropped that ended with nothing to train."""


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
