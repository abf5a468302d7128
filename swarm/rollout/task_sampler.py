"""Passes over task lists: which task of a stream comes next, where the server chooses.

A stream has one task list for ever, in the order of the client that named it first. Turns are counted through all
passes: turn t is task t modulo the list's length, with as many places as a group has members, and is over once as many
plays were ended. Free places of begun turns go first, in order, then the next turn: in each pass every task is played
once and none is left out. That outlives the server, as turns are written with their episodes.

A lost, aborted, fenced or dropped play is played again; one that ended with nothing to train too, but only as often as
its turn has places. A turn is skipped in this pass after MOST_FAILURES failures of its agent, and as many more for each
ended play, so that a breaking task holds nothing up. What is dropped after its turn is over is not played again. Pure
bookkeeping: no clock, no waiting, no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from swarm.errors import JobConflict
from swarm.store import Sample, TasksListed
from swarm.timelines import Node

_CONTEXT_BYTES = 40
_SAMPLED_BYTES = 80
"""What CPython keeps for a token: a place in a tuple and an int; where sampled, log-prob and version besides."""


@dataclass(slots=True, eq=False)
class Group:
    """Episodes of one task and stream; `touched_at` is when one was last admitted, ended or given up.

    `open` holds the ids of members that have not ended; `whole_since` counts up over groups as they become whole;
    `played` is set when it was whole once, `skipped` once its task failed so often that nobody is to complete it.
    `turn` is the one of the stream's task list that it was begun for, None where a client named the task.
    """

    name: str
    task_id: str
    stream: str
    touched_at: float
    open: set[str] = field(default_factory=set)
    ended: list[Sample] = field(default_factory=list)
    whole_since: int | None = None
    played: bool = False
    skipped: bool = False
    turn: int | None = None

    def __len__(self) -> int:
        return len(self.open) + len(self.ended)

    @property
    def episodes(self) -> list[str]:
        """The ids of its members."""
        return [*self.open, *(sample.episode for sample in self.ended)]

    @property
    def constant(self) -> bool:
        """All its rewards are equal."""
        found = {each.reward for sample in self.ended for each in sample.trained_rewards}
        return len(found | {sample.reward for sample in self.ended if not sample.call_rewards}) == 1


def bytes_of(nodes: Sequence[Node]) -> int:
    """Return the bytes the captured tokens of an episode hold."""
    return sum(_CONTEXT_BYTES * len(node.context) + _SAMPLED_BYTES * len(node.sampled) for node in nodes)


MOST_FAILURES = 3
"""Failed plays after which a turn is skipped, as many again for each of its plays that was ended."""
_ADOPTED = 4096
"""Turns from the next one on among which the task of a group is looked for that began before the list was named."""


@dataclass(slots=True)
class _TaskTurn:
    """How many of its plays are open, ended, had nothing to train and count not, and failed by their agent."""

    open: int = 0
    ended: int = 0
    empty: int = 0
    failed: int = 0


class Pass:
    """Where one stream stands in its task list; `plays` are those of each task in a pass."""

    def __init__(self, listed: TasksListed, plays: int, turn: int = 0, unfinished: Iterable[int] = ()) -> None:
        self.listed = listed
        self.turn = turn
        """The next one to be begun."""
        self.moved = True
        """What is written of it has changed."""
        self._plays = plays
        self._begun = {begun: _TaskTurn() for begun in sorted(unfinished)}
        self._lacking = set(self._begun)

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The turns that were begun and are not over."""
        return tuple(sorted(self._begun))

    @property
    def lacking(self) -> Sequence[int]:
        """Those of them that have a place free, in their order."""
        return sorted(self._lacking)

    def task(self, turn: int) -> str:
        """Return the id of a turn's task."""
        return self.listed.ids[turn % len(self.listed.ids)]

    def check(self, digest: str, count: int | None = None) -> None:
        """Raise JobConflict for another list than the stream's."""
        if digest != self.listed.digest:
            others = "others" if count is None else f"{count} others"
            raise JobConflict(
                f"stream {self.listed.stream!r} plays {len(self.listed.ids)} tasks (digest "
                f"{self.listed.digest[:12]}), and this client has {others} (digest {digest[:12]}); play the stream's "
                "own tasks, or play these in a stream of their own (stream=NAME, or --stream NAME)"
            )

    def began(self, turn: int) -> bool:
        """A play of a turn begins; return False, and take no notice, where the turn is over."""
        if turn == self.turn:
            self._begin(turn)
        found = self._begun.get(turn)
        if found is None:
            return False
        found.open += 1
        self._changed(turn)
        return True

    def lost(self, turn: int) -> None:
        """A play that was open was not brought to its end."""
        if (found := self._begun.get(turn)) is not None:
            found.open -= 1
            self._changed(turn)

    def failed(self, turn: int) -> bool:
        """A play that was open was failed by its agent; return whether the turn is skipped now for that."""
        if (found := self._begun.get(turn)) is None:
            return False
        found.failed += 1
        self.lost(turn)
        if skipped := found.failed >= MOST_FAILURES * (1 + found.ended):
            self._finish(turn)
        return skipped

    def ended(self, turn: int) -> None:
        """A play that was open was ended."""
        if (found := self._begun.get(turn)) is not None:
            found.open -= 1
            self.restored(turn)

    def restored(self, turn: int, plays: int = 1) -> None:
        """Plays that ended in a former life, or before the list was named, count."""
        if (found := self._begun.get(turn)) is not None:
            found.ended += plays
            self._changed(turn)

    def ended_empty(self, turn: int) -> None:
        """A play that was open was ended with nothing to train, and leaves its group one short."""
        if (found := self._begun.get(turn)) is not None:
            found.open -= 1
            self.restored_empty(turn)

    def restored_empty(self, turn: int, plays: int = 1) -> None:
        """Plays that ended so in a former life count as they did then: those beyond the turn's places."""
        if (found := self._begun.get(turn)) is not None:
            again = min(plays, self._plays - found.empty)
            found.empty += again
            self.restored(turn, plays - again)

    def undone(self, turn: int) -> None:
        """A play that ended was dropped before its turn was over."""
        if (found := self._begun.get(turn)) is not None:
            found.ended -= 1
            self._changed(turn)

    def untouched(self, task: str) -> int | None:
        """Return the first turn of the task that was begun and of which nothing is played, or None."""
        none = (turn for turn, found in sorted(self._begun.items()) if not found.open and not found.ended)
        return next((turn for turn in none if self.task(turn) == task), None)

    def adopt(self, task: str) -> int | None:
        """Return the turn for which a group of the task counts that began without one, or None where none is near.

        What lies between is begun too.
        """
        if (known := self.untouched(task)) is not None:
            return known
        for turn in range(self.turn, self.turn + min(_ADOPTED, len(self.listed.ids))):
            if self.task(turn) == task:
                while self.turn <= turn:
                    self._begin(self.turn)
                return turn
        return None

    def _begin(self, turn: int) -> None:
        self._begun[turn] = _TaskTurn()
        self._lacking.add(turn)
        self.turn = turn + 1
        self.moved = True

    def _changed(self, turn: int) -> None:
        found = self._begun[turn]
        if found.ended >= self._plays:
            self._finish(turn)
        elif found.open + found.ended < self._plays:
            self._lacking.add(turn)
        else:
            self._lacking.discard(turn)

    def _finish(self, turn: int) -> None:
        del self._begun[turn]
        self._lacking.discard(turn)
        self.moved = True


_UNDONE = frozenset({"partial_group", "failed_task", "pool_bytes", "stale", "erased"})
"""Why an episode is dropped whose group is not whole, and which is played again for it (but not under `episodes`)."""
_EMPTY = frozenset({"no_calls", "no_trained_calls"})
"""Why one is dropped that ended with nothing to train."""


class Turns:
    """The turns of all members; `loose`: under the batch rule `episodes`, where groups have no size."""

    def __init__(self, passes: Mapping[str, Pass], *, loose: bool) -> None:
        self._passes = passes
        self._loose = loose
        self._of: dict[str, int] = {}

    def of(self, episode: str) -> int | None:
        """Return the turn for which a member plays, or None."""
        return self._of.get(episode)

    def began(self, stream: str, episode: str, turn: int | None) -> None:
        """A member begins to play for a turn, if there is one and it is not over."""
        found = self._passes.get(stream)
        if turn is not None and found is not None and found.began(turn):
            self._of[episode] = turn

    def tell(self, stream: str, episode: str, verb: Callable[[Pass, int], bool | None]) -> bool:
        """Tell the pass in which a member plays what became of it; return whether its turn is skipped now for that."""
        turn, found = self._of.get(episode), self._passes.get(stream)
        return turn is not None and found is not None and bool(verb(found, turn))

    def undo(self, stream: str, episode: str) -> None:
        """Have a play that is dropped played again where its turn is not over; under `episodes` it was played."""
        if not self._loose:
            self.tell(stream, episode, Pass.undone)

    def forget(self, episode: str) -> None:
        """The episode is no member any more."""
        self._of.pop(episode, None)

    def give(self, group: Group, turn: int) -> None:
        """Count the plays of a group that began without a turn for this one; its members are not open."""
        if (found := self._passes.get(group.stream)) is not None:
            without = [sample.episode for sample in group.ended if sample.episode not in self._of]
            self._of |= dict.fromkeys(without, turn)
            found.restored(turn, len(without))

    def of_group(self, group: Group) -> int | None:
        """Return the turn for which a member of a group plays, or None."""
        return next((self._of[sample.episode] for sample in group.ended if sample.episode in self._of), None)

    def restore(self, sample: Sample) -> None:
        """Count the play of a sample that was read back."""
        if sample.turn is not None and (found := self._passes.get(sample.stream)) is not None:
            self._of[sample.episode] = sample.turn
            if sample.teaches or self._loose:
                found.restored(sample.turn)
            else:
                found.restored_empty(sample.turn)

    def count_played(self, played: Mapping[tuple[str, int, str], int]) -> None:
        """Count plays of a former life that wait no more, by stream, turn and why they were dropped."""
        for (stream, turn, reason), plays in played.items():
            found = self._passes.get(stream)
            if found is None:
                continue
            if self._loose or reason not in _UNDONE | _EMPTY:
                found.restored(turn, plays)
            elif reason in _EMPTY:
                found.restored_empty(turn, plays)
