"""Episodes and their leases: who plays what, for how long, and what is said to those who come too late.

A lease lives `ttl_s` seconds after the last call or heartbeat, and as long as a call is in flight. When it runs
out the episode is fenced: its epoch grows, so that every key of the late owner is answered with LeaseLost.
An ended or aborted episode answers EpisodeEnded, except that the same end or abort again is no error.
Knows nothing of groups, batches or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from swarm.errors import EpisodeEnded, LeaseLost, SwarmError
from swarm.server.keys import Claims
from swarm.timelines import Tree
from swarm.wire import BeginRequest, EpisodeKind

Closing = Literal["ended", "aborted", "fenced"]
CLOSED_KEPT = 65_536
"""Closed episodes remembered for a precise answer; older ones are all answered with EpisodeEnded."""


class Interruptible(Protocol):
    """A call in flight."""

    def interrupt(self, error: SwarmError) -> None:
        """End the call now; its client is told `error`."""
        ...


@dataclass(slots=True, eq=False)
class Episode:
    """One play of a task. `active_at` is when its agent last made or finished a call (heartbeats do not count)."""

    id: str
    task_id: str
    stream: str
    kind: EpisodeKind
    owner: str
    tree: Tree
    expires_at: float
    active_at: float
    epoch: int = 1
    calls: set[Interruptible] = field(default_factory=set)
    reward: float | None = None
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class _Closed:
    state: Closing
    epoch: int


class Leases:
    """All episodes of one training; open ones whole, closed ones as a word."""

    def __init__(self, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._open: dict[str, Episode] = {}
        self._closed: dict[str, _Closed] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Episode]:
        return iter(list(self._open.values()))

    def begin(self, episode_id: str, request: BeginRequest, tree: Tree) -> Episode:
        """Open an episode for the request's owner."""
        now = self._clock()
        episode = Episode(
            episode_id, request.task_id, request.stream, request.kind, request.owner, tree, now + self._ttl_s, now
        )
        self._open[episode_id] = episode
        return episode

    def find(self, claims: Claims, repeats: Closing | None = None) -> Episode | None:
        """Return the open episode of a key, or None where it was closed by the same call before (`repeats`).

        Raises LeaseLost for a fenced episode and EpisodeEnded for one that is over.
        """
        episode = self._open.get(claims.episode)
        if episode is not None and episode.epoch == claims.epoch:
            return episode
        closed = self._closed.get(claims.episode)
        if closed is not None and closed.epoch != claims.epoch:
            raise LeaseLost(
                f"episode {claims.episode} was fenced: no call or heartbeat came within {self._ttl_s:g} s, or it "
                "held up a full batch; begin a new one"
            )
        if closed is not None and closed.state == repeats:
            return None
        state = closed.state if closed is not None else "closed long ago"
        raise EpisodeEnded(f"episode {claims.episode} is {state}; begin a new one")

    def holding(self, claims: Claims) -> Episode:
        """Return the open episode of a key and renew its lease; raise as `find` does."""
        episode = self.find(claims)
        assert episode is not None  # `find` returns None for `repeats` alone
        self.renew(episode)
        return episode

    def renew(self, episode: Episode) -> None:
        """Let the lease live its whole time from now."""
        episode.expires_at = self._clock() + self._ttl_s

    def touch(self, episode: Episode) -> None:
        """Note that the agent made progress, which renews the lease too."""
        episode.active_at = self._clock()
        self.renew(episode)

    def close(self, episode: Episode, state: Closing) -> None:
        """Close an open episode; its calls in flight end with the error later calls will get."""
        del self._open[episode.id]
        if state == "fenced":
            episode.epoch += 1
        self._closed[episode.id] = _Closed(state, episode.epoch)
        if len(self._closed) > CLOSED_KEPT:
            del self._closed[next(iter(self._closed))]
        error: SwarmError = EpisodeEnded(f"episode {episode.id} is {state}; its call was cancelled")
        if state == "fenced":
            error = LeaseLost(f"episode {episode.id} was fenced; its call was cancelled")
        self.interrupt(episode, error)

    def interrupt(self, episode: Episode, error: SwarmError) -> None:
        """End the calls an episode has in flight."""
        for call in list(episode.calls):
            call.interrupt(error)

    def expired(self) -> list[Episode]:
        """Return the open episodes whose lease ran out and that have no call in flight."""
        now = self._clock()
        return [episode for episode in self._open.values() if episode.expires_at <= now and not episode.calls]
