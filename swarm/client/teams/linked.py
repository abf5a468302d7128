"""Linked episodes, often on several servers, that end together: all of them or none.

    team = Team({"solver": episode_a, "critic": episode_b})
    await team.end({"solver": 1.0, "critic": 0.5})

Two phases: every server writes down that its episode may end (prepare); then one episode, the decider, is committed,
and with it the team is decided; then the others are committed. A server that dies in between is waited for and asked
again. If this client dies, the servers find the decision by themselves, or any other client passes it on with
`settle`. Why that is safe is told in `swarm.server.episodes.teams`. Evaluation episodes decide nothing and are trained
nowhere: they are ended once the others are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from swarm.client.agents import Result, worth_of
from swarm.client.episode import Episode, end_request
from swarm.client.transport import Transports
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


class LinkedEpisodes:
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
        self._trained = [role for role, episode in self.episodes.items() if episode.kind == "train"]
        self.decider = decider or next(iter(self._trained or self.episodes))
        if self.decider not in (self._trained or self.episodes):
            raise InvalidRequest(
                f"expected a decider among {sorted(self._trained or self.episodes)}, found {self.decider!r}"
            )
        self._patience_s = patience_s
        self._deciding = False

    def __getitem__(self, role: str) -> Episode[Any]:
        """Return a member's episode."""
        return self.episodes[role]

    @property
    def task(self) -> Any:
        """The task that the team plays."""
        return self.episodes[self.decider].task

    @property
    def ttl_s(self) -> float:
        """Seconds without a call or heartbeat after which one of the episodes may be lost."""
        return min(episode.ttl_s for episode in self.episodes.values())

    @property
    def last_call(self) -> float:
        """When the server last heard of the episode that was silent for the longest time (monotonic seconds)."""
        return min(episode.last_call for episode in self.episodes.values())

    async def heartbeat(self, by: Transports | None = None) -> None:
        """Keep all leases alive that can be; what is lost is met by who plays."""
        await asyncio.gather(*(_beat(episode, by) for episode in self.episodes.values()))

    async def end(self, rewards: Mapping[str, Result]) -> Mapping[str, Ack]:
        """End all episodes with their rewards, or none; return what each server says, by role.

        An answer `prepared` belongs to a server that went away after the team was decided: its episode is ended as soon
        as it is back and asks, or is told by `settle`. Raises TeamAborted when one of them could not be ended (all are
        aborted then), InvalidRequest for rewards that do not fit, with all episodes still open, and Unreachable when
        the decider's server went away at the very moment of the decision: `settle` finds out which way it went.
        """
        worths = self._rewards(rewards)
        if not self._trained:
            return await self._end_evaluations(worths, rewards)
        await self._prepare(worths, rewards)
        self._deciding = True
        await self._decide()
        return await self._pass_on(ended=True) | await self._end_evaluations(worths, rewards)

    async def abort(self, reason: str = "", *, failed: bool = False) -> Mapping[str, Ack]:
        """Give all episodes up, as the agent `failed` or for another reason.

        Returns what each server says, by role (`open` for one that does not answer).
        A team that was decided by then is ended all the same; where nobody knows, the others are left as they are.
        """
        if not self._deciding:
            return await self._pass_on(ended=False, reason=reason, failed=failed)
        first = await self._told(self.decider, ended=False, reason=reason)
        if first.state in ("open", "prepared"):
            return {role: Ack(episode_id=self.episodes[role].id, state="prepared") for role in self._trained}
        return await self._pass_on(ended=first.state == "ended", reason=reason)

    async def settle(self) -> Mapping[str, Ack]:
        """Ask what was decided, wherever this team was left, and pass it on; what is undecided is left as it is."""
        decider = self.episodes[self.decider]
        try:
            state = (await self._patiently(decider.outcome)).state
        except NotFound:
            state = "aborted"
        if state in ("open", "prepared"):
            return {role: await self._patiently(self.episodes[role].outcome) for role in self._trained}
        return await self._pass_on(ended=state == "ended")

    def _rewards(self, rewards: Mapping[str, Result]) -> dict[str, tuple[float, bool | None]]:
        if rewards.keys() != self.episodes.keys():
            raise InvalidRequest(f"expected a reward for each of {sorted(self.episodes)}, found {sorted(rewards)}")
        worths = {role: worth_of(reward) for role, reward in rewards.items()}
        for role, (reward, success) in worths.items():
            end_request(reward, success, **_own(rewards[role]))  # refuses before anything is sent
        return worths

    async def _prepare(self, worths: Mapping[str, tuple[float, bool | None]], given: Mapping[str, Result]) -> None:
        decider = self.episodes[self.decider]

        async def prepare(role: str) -> None:
            reward, success = worths[role]
            own, link = _own(given[role]), None if role == self.decider else decider
            await self._patiently(lambda: self.episodes[role].prepare(reward, success, decider=link, **own))

        keeping = asyncio.create_task(self._keep_alive())
        try:
            results = await asyncio.gather(*map(prepare, self._trained), return_exceptions=True)
        finally:
            keeping.cancel()
        failed = {role: result for role, result in zip(self._trained, results, strict=True) if result is not None}
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

    async def _pass_on(self, *, ended: bool, reason: str = "its team aborted", failed: bool = False) -> dict[str, Ack]:
        """Tell every server the decision, the decider's first; one that does not answer is left for later."""
        first = {self.decider: await self._told(self.decider, ended, reason, failed)}
        others = [role for role in (self._trained if ended else self.episodes) if role != self.decider]
        told = await asyncio.gather(*(self._told(role, ended, reason, failed) for role in others))
        return first | dict(zip(others, told, strict=True))

    async def _told(self, role: str, ended: bool, reason: str, failed: bool = False) -> Ack:
        episode = self.episodes[role]
        patience_s = self._patience_s if ended else 0.0  # what is not told finds out that it is aborted
        try:
            try:
                closing = episode.commit if ended else partial(episode.abort, reason, failed=failed)
                return await self._patiently(closing, patience_s)
            except (EpisodeEnded, LeaseLost):
                return await self._patiently(episode.outcome, patience_s)
        except NotFound:
            return Ack(episode_id=episode.id, state="aborted")
        except _PASSING:
            return Ack(episode_id=episode.id, state="prepared" if ended else "open")

    async def _end_evaluations(
        self, worths: Mapping[str, tuple[float, bool | None]], given: Mapping[str, Result]
    ) -> dict[str, Ack]:
        """End those that are trained nowhere; where all are, TeamAborted unless each is ended."""
        roles = [role for role in self.episodes if role not in self._trained]

        async def end(role: str) -> Ack:
            try:
                return await self._patiently(lambda: self.episodes[role].end(*worths[role], **_own(given[role])))
            except (*_OVER, *_PASSING) as error:
                if not self._trained:
                    raise TeamAborted(f"{role} could not be ended: {error}") from error
                return Ack(episode_id=self.episodes[role].id, state="fenced")

        return dict(zip(roles, await asyncio.gather(*map(end, roles)), strict=True))

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
            await asyncio.sleep(self.ttl_s / 3)
            await self.heartbeat()


async def _beat(episode: Episode[Any], by: Transports | None) -> None:
    with suppress(SwarmError):
        await episode.heartbeat(by)


def _own(result: Result) -> dict[str, Any]:
    """Return what a result says of single calls and agents."""
    return {name: getattr(result, name, None) for name in ("by_call", "by_agent")}
