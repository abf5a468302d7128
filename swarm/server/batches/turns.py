"""Turns: for which turn of its stream's task list each member of a group plays.

It tells the passes (`swarm.server.batches.passes`) what becomes of each play. Pure bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarm.server.batches.group import Group
from swarm.server.batches.passes import Pass
from swarm.store import Sample

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
