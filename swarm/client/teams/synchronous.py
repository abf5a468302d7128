"""Teams without asyncio: calls block, and the agent is a plain function of a `SyncTeam`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from swarm.client.agents import Result
from swarm.client.asynchronous import EPISODE_TIMEOUT_S, AsyncSwarmClient
from swarm.client.episode import HasId
from swarm.client.synchronous import SwarmClient, SyncEpisode
from swarm.client.teams.loop import TeamResult, TeamSummary
from swarm.client.teams.team import Team, TeamAgent
from swarm.client.threads import Bridge, in_thread

T = TypeVar("T")


class SyncTeam:
    """One play of a task by several members, as a plain function sees it."""

    def __init__(self, loop: Bridge, team: Team) -> None:
        self.episodes = {role: SyncEpisode(loop, episode) for role, episode in team.episodes.items()}
        self.task: Any = team.task

    def __getitem__(self, role: str) -> SyncEpisode:
        """Return a member's episode."""
        return self.episodes[role]

    @staticmethod
    def rollout(
        clients: Mapping[str, SwarmClient],
        tasks: Iterable[HasId],
        play: Callable[[SyncTeam], Mapping[str, Result]],
        *,
        concurrency: int = 16,
        stream: str = "default",
        timeout_s: float = EPISODE_TIMEOUT_S,
        decider: str | None = None,
    ) -> TeamSummary:
        """Let `play` play the tasks until the jobs of all members are finished (`Team.rollout`)."""
        known = list(tasks)
        return _in_a_loop(
            clients,
            lambda members: Team.rollout(
                members, known, _threaded(play),
                concurrency=concurrency, stream=stream, timeout_s=timeout_s, decider=decider,
            ),
        )  # fmt: skip

    @staticmethod
    def evaluate(
        clients: Mapping[str, SwarmClient],
        tasks: Iterable[HasId],
        play: Callable[[SyncTeam], Mapping[str, Result]],
        *,
        samples: int = 1,
        concurrency: int = 16,
        timeout_s: float = EPISODE_TIMEOUT_S,
    ) -> list[TeamResult]:
        """Let `play` play each task `samples` times in evaluation episodes (`Team.evaluate`)."""
        known = list(tasks)
        return _in_a_loop(
            clients,
            lambda members: Team.evaluate(
                members, known, _threaded(play), samples=samples, concurrency=concurrency, timeout_s=timeout_s
            ),
        )


def _threaded(play: Callable[[SyncTeam], Mapping[str, Result]]) -> TeamAgent:
    async def played(team: Team) -> Mapping[str, Result]:
        return await in_thread(play, SyncTeam(Bridge(asyncio.get_running_loop()), team))

    return played


def _in_a_loop(clients: Mapping[str, SwarmClient], work: Callable[[dict[str, AsyncSwarmClient]], Awaitable[T]]) -> T:
    """Do work in an event loop of its own, with clients whose connections belong to that loop."""

    async def done() -> T:
        async with AsyncExitStack() as stack:
            members = {role: await stack.enter_async_context(client.asynchronous()) for role, client in clients.items()}
            return await work(members)

    return asyncio.run(done())
