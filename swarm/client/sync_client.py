"""SwarmClient over anyio's BlockingPortal; plain functions in threads.

An event loop in a thread of its own does the work; each play of a plain agent has a thread of its own, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from swarm.client.async_client import EPISODE_TIMEOUT_S, AsyncSwarmClient, ExportFormat
from swarm.client.episode import Agent, ChatReply, Episode, EpisodeResult, HasId, Message, Result, RolloutSummary
from swarm.client.identity import Role, find_local_server, server_from_environment
from swarm.client.teams import Team, TeamAgent, TeamResult, TeamSummary
from swarm.client.threads import Bridge, LoopThread, run_in_thread
from swarm.snapshot import HistoryPage, Snapshot
from swarm.wire import Ack, CheckpointList, EpisodeKind, EpisodeList, EpisodeRecord, ExportCounts, Status, StreamList

if TYPE_CHECKING:
    from swarm.job import Job


class SyncEpisode:
    """An episode whose calls block."""

    def __init__(self, loop: Bridge, episode: Episode[Any]) -> None:
        self._loop = loop
        self._episode = episode
        self.task = episode.task
        self.id, self.base_url, self.api_key, self.model = episode.id, episode.base_url, episode.api_key, episode.model
        self.lease = episode.lease

    def key_of(self, agent: str) -> str:
        """Return the key with which one of the episode's agents makes its calls."""
        return self._episode.key_of(agent)

    def chat(self, messages: Sequence[Message], *, agent: str = "", **params: Any) -> ChatReply:
        """Ask the policy for its next message; `agent` says which of the episode's agents asks."""
        return self._loop.run(self._episode.chat(messages, agent=agent, **params))

    def heartbeat(self) -> Ack:
        """Keep the lease alive while no call is made."""
        return self._loop.run(self._episode.heartbeat())

    def end(
        self,
        reward: float,
        success: bool | None = None,
        weight: float = 1.0,
        *,
        by_call: Mapping[int, float] | None = None,
        by_agent: Mapping[str, float] | None = None,
    ) -> Ack:
        """End the episode with its reward; `weight` is how much it counts in the loss, beside others that count 1."""
        return self._loop.run(self._episode.end(reward, success, weight, by_call=by_call, by_agent=by_agent))

    def abort(self, reason: str = "") -> Ack:
        """Give the episode up."""
        return self._loop.run(self._episode.abort(reason))


MOST_PLAYS_LEFT = 512
"""Plays that may hang for good: a stall that all plays of a client meet at once ends no training."""
SyncAgent = Callable[[SyncEpisode], Result]


def plain_agent(agent: SyncAgent) -> Agent:
    """Return a plain agent as one that `AsyncSwarmClient` plays: each play in a daemon thread of its own."""

    async def play(episode: Episode[Any]) -> Result:
        bridge = Bridge(asyncio.get_running_loop())
        return await run_in_thread(agent, SyncEpisode(bridge, episode), most_left=MOST_PLAYS_LEFT)

    return play


class SwarmClient:
    """A blocking client of one swarm server; use as a context manager.

    The methods are those of `AsyncSwarmClient`; agents are plain functions of a `SyncEpisode`.
    """

    def __init__(self, url: str, token: str, *, owner: str | None = None) -> None:
        self._loop = LoopThread("swarm-client")
        self._known = (url, token, owner)
        self._client = AsyncSwarmClient(url, token, owner=owner)

    @classmethod
    def from_home(
        cls, name: str | None = None, *, home: Path | str | None = None, role: Role = "admin", owner: str | None = None
    ) -> Self:
        """Return a client of a server of this machine, by its name; Unreachable where it does not run."""
        found = find_local_server(name, home, role=role)
        return cls(found.url, found.token, owner=owner)

    @classmethod
    def from_environment(cls, *, owner: str | None = None) -> Self:
        """Return a client of the server that AJET_SERVER and AJET_TOKEN name; InvalidRequest where one is missing."""
        found = server_from_environment()
        return cls(found.url, found.token, owner=owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def asynchronous(self) -> AsyncSwarmClient:
        """Return a new client of the same server for an event loop of one's own."""
        url, token, owner = self._known
        return AsyncSwarmClient(url, token, owner=owner)

    def close(self) -> None:
        """Close all connections and end the client's thread."""
        self._loop.run(self._client.close())
        self._loop.close()

    def status(self, *, within_s: float | None = None) -> Status:
        """Return what the server is doing; Unreachable where it does not say so `within_s`, if that is given."""
        return self._loop.run(self._client.status(within_s=within_s))

    def job(self) -> Job | None:
        """Return the loaded job, or None."""
        return self._loop.run(self._client.job())

    def ensure_training(self, job: Job, *, timeout_s: float = 600.0) -> Status:
        """Make the server train `job` and return once it serves."""
        return self._loop.run(self._client.ensure_training(job, timeout_s=timeout_s))

    def stop(self) -> Status:
        """Stop the engine."""
        return self._loop.run(self._client.stop())

    def begin(
        self,
        task: HasId,
        *,
        kind: EpisodeKind = "train",
        stream: str = "default",
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> SyncEpisode:
        """Begin one episode of a task."""
        begun = self._client.begin(task, kind=kind, stream=stream, wait_s=wait_s, timeout_s=timeout_s)
        return SyncEpisode(self._loop, self._loop.run(begun))

    def episodes(self, limit: int = 100) -> EpisodeList:
        """Return the newest episodes."""
        return self._loop.run(self._client.episodes(limit))

    def episode(self, episode: str) -> EpisodeRecord:
        """Return one episode with every token."""
        return self._loop.run(self._client.episode(episode))

    def export(self, to: Path, format: ExportFormat = "openenv", episode: str | None = None) -> int:
        """Write one episode, or all the server knows, to a file; return its bytes."""
        return self._loop.run(self._client.export(to, format, episode))

    def export_with_counts(
        self, to: Path, format: ExportFormat = "openenv", episode: str | None = None
    ) -> tuple[int, ExportCounts | None]:
        """Do as `export`; return also what is in the file and what was left out, None of an older server."""
        return self._loop.run(self._client.export_with_counts(to, format, episode))

    def checkpoints(self) -> CheckpointList:
        """Return the checkpoints that are kept, the newest first."""
        return self._loop.run(self._client.checkpoints())

    def snapshot(self, *, within_s: float | None = None) -> Snapshot:
        """Return what the server does at a glance."""
        return self._loop.run(self._client.snapshot(within_s=within_s))

    def history(
        self, after: int = 0, keys: Iterable[str] = (), limit: int = 100, *, newest: bool = False
    ) -> HistoryPage:
        """Return what finished steps above `after` measured: the first, or the newest."""
        return self._loop.run(self._client.history(after, keys, limit, newest=newest))

    def streams(self) -> StreamList:
        """Return where every stream stands."""
        return self._loop.run(self._client.streams())

    def share(self, shares: Mapping[str, float]) -> StreamList:
        """Give streams new shares, from the next group that begins."""
        return self._loop.run(self._client.share(shares))

    def rollout(
        self,
        agent: SyncAgent,
        tasks: Iterable[HasId],
        *,
        concurrency: int = 16,
        stream: str = "default",
        timeout_s: float = EPISODE_TIMEOUT_S,
    ) -> RolloutSummary:
        """Let `agent` play the tasks until the job is finished; one that hangs is left behind after `timeout_s`."""
        playing = self._client.rollout(
            plain_agent(agent), tasks, concurrency=concurrency, stream=stream, timeout_s=timeout_s
        )
        return self._loop.run(playing)

    def evaluate(
        self,
        agent: SyncAgent,
        tasks: Iterable[HasId],
        *,
        samples: int = 1,
        concurrency: int = 16,
        timeout_s: float = EPISODE_TIMEOUT_S,
        worst: Result = 0.0,
    ) -> list[EpisodeResult]:
        """Let `agent` play each task `samples` times in evaluation episodes; what it fails counts, as not solved."""
        playing = self._client.evaluate(
            plain_agent(agent), tasks, samples=samples, concurrency=concurrency, timeout_s=timeout_s, worst=worst
        )
        return self._loop.run(playing)


T = TypeVar("T")


class SyncTeam:
    """One play of a task by several members, as a plain function sees it."""

    def __init__(self, loop: Bridge, team: Team) -> None:
        self.episodes = {role: SyncEpisode(loop, episode) for role, episode in team.episodes.items()}
        self.task: Any = team.task

    def __getitem__(self, role: str) -> SyncEpisode:
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
        return _run_in_loop(
            clients,
            lambda members: Team.rollout(
                members, known, _make_team_agent(play),
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
        return _run_in_loop(
            clients,
            lambda members: Team.evaluate(
                members, known, _make_team_agent(play), samples=samples, concurrency=concurrency, timeout_s=timeout_s
            ),
        )


def _make_team_agent(play: Callable[[SyncTeam], Mapping[str, Result]]) -> TeamAgent:
    async def run_play(team: Team) -> Mapping[str, Result]:
        return await run_in_thread(play, SyncTeam(Bridge(asyncio.get_running_loop()), team))

    return run_play


def _run_in_loop(clients: Mapping[str, SwarmClient], work: Callable[[dict[str, AsyncSwarmClient]], Awaitable[T]]) -> T:
    """Do work in an event loop of its own, with clients whose connections belong to that loop."""

    async def run_work() -> T:
        async with AsyncExitStack() as stack:
            members = {role: await stack.enter_async_context(client.asynchronous()) for role, client in clients.items()}
            return await work(members)

    return asyncio.run(run_work())
