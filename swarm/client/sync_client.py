"""The client for code without asyncio: the verbs of the asynchronous one, and each play a function in its own thread.

The verbs run in the one event loop that a process has in a daemon thread (`swarm.client.threads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from swarm.client.async_client import AsyncSwarmClient
from swarm.client.episode import Agent, Episode, HasId, Result, TaskT
from swarm.client.rollout import StreamTasks
from swarm.client.teams import Team
from swarm.client.threads import Bridge, background, run_in_thread
from swarm.client.transport import Connectable

P = ParamSpec("P")
T = TypeVar("T")
MOST_PLAYS_LEFT = 512
"""Plays that may hang for good: a stall that all plays of a client meet at once ends no training."""


class _Blocking:
    """Whatever has verbs that block: what it stands for, and the way to that one's event loop."""

    _inner: Any
    _bridge: Bridge

    def _run(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for a verb of what this stands for, as that one has it: it may be of a derived class."""
        return self._bridge.run(getattr(self._inner, verb.__name__)(*args, **kwargs))


def _blocking(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Blocking, P], T]:
    """Return a coroutine's method as one that blocks, with its signature."""

    def call(own: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = own._run(verb, *args, **kwargs)
        return found

    return wraps(verb)(call)


class SyncEpisode(_Blocking):
    """An episode whose calls block; all else is as `Episode` has it."""

    def __init__(self, bridge: Bridge, episode: Episode[Any]) -> None:
        self._bridge, self._inner = bridge, episode
        self.task: Any = episode.task
        self.id, self.kind, self.lease = episode.id, episode.kind, episode.lease
        self.base_url, self.api_key, self.model = episode.base_url, episode.api_key, episode.model
        self.key_of = episode.key_of

    chat = _blocking(Episode.chat)
    heartbeat = _blocking(Episode.heartbeat)
    end = _blocking(Episode.end)
    prepare = _blocking(Episode.prepare)
    commit = _blocking(Episode.commit)
    outcome = _blocking(Episode.outcome)
    abort = _blocking(Episode.abort)


SyncAgent = Callable[[SyncEpisode], Result]


def plain_agent(agent: SyncAgent) -> Agent:
    """Return a plain agent as one that `AsyncSwarmClient` plays: each play in a daemon thread of its own."""

    async def play(episode: Episode[Any]) -> Result:
        bridge = Bridge(asyncio.get_running_loop())
        return await run_in_thread(agent, SyncEpisode(bridge, episode), most_left=MOST_PLAYS_LEFT)

    return play


def _beginning(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, Episode[Any]]],
) -> Callable[Concatenate[_Blocking, P], SyncEpisode]:
    def call(own: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> SyncEpisode:
        return SyncEpisode(own._bridge, own._run(verb, *args, **kwargs))

    return wraps(verb)(call)


def _playing(verb: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    def call(own: _Blocking, /, agent: SyncAgent, tasks: Iterable[HasId], **kwargs: Any) -> T:
        known = list(tasks)  # here, as what gives them may block
        found: T = own._run(verb, plain_agent(agent), known, **kwargs)
        return found

    return wraps(verb)(call)


class SwarmClient(_Blocking, Connectable):
    """A blocking client of one swarm server; use as a context manager. The methods are those of `AsyncSwarmClient`;
    agents are plain functions of a `SyncEpisode`, and one that hangs is left behind after its `timeout_s`."""

    def __init__(self, url: str, token: str, *, owner: str | None = None, code: str | None = None) -> None:
        self._bridge, self._inner = background(), AsyncSwarmClient(url, token, owner=owner, code=code)
        self.url, self.owner = self._inner.url, self._inner.owner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _blocking(AsyncSwarmClient.close)
    status = _blocking(AsyncSwarmClient.status)
    job = _blocking(AsyncSwarmClient.job)
    ensure_training = _blocking(AsyncSwarmClient.ensure_training)
    stop = _blocking(AsyncSwarmClient.stop)
    begin = _beginning(AsyncSwarmClient.begin)
    begin_next = _beginning(AsyncSwarmClient.begin_next)

    def register_tasks(self, tasks: Iterable[TaskT], stream: str = "default") -> StreamTasks[TaskT]:
        """Do as `AsyncSwarmClient.register_tasks`."""
        named: StreamTasks[TaskT] = self._run(AsyncSwarmClient.register_tasks, list(tasks), stream)
        return named

    advantages = _blocking(AsyncSwarmClient.advantages)
    erase = _blocking(AsyncSwarmClient.erase)
    give_up_open = _blocking(AsyncSwarmClient.give_up_open)
    episodes = _blocking(AsyncSwarmClient.episodes)
    episode = _blocking(AsyncSwarmClient.episode)
    export = _blocking(AsyncSwarmClient.export)
    model = _blocking(AsyncSwarmClient.model)
    files = _blocking(AsyncSwarmClient.files)
    fetch = _blocking(AsyncSwarmClient.fetch)
    key = _blocking(AsyncSwarmClient.key)
    checkpoints = _blocking(AsyncSwarmClient.checkpoints)
    release = _blocking(AsyncSwarmClient.release)
    snapshot = _blocking(AsyncSwarmClient.snapshot)
    history = _blocking(AsyncSwarmClient.history)
    streams = _blocking(AsyncSwarmClient.streams)
    share = _blocking(AsyncSwarmClient.share)
    rollout = _playing(AsyncSwarmClient.rollout)
    evaluate = _playing(AsyncSwarmClient.evaluate)


SyncTeamAgent = Callable[["SyncTeam"], Mapping[str, Result]]


def _playing_teams(verb: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    def call(clients: Mapping[str, SwarmClient], tasks: Iterable[HasId], play: SyncTeamAgent, **kwargs: Any) -> T:
        async def run_play(team: Team) -> Mapping[str, Result]:
            return await run_in_thread(play, SyncTeam(background(), team))

        known = list(tasks)  # here, as what gives them may block
        members = {role: client._inner for role, client in clients.items()}
        return background().run(verb(members, known, run_play, **kwargs))

    return wraps(verb)(call)


class SyncTeam:
    """One play of a task by several members, as a plain function sees it: `team["speaker"]` is a `SyncEpisode`."""

    def __init__(self, bridge: Bridge, team: Team) -> None:
        self.episodes = {role: SyncEpisode(bridge, episode) for role, episode in team.episodes.items()}
        self.task: Any = team.task

    def __getitem__(self, role: str) -> SyncEpisode:
        return self.episodes[role]

    rollout = staticmethod(_playing_teams(Team.rollout))
    evaluate = staticmethod(_playing_teams(Team.evaluate))
