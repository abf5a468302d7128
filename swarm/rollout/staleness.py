"""Staleness: which episodes the next batch must take, so that no token older than `max_staleness` is learned.

A token sampled under version v and learned by weights of version w is w - v versions old; with a `max_staleness` S of
1 or more no token is ever learned that is older than S. A place (a group; under the batch rule `episodes` an episode)
is as old as the oldest token in it can be; its *slack* is how many batches may still go before it: S, less what its
age would be in the next batch.

With V updates done, W batches taken (W is V, or V + 1 while one is learned) and B places in a batch, at most (S + 1 +
V) B places are ever given away, as in SkyRL ((S + step) B >= accepted + running). W B of them are taken, so (S + 1) B
may be alive while nothing is learned, and S B while a batch is.

Why everything fits. Call n(k) the alive places of slack at most k, and Q(k) = (k + 1) B the places of the next k + 1
batches. n(k) <= Q(k) holds for every k at all times:
- A place is given away with slack k = S - (W - V), the largest there is. It adds only to n(k), which counts all that
  are alive: (S + 1 - (W - V)) B = Q(k) at most, by admission.
- A batch takes, for every k, at least n(k) - (Q(k) - B) of those with slack at most k. It can: that is at most B, by
  what held before, and the demands are nested (each k's include those of the smaller ones). n(k) <= Q(k) - B = Q(k -
  1) are left, and their slack is one less now.
- What ends, is given up or dropped only lowers n, and so does a token that turned out younger than its episode. An
  update that ends changes no slack. Who joins a group is no older than the group.
For k = 0: all that must be in the batch now fit into it. Streams with shares are so each for itself: Q(k) is then the
stream's own among the next (k + 1) B places that are dealt out, and these are given away and taken in the same order.

A `BatchSelection` takes what is done first, but never a place that an older one needs; the batch waits for the older
one to be done or to be given up. What the proof leaves out can make a place too old all the same: surplus groups
(places beyond admission), and an episode whose team decided after its place was given away. Such a place is given up
and counted (drop_stale where its episode had ended, drop_outdated where it was fenced); it is never trained.

Pure bookkeeping: no clock, no waiting, no store.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from swarm.timelines import Node


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """A place that is taken: of which stream, and how many batches may go before it is learned."""

    stream: str
    slack: int = 0


class BatchSelection:
    """Fills the next batch with what is done, place by place.

    `batches` are the places of the next ones, by stream (at least one), `needed` is how many make a batch.
    """

    def __init__(self, batches: Sequence[Counter[str]], needed: int, alive: Iterable[BatchPlace]) -> None:
        """Reserve what the places alive need; none are named where age does not matter."""
        by_slack: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for place in alive:
            by_slack[place.stream][place.slack] += 1
        self._missing = needed
        self._room = {stream: _room([batch[stream] for batch in batches], by_slack[stream]) for stream in batches[0]}

    @property
    def whole(self) -> bool:
        """Every place of the batch is filled."""
        return self._missing == 0

    def fits(self, place: BatchPlace) -> bool:
        """Return whether the batch may take the place."""
        room = self._room.get(place.stream)
        return room is not None and place.slack >= 0 and all(room[: place.slack + 1])

    def takes(self, place: BatchPlace) -> bool:
        """Take the place where it fits; return whether it did."""
        if not self.fits(place):
            return False
        room, upto = self._room[place.stream], place.slack + 1
        room[:upto] = [left - 1 for left in room[:upto]]
        self._missing -= 1
        return True


def _room(batches: list[int], alive: Counter[int]) -> list[int]:
    """Return, for every k, how many of those with slack k or more one stream's part of the batch may take."""
    at_most = accumulate(alive[slack] for slack in range(len(batches)))
    later = accumulate(batches[1:], initial=0)
    reserved = accumulate((max(0, n - fit) for n, fit in zip(at_most, later, strict=True)), max)
    return [batches[0], *(max(0, batches[0] - needed) for needed in reserved)]


class Ages:
    """How old the alive episodes are; `most` is the job's max_staleness, and where it is 0 nothing has an age."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._oldest: dict[str, int] = {}
        self.version = 0
        """Updates done."""
        self.learning = False
        """A batch was taken, and its update is not done."""

    @property
    def bounded(self) -> bool:
        """Age matters."""
        return self._most > 0

    def batches(self, steps: int) -> int:
        """Return how many batches' places may be taken: no more than the job's `steps` want."""
        return max(0, min(self.version + self._most + 1, steps) - self._next) if self.bounded else 1

    def began(self, episode: str) -> None:
        """An episode began: its tokens will be no older than the weights that serve now."""
        if self.bounded:
            self._oldest[episode] = self.version

    def sampled(self, episode: str, nodes: Sequence[Node]) -> None:
        """An episode is over: now its tokens are known."""
        if self.bounded:
            versions = [version for node in nodes if node.trained for version in node.versions]
            self._oldest[episode] = min(versions, default=self.version)

    def gone(self, episode: str) -> None:
        """An episode has no place any more."""
        self._oldest.pop(episode, None)

    def slack(self, episodes: Iterable[str]) -> int:
        """Return how many batches may still go before these episodes are learned; negative: they are too old."""
        if not self.bounded:
            return 0
        return self._most - (self._next - min(self._oldest[episode] for episode in episodes))

    @property
    def too_old(self) -> set[str]:
        """Episodes that no batch can take any more."""
        oldest = self._next - self._most
        return {episode for episode, version in self._oldest.items() if version < oldest}

    @property
    def _next(self) -> int:
        """The version by which the next batch is learned."""
        return self.version + self.learning
