"""Passes over task lists: which task of a stream comes next, for clients that leave the choice to the server.

A stream has one task list, for ever: the order is that of the client that named it first, and every client with the
same tasks shares it. The list is played over and over; its *turns* are counted through all passes, so turn t is task
t modulo the list's length, and each has as many places as a group has members. A turn is over once as many of its
plays were ended; a play that was lost, aborted, fenced or dropped with its unfinished group is played again.

What is handed out: first the places of turns that were begun and have one free, in their order, then the next turn.
So in each pass every task is played once, by whomever, and none is left out; that outlives the server, as the next
turn and those that are not over are written with the first episode of each turn and when a turn is over, and each
episode's row has its turn.

A play that ended with nothing to train is played again too, as the group waits for its member, but only as many of a
turn as it has places: an agent that makes no calls does not hold the pass up. A turn is skipped in this pass once its
agent failed MOST_FAILURES plays of it, and as many more for each that was ended: a task that breaks its agent each time
would hold up all others. What is dropped after a turn is over (for equal rewards, for its age, ...) is not played
again. Pure bookkeeping: no clock, no waiting, no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarm.errors import JobConflict
from swarm.store import TasksListed

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
