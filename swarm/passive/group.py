"""A group: the episodes that answer one request of a user who consents, from their beginning to their rewards.

It is settled exactly once: ended with rewards, or given up with a reason. A group that waits for feedback keeps its
leases alive. Whoever withdraws a consent gives the group up under the same lock, so that none is ended after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from swarm.client import Episode, NamedTask
from swarm.errors import SwarmError
from swarm.passive.records import Records
from swarm.passive.scoring import preferred, relative

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RequestGroup:
    """`user` is a pseudonym. `scores` are the scorer's, None where there is none; `shown` the places of the answers the
    user saw, the first first."""

    reply: str
    user: str
    episodes: Sequence[Episode[NamedTask]]
    records: Records
    to_erase: Callable[[], None]
    scores: Sequence[float] | None = None
    shown: Sequence[int] = ()
    word: tuple[int, str] | None = None
    """What the user said of a shown answer: its place, and `up` or `down`."""
    settled: bool = False
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once nothing more is waited for."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def names(self) -> list[str]:
        """The ids of its episodes."""
        return [episode.id for episode in self.episodes]

    def rewards(self) -> list[float] | None:
        """Return the reward of each episode, the user's word going before the scorer; None where nobody judged."""
        if self.word is None:
            return None if self.scores is None else relative(self.scores)
        choice, rating = self.word
        return relative(preferred(self.scores or [0.0] * len(self.episodes), self.shown[choice], rating))

    async def wait(self, window_s: float) -> None:
        """Return once feedback is there, or the window is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(window_s):
                await self.due.wait()
        self.due.set()

    async def keep_alive(self) -> None:
        """Keep the leases alive until the group is settled."""
        beat_s = min(episode.lease.ttl_s for episode in self.episodes) / 3
        while not self.settled:
            with suppress(TimeoutError):
                async with asyncio.timeout(beat_s):
                    await self._over.wait()
                    return
            for episode in self.episodes:
                with suppress(SwarmError):  # it will turn out when the episode is ended
                    await episode.heartbeat()

    async def finish(self) -> None:
        """End the episodes with their rewards, if the user still consents; give them up where nobody judged."""
        async with self._lock:
            if self.settled:
                return
            rewards = self.rewards()
            if rewards is None:
                await self._drop("no_feedback")
            elif not self.records.consents(self.user):
                await self._drop("withdrawn")
            else:
                await self._end(rewards)

    async def give_up(self, reason: str) -> None:
        """Abort the episodes, unless the group is settled."""
        async with self._lock:
            if not self.settled:
                await self._drop(reason)

    async def _end(self, rewards: Sequence[float]) -> None:
        self._close()
        done = await asyncio.gather(
            *(episode.end(reward) for episode, reward in zip(self.episodes, rewards, strict=True)),
            return_exceptions=True,
        )
        lost = [episode.id for episode, end in zip(self.episodes, done, strict=True) if isinstance(end, BaseException)]
        self.records.ended([name for name in self.names if name not in lost])
        state = "feedback" if self.word is not None else "scored"
        if lost:
            log.warning("event=episodes_lost reply=%s episodes=%d", self.reply, len(lost))
            self.records.erase(lost)
            self.to_erase()
            state = "lost" if len(lost) == len(self.episodes) else state
        self._count(state)

    async def _drop(self, reason: str) -> None:
        self._close()
        self.records.erase(self.names)
        self._count(f"dropped_{reason}")
        log.info("event=group_dropped reply=%s reason=%s", self.reply, reason)
        await give_up(self.episodes, reason)
        self.to_erase()

    def _close(self) -> None:
        self.settled = True
        self.due.set()
        self._over.set()

    def _count(self, state: str) -> None:
        self.records.settled(self.reply, state)
        self.records.count(f"group_{state}")


async def give_up(episodes: Sequence[Episode[NamedTask]], reason: str) -> None:
    """Abort episodes as far as their server answers; what it does not hear runs out, and is erased later."""
    await asyncio.gather(*(episode.abort(reason) for episode in episodes), return_exceptions=True)
