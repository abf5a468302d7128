"""Playing many episodes at once: the loop around an agent, for training and for evaluation.

Each of `concurrency` workers holds one place: it begins an episode, lets the agent play it, ends it, and takes
the next place. A play that failed is played again at once, by whoever asks first, so that no group waits for it.
Leases of slow agents are kept alive; an agent that takes longer than `timeout_s` is given up.

A server that goes away is waited for, as an engine that is off. What was played meanwhile is lost with its lease
(unless its end was written down: ends are sent again), is counted as dropped, and is played again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from swarm.client.agents import Agent, AgentFailed, EpisodeResult, Result, RolloutSummary, facts_of, worth_of
from swarm.client.episode import Episode
from swarm.errors import (
    EngineUnavailable,
    EpisodeEnded,
    JobFinished,
    LeaseLost,
    ServerFailed,
    SwarmError,
    Throttled,
    Unreachable,
)
from swarm.wire import EndAck

T = TypeVar("T")
FAILURES_IN_A_ROW = 64
"""Failed plays without a good one between them, over all workers, after which the rollout gives up; at
least two for each place, as one restart of a server fails what is played at all of them."""
ENGINE_OFF_S = 120.0
"""How long a rollout waits for a server that does not answer, or whose engine is off or boots, before it raises
Unreachable or EngineUnavailable."""
WAIT_S = 10.0
"""How long the server may hold the request for an episode until there is room."""
_RESEND_S = 0.5
_IDLE_LOOK_S = 0.6
"""Three times the pause between two looks for open episodes while there is none."""
GOODBYE_S = 2.0
"""How long a cancelled rollout tries to give an episode up; its lease runs out anyway. The server is told that an
episode may take so much longer than its agent: by then it was ended or given up."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one play fills: `begin` begins an episode of it, again where a play failed."""

    sample: int
    """0 for the first play of an evaluation's task, 1 for the second, ..."""
    begin: Callable[[], Awaitable[Episode[Any]]]


class RolloutLoop:
    """One run of the loop."""

    def __init__(self, agent: Agent, timeout_s: float) -> None:
        self._agent = agent
        self._timeout_s = timeout_s
        self._open: set[Episode[Any]] = set()
        self._most_failures = FAILURES_IN_A_ROW
        self._failures_in_a_row = 0
        self._over = False
        self.dropped: Counter[str] = Counter()
        self.results: list[EpisodeResult] = []

    async def play(self, places: Iterator[Place], concurrency: int) -> None:
        """Play all places, or until the job is finished. Raises AgentFailed, ServerFailed, and Unreachable or
        EngineUnavailable once the server has been away, or its engine off, for ENGINE_OFF_S."""
        self._most_failures = max(FAILURES_IN_A_ROW, 2 * concurrency)
        keeper = asyncio.create_task(self._keep_alive())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._work(places))
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _work(self, places: Iterator[Place]) -> None:
        for place in places:
            done = False
            while not done and not self._over:
                done = await self._attempt(place)
            if self._over:
                return

    async def _attempt(self, place: Place) -> bool:
        """Play once; return whether the place is filled."""
        try:
            episode = await self._begin(place)
        except JobFinished:
            self._over = True
            return False
        self._open.add(episode)
        try:
            return await self._carry(episode, place.sample)
        except (LeaseLost, EpisodeEnded) as error:
            self._drop(error.code, error)
        except JobFinished:
            self._over = True
        finally:
            self._open.discard(episode)
        return False

    async def _begin(self, place: Place) -> Episode[Any]:
        delay, off_since = 0.05, math.inf
        while True:
            try:
                return await place.begin()
            except (Throttled, EngineUnavailable, Unreachable) as error:
                now = time.monotonic()
                off_since = math.inf if isinstance(error, Throttled) else min(off_since, now)
                if now - off_since > ENGINE_OFF_S:
                    raise
                await asyncio.sleep(error.retry_after or delay)
                delay = min(2.0, 2 * delay)

    async def _carry(self, episode: Episode[Any], sample: int) -> bool:
        try:
            result = await self._played(episode)
            reward, success = worth_of(result)
            ended = await self._end(episode, reward, success)
        except asyncio.CancelledError:
            with suppress(SwarmError, TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await episode.abort("the rollout was cancelled")
            raise
        except (LeaseLost, EpisodeEnded, ServerFailed):
            raise
        except Exception as error:  # noqa: BLE001 - whatever foreign code raises: its episode is given up and counted
            await self._give_up(episode, error)
            return False
        self._failures_in_a_row = 0
        version = episode.lease.policy_version
        self.results.append(
            EpisodeResult(episode.task.id, sample, reward, success, version, facts_of(result), ended.tokens)
        )
        return True

    async def _played(self, episode: Episode[Any]) -> Result:
        """Return the agent's answer; TimeoutError says how long it may take."""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await self._agent(episode)
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"the play was not over after {self._timeout_s:g} s") from error
            raise

    async def _end(self, episode: Episode[Any], reward: float, success: bool | None) -> EndAck:
        """End the episode; send it again while the server cannot write it down, boots, or is away."""
        deadline = time.monotonic() + ENGINE_OFF_S
        while True:
            try:
                return await episode.end(reward, success)
            except (EngineUnavailable, Unreachable) as error:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(error.retry_after or _RESEND_S)

    async def _give_up(self, episode: Episode[Any], error: Exception) -> None:
        """Abort the episode of a failed play, and count it; it says nothing of the agent if the server is away."""
        away = isinstance(error, Unreachable)
        try:
            await episode.abort(f"{type(error).__name__}: {error}")
        except SwarmError as refusal:  # nothing depends on it: the lease runs out
            away = away or isinstance(refusal, Unreachable)
        if away:
            self.dropped[Unreachable.code] += 1
        else:
            self._drop(f"agent: {type(error).__name__}", error)

    def _drop(self, reason: str, error: BaseException) -> None:
        self.dropped[reason] += 1
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._most_failures:
            last = f"{type(error).__name__}: {error}"
            raise AgentFailed(f"{self._failures_in_a_row} plays in a row failed; the last one with {last}") from error

    async def _keep_alive(self) -> None:
        while True:
            ttl = min((episode.lease.ttl_s for episode in self._open), default=_IDLE_LOOK_S)
            await asyncio.sleep(ttl / 3)
            now = time.monotonic()
            quiet = [episode for episode in self._open if now - episode.last_call > ttl / 3]
            for episode in quiet:
                with suppress(SwarmError):  # whoever plays it meets the same error, and counts it
                    await episode.heartbeat()

    def summary(self) -> RolloutSummary:
        """Return what was done."""
        results = self.results
        judged = [result.success for result in results if result.success is not None]
        return RolloutSummary(
            episodes=len(results),
            reward_mean=_mean([result.reward for result in results]) or 0.0,
            success_mean=_mean([float(success) for success in judged]),
            dropped=dict(self.dropped),
        )


async def once_the_engine_is_on(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call gives once the engine serves; raise EngineUnavailable when it was off for ENGINE_OFF_S."""
    deadline = time.monotonic() + ENGINE_OFF_S
    while True:
        try:
            return await call()
        except EngineUnavailable as error:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(error.retry_after or _RESEND_S)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
