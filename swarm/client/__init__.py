"""The client of a swarm server: point any agent at it and train the model behind it.

    async with AsyncSwarmClient(url, token) as client:
        await client.ensure_training(job)
        await client.rollout(agent, tasks, concurrency=64)      # async def agent(episode) -> reward

Needs aiohttp and pydantic, nothing else.

May enter: what an agent's process needs to speak to a server. The types of the wire are in `swarm/wire.py`; agents and
evaluation of the environments are in `swarm.environments.playing`, teams of several models in `swarm.client.teams`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from swarm.client.agents import Agent, AgentFailed, Earned, EpisodeResult, Result, RolloutSummary
from swarm.client.asynchronous import AsyncSwarmClient, ExportFormat, NamedTask
from swarm.client.episode import ChatReply, Episode, HasId
from swarm.client.failures import AgentMisplays
from swarm.client.stream_tasks import StreamTasks
from swarm.client.synchronous import SwarmClient, SyncAgent, SyncEpisode, plain_agent

__all__ = [
    "Agent",
    "AgentFailed",
    "AgentMisplays",
    "AsyncSwarmClient",
    "ChatReply",
    "Earned",
    "Episode",
    "EpisodeResult",
    "ExportFormat",
    "HasId",
    "NamedTask",
    "Result",
    "RolloutSummary",
    "StreamTasks",
    "SwarmClient",
    "SyncAgent",
    "SyncEpisode",
    "plain_agent",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return `Team`, which was had here before teams had a package of their own (`swarm.client.teams`)."""
        if name == "Team":
            return import_module("swarm.client.teams").Team
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
