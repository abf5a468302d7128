"""Staleness: which episodes a batch must take so that no token gets older than allowed.

A token of version v learned by weights of version w is w - v old; nothing older than S = `max_staleness` (1 or more) is
learned. A place (a group, or an episode) is as old as its oldest token can be; its slack is how many batches may go
before it. With V updates done, W batches taken and B places a batch, at most (S + 1 + V) B places are ever given away
(as in SkyRL).

Invariant: n(k), the alive places of slack at most k, never exceeds Q(k) = (k + 1) B. A place is given away with slack k
= S - (W - V), the largest, where admission bounds it; each batch takes at least n(k) - (Q(k) - B) <= B of those of
slack at most k (the demands are nested), after which every slack falls by one; all else only lowers n. Streams with
shares keep it each for itself. `BatchSelection` takes what is done first but never a place that an older one needs.
Surplus groups and late team decisions can still be too old: they are given up and counted (drop_stale, drop_outdated),
never trained. No clock, no waiting, no store.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from swarm.timelines import Node


class BatchSelection:
    """Fills the next batch with what is done, place by place: each of a stream, with its slack. `batches` are the
    places of the next ones, by stream (at least one), `needed` is how many make a batch."""

    def __init__(self, batches: Sequence[Counter[str]], needed: int, alive: Iterable[tuple[str, int]]) -> None:
        """Reserve what the places alive need; none are named where age does not matter."""
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
    """Return, for every k, how many of those with slack k or more one stream's part of the batch may take."""
    at_most = accumulate(alive[slack] for slack in range(len(batches)))
    later = accumulate(batches[1:], initial=0)
    reserved = accumulate((max(0, n - fit) for n, fit in zip(at_most, later, strict=True)), max)
    return [batches[0], *(max(0, batches[0] - needed) for needed in reserved)]


class EpisodeAges:
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
        return self._most > 0

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
