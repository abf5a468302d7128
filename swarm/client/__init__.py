"""The client of a swarm server: point any agent at it and train the model behind it.

    async with AsyncSwarmClient(url, token) as client:
        await client.ensure_training(job)
        await client.rollout(agent, tasks, concurrency=64)      # async def agent(episode) -> reward

Needs aiohttp and pydantic, nothing else.

May enter: what an agent's process needs to speak to a server. The types of the wire are in `swarm/wire.py`; agents and
evaluation of the environments are in `swarm.environments.playing`.
"""

from swarm.client.agents import Agent, AgentFailed, EpisodeResult, Result, RolloutSummary
from swarm.client.asynchronous import AsyncSwarmClient, ExportFormat, NamedTask
from swarm.client.episode import ChatReply, Episode, HasId
from swarm.client.stream_tasks import StreamTasks
from swarm.client.synchronous import SwarmClient, SyncAgent, SyncEpisode, plain_agent
from swarm.client.team import Team

__all__ = [
    "Agent",
    "AgentFailed",
    "AsyncSwarmClient",
    "ChatReply",
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
    "Team",
    "plain_agent",
]
