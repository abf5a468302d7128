"""Episodes and their leases: who owns which episode, until when, and which error a late owner gets.

A lease lives `ttl_s` seconds after the last call or heartbeat, and as long as a call is in flight; before the first one
FIRST_TTLS times as long, for command lines and frameworks take their time to start. When it runs out the episode is
fenced: its epoch grows, so that every key of the late owner is answered with LeaseLost.
An ended or aborted episode answers EpisodeEnded, except that the same end or abort again is no error. While its
closing is being written down an episode is `settling`: it answers EpisodeEnded too, and is open again if the
writing fails. A prepared one waits for its team (`swarm.server.episodes.teams`): it makes no calls and does not expire.
Knows nothing of groups, batches, the store or HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from swarm.errors import EpisodeEnded, LeaseLost, SwarmError
from swarm.server.shared.keys import Claims
from swarm.store import Sample
from swarm.timelines import CallTree
from swarm.wire import BeginRequest, EndAck, EpisodeKind

Closing = Literal["ended", "aborted", "fenced"]
State = Literal["open", "prepared", "ended", "aborted", "fenced"]
FIRST_TTLS = 4
_WHY_FENCED = {
    "lease_expired": "no call or heartbeat came in time",
    "held_up_batch": "it held up a full batch",
    "held_up_update": "it held up an update",
    "outdated": "it was too old for the next batch",
}
"""Where nothing is said here, or known any more, its client or the server was started again."""
CLOSED_KEPT = 65_536
"""Closed episodes remembered for a precise answer; older ones are all answered with EpisodeEnded."""


class Interruptible(Protocol):
    """A call in flight."""

    @property
    def generating(self) -> bool:
        """The engine works for it."""
        ...

    def interrupt(self, error: SwarmError) -> None:
        """End the call now; its client is told `error`."""
        ...


@dataclass(slots=True, eq=False)
class LeasedEpisode:
    """One play of a task. `active_at` is when its agent last made or finished a call, `heard_at` when its client was
    last heard of, by a call or a heartbeat. `due_at` is when the time its client gave it is over, if it gave one.
    `version` is the policy that served when it began, at `begun_at`, `code` the sha256 of its agent's files, if its
    client said it.

    `settling` is the work of writing its end or its team's first phase down, while that goes on. `refusals` counts its
    refused calls by their error's code, `refusal` is what the last one was told.
    """

    id: str
    task_id: str
    stream: str
    kind: EpisodeKind
    owner: str
    tree: CallTree
    expires_at: float
    active_at: float
    heard_at: float
    due_at: float | None = None
    version: int = 0
    code: str | None = None
    epoch: int = 1
    begun_at: float = 0.0
    calls: set[Interruptible] = field(default_factory=set)
    settling: asyncio.Task[None] | None = None
    refusals: Counter[str] = field(default_factory=Counter)
    refusal: str | None = None


@dataclass(slots=True, eq=False)
class PreparedEpisode:
    """A prepared episode: whole, with its reward, but its team has not decided. `since` is when it was prepared.

    One that decides for its team aborts itself at `expires_at`.
    """

    sample: Sample
    since: float
    expires_at: float
    epoch: int = 1
    settling: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The episode's id."""
        return self.sample.episode


@dataclass(frozen=True, slots=True)
class ClosedEpisode:
    """What is remembered of a closed episode; `epoch` is the one that is valid since."""

    state: Closing
    epoch: int
    tokens: int | None = None
    """Tokens sampled in it; None where a former life of the server knew them."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    refusal: str | None = None
    """As of a `LeasedEpisode`."""
    end: int | None = None
    """Hash of the end that closed it; None where it was closed otherwise, or in a former life."""
    reason: str | None = None
    """Why it was fenced, or why nothing of it could be trained as it ended."""


class Leases:
    """All episodes of one training; open ones whole, closed ones as a word.

    `life` begins the names of all episodes that are begun here; those of a former life of the server have another.
    """

    def __init__(self, ttl_s: float, clock: Callable[[], float], life: str = "") -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._life = life
        self._open: dict[str, LeasedEpisode] = {}
        self._prepared: dict[str, PreparedEpisode] = {}
        self._closed: dict[str, ClosedEpisode] = {}

    def __len__(self) -> int:
        """Return how many episodes are open or prepared."""
        return len(self._open) + len(self._prepared)

    def __iter__(self) -> Iterator[LeasedEpisode]:
        return iter(list(self._open.values()))

    @property
    def prepared(self) -> tuple[PreparedEpisode, ...]:
        """The prepared episodes."""
        return tuple(self._prepared.values())

    def begin(
        self, episode_id: str, request: BeginRequest, task_id: str, tree: CallTree, version: int = 0
    ) -> LeasedEpisode:
        """Open an episode of a task for the request's owner, under the policy `version` that serves."""
        now = self._clock()
        episode = LeasedEpisode(
            episode_id, task_id, request.stream, request.kind, request.owner, tree, now + FIRST_TTLS * self._ttl_s, now,
            now, None if request.timeout_s is None else now + request.timeout_s, version, request.code, begun_at=now,
        )  # fmt: skip
        self._open[episode_id] = episode
        return episode

    def find(self, claims: Claims, repeats: Closing | None = None) -> LeasedEpisode | None:
        """Return the open episode of a key, or None where it was closed by the same call before (`repeats`).

        Raises LeaseLost for a fenced episode, and for an unknown one of a former life (its beginning was not written
        down when the server died), and EpisodeEnded for one that is prepared or over.
        """
        episode = self._open.get(claims.episode)
        if episode is not None and episode.epoch == claims.epoch:
            return episode
        closed = self._closed.get(claims.episode)
        if closed is not None and closed.epoch != claims.epoch:
            why = _WHY_FENCED.get(closed.reason or "", "its client or the server was restarted")
            raise LeaseLost(
                f"episode {claims.episode} was fenced: {why} (a lease is {self._ttl_s:g} s); begin a new one"
            )
        if closed is not None and closed.state == repeats:
            return None
        if claims.episode in self._prepared:
            raise EpisodeEnded(f"episode {claims.episode} is prepared: it waits for its team; commit or abort it")
        if closed is None and not claims.episode.startswith(self._life):
            raise LeaseLost(f"episode {claims.episode} was lost when the server was restarted; begin a new one")
        state = closed.state if closed is not None else "closed long ago"
        raise EpisodeEnded(f"episode {claims.episode} is {state}; begin a new one")

    def renewed(self, claims: Claims) -> LeasedEpisode:
        """Return the open episode of a key and renew its lease; raise as `find` does."""
        episode = self.find(claims)
        assert episode is not None  # `find` returns None for `repeats` alone
        if episode.settling is not None:
            raise EpisodeEnded(f"episode {episode.id} is being ended; begin a new one")
        self.renew(episode)
        return episode

    def find_prepared(self, claims: Claims) -> PreparedEpisode | None:
        """Return the prepared episode of a key, or None where the key's episode is not prepared."""
        found = self._prepared.get(claims.episode)
        return found if found is not None and found.epoch == claims.epoch else None

    def state_of(self, episode_id: str) -> State | None:
        """Return what an episode is, or None where it is not remembered."""
        if episode_id in self._open:
            return "open"
        if episode_id in self._prepared:
            return "prepared"
        closed = self._closed.get(episode_id)
        return closed.state if closed is not None else None

    def refusals_of(self, episode_id: str) -> tuple[Mapping[str, int], str | None]:
        """Return how many calls of an episode were refused, by code, and what the last one was told."""
        known = self._open.get(episode_id) or self._closed.get(episode_id)
        return ({}, None) if known is None else (known.refusals, known.refusal)

    def ended(self, episode_id: str, end: int) -> EndAck:
        """Return what is told of an episode that ended; EpisodeEnded where that was with another `end` than this."""
        closed = self._closed.get(episode_id, ClosedEpisode("ended", 1))
        if closed.end not in (None, end):
            raise EpisodeEnded(f"episode {episode_id} was ended with another reward, which counts; begin a new one")
        return EndAck(
            episode_id=episode_id,
            state="ended" if closed.reason is None else "dropped",
            tokens=closed.tokens,
            reason=closed.reason,
            refused=sum(closed.refusals.values()),
            refusal=closed.refusal,
        )

    def renew(self, episode: LeasedEpisode | PreparedEpisode) -> None:
        """Let the lease live its whole time from now: its client was heard of."""
        now = self._clock()
        episode.expires_at = now + self._ttl_s
        if isinstance(episode, LeasedEpisode):
            episode.heard_at = now

    def touch(self, episode: LeasedEpisode) -> None:
        """Note that the agent made progress, which renews the lease too."""
        episode.active_at = self._clock()
        self.renew(episode)

    def prepare(self, sample: Sample, epoch: int = 1) -> None:
        """Keep a prepared episode until its team decides; it is open no more."""
        now = self._clock()
        self._open.pop(sample.episode, None)
        self._prepared[sample.episode] = PreparedEpisode(sample, now, now + self._ttl_s, epoch)

    def close(
        self,
        episode: LeasedEpisode | PreparedEpisode,
        state: Closing,
        *,
        end: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Close an open or prepared episode; calls in flight end with the error later calls will get."""
        refused = self.refusals_of(episode.id)
        if isinstance(episode, PreparedEpisode):
            del self._prepared[episode.id]
        else:
            del self._open[episode.id]
        if state == "fenced":
            episode.epoch += 1
        nodes = episode.tree.nodes if isinstance(episode, LeasedEpisode) else episode.sample.nodes
        tokens = sum(len(node.sampled) for node in nodes)
        self.remember(episode.id, ClosedEpisode(state, episode.epoch, tokens, *refused, end, reason))
        if isinstance(episode, LeasedEpisode):
            self.interrupt(episode, _too_late(episode.id, state))

    def remember(self, episode_id: str, closed: ClosedEpisode) -> None:
        """Answer late owners of an episode that is closed."""
        self._closed[episode_id] = closed
        if len(self._closed) > CLOSED_KEPT:
            del self._closed[next(iter(self._closed))]

    def interrupt(self, episode: LeasedEpisode, error: SwarmError) -> None:
        """End the calls an episode has in flight."""
        for call in list(episode.calls):
            call.interrupt(error)

    def expired(self) -> list[LeasedEpisode]:
        """Return the open episodes whose lease ran out and that have no call in flight and no end being written."""
        now = self._clock()
        return [e for e in self._open.values() if e.expires_at <= now and not e.calls and e.settling is None]


def _too_late(episode: str, state: Closing) -> SwarmError:
    if state == "fenced":
        return LeaseLost(f"episode {episode} was fenced; its call was cancelled")
    return EpisodeEnded(f"episode {episode} is {state}; its call was cancelled")
