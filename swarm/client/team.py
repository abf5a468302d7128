"""Teams: linked episodes, often on several servers, that end together: all of them or none.

    team = Team({"solver": episode_a, "critic": episode_b})
    await team.end({"solver": 1.0, "critic": 0.5})

Two phases: every server writes down that its episode may end (prepare); then one episode, the decider, is committed,
and with it the team is decided; then the others are committed. A server that dies in between is waited for and asked
again. If this client dies, the servers find the decision by themselves, or any other client passes it on with
`Team.settle`. Why that is safe is told in `swarm.server.episodes.teams`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from swarm.client.agents import Result, worth_of
from swarm.client.episode import Episode, end_request
from swarm.errors import (
    EngineUnavailable,
    EpisodeEnded,
    InvalidRequest,
    LeaseLost,
    NotFound,
    SwarmError,
    TeamAborted,
    Throttled,
    Unreachable,
)
from swarm.wire import Ack

T = TypeVar("T")
PATIENCE_S = 60.0
"""Seconds for which a server that does not answer is asked again."""
_PAUSE_S = 0.2
_PASSING = (Unreachable, EngineUnavailable, Throttled)
_OVER = (LeaseLost, EpisodeEnded, NotFound)


class Team:
    """Linked episodes by role. The first one, or the one named `decider`, decides for all.

    `patience_s`: how long a server that does not answer is waited for, in each phase. Let the decider be an episode
    of the server that is the least likely to go away; where that is gone for longer than its `lease_ttl_s` between
    the phases, the team is aborted.
    """

    def __init__(
        self, episodes: Mapping[str, Episode[Any]], *, decider: str | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        if not episodes:
            raise InvalidRequest("expected the episodes of a team by role, found none")
        self.episodes = dict(episodes)
        self.decider = decider or next(iter(self.episodes))
        if self.decider not in self.episodes:
            raise InvalidRequest(f"expected a decider among {sorted(self.episodes)}, found {self.decider!r}")
        self._patience_s = patience_s

    async def end(self, rewards: Mapping[str, Result]) -> Mapping[str, Ack]:
        """End all episodes with their rewards, or none; return what each server says, by role.

        An answer `prepared` belongs to a server that went away after the team was decided: its episode is ended as soon
        as it is back and asks, or is told by `settle`. Raises TeamAborted when one of them could not be ended (all are
        aborted then), InvalidRequest for rewards that do not fit, with all episodes still open, and Unreachable when
        the decider's server went away at the very moment of the decision: `settle` finds out which way it went.
        """
        prepared = self._rewards(rewards)
        await self._prepare(prepared)
        await self._decide()
        return await self._pass_on(ended=True)

    async def abort(self, reason: str = "") -> Mapping[str, Ack]:
        """Give all episodes up; return what each server says, by role (`open` for one that does not answer)."""
        return await self._pass_on(ended=False, reason=reason)

    async def settle(self) -> Mapping[str, Ack]:
        """Ask what was decided, wherever this team was left, and pass it on; what is undecided is left as it is."""
        decider = self.episodes[self.decider]
        try:
            state = (await self._patiently(decider.outcome)).state
        except NotFound:
            state = "aborted"
        if state in ("open", "prepared"):
            return {role: await self._patiently(episode.outcome) for role, episode in self.episodes.items()}
        return await self._pass_on(ended=state == "ended")

    def _rewards(self, rewards: Mapping[str, Result]) -> dict[str, tuple[float, bool | None]]:
        if rewards.keys() != self.episodes.keys():
            raise InvalidRequest(f"expected a reward for each of {sorted(self.episodes)}, found {sorted(rewards)}")
        worths = {role: worth_of(reward) for role, reward in rewards.items()}
        for reward, success in worths.values():
            end_request(reward, success)  # refuses before anything is sent
        return worths

    async def _prepare(self, rewards: Mapping[str, tuple[float, bool | None]]) -> None:
        decider = self.episodes[self.decider]

        async def prepare(role: str) -> None:
            reward, success = rewards[role]
            link = None if role == self.decider else decider
            await self._patiently(lambda: self.episodes[role].prepare(reward, success, decider=link))

        keeping = asyncio.create_task(self._keep_alive())
        try:
            results = await asyncio.gather(*map(prepare, self.episodes), return_exceptions=True)
        finally:
            keeping.cancel()
        failed = {role: result for role, result in zip(self.episodes, results, strict=True) if result is not None}
        if failed:
            role, error = next(iter(failed.items()))
            with suppress(SwarmError):
                await self.abort(f"{role} could not be prepared")
            if not isinstance(error, SwarmError):
                raise error
            raise TeamAborted(f"{role} could not be ended, so the whole team is aborted: {error}") from error

    async def _decide(self) -> None:
        """Commit the decider; if it turns out to be aborted, abort all."""
        try:
            await self._patiently(self.episodes[self.decider].commit)
        except _OVER as error:
            await self.abort("its team was aborted")
            raise TeamAborted(f"the team's time was up before it was decided: {error}") from error

    async def _pass_on(self, *, ended: bool, reason: str = "its team aborted") -> Mapping[str, Ack]:
        """Tell every server the decision, the decider's first; one that does not answer is left for later."""
        first = {self.decider: await self._told(self.decider, ended, reason)}
        others = [role for role in self.episodes if role != self.decider]
        told = await asyncio.gather(*(self._told(role, ended, reason) for role in others))
        return first | dict(zip(others, told, strict=True))

    async def _told(self, role: str, ended: bool, reason: str) -> Ack:
        episode = self.episodes[role]
        patience_s = self._patience_s if ended else 0.0  # what is not told finds out that it is aborted
        try:
            try:
                return await self._patiently(episode.commit if ended else lambda: episode.abort(reason), patience_s)
            except (EpisodeEnded, LeaseLost):
                return await self._patiently(episode.outcome, patience_s)
        except NotFound:
            return Ack(episode_id=episode.id, state="aborted")
        except _PASSING:
            return Ack(episode_id=episode.id, state="prepared" if ended else "open")

    async def _patiently(self, call: Callable[[], Awaitable[T]], patience_s: float | None = None) -> T:
        """Call until the server answers; raise what it says last, `patience_s` after the first try."""
        deadline = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        while True:
            try:
                return await call()
            except _PASSING:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _keep_alive(self) -> None:
        """Keep the leases of those that are ready alive while others are waited for."""
        while True:
            await asyncio.sleep(min(episode.lease.ttl_s for episode in self.episodes.values()) / 3)
            for episode in self.episodes.values():
                with suppress(SwarmError):
                    await episode.heartbeat()
