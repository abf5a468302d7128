"""The light client."""

from swarm.client.async_client import AsyncSwarmClient, NamedTask
from swarm.client.episode import (
    Agent,
    AgentFailed,
    ChatReply,
    Earned,
    Episode,
    EpisodeResult,
    HasId,
    Result,
    RolloutSummary,
)
from swarm.client.rollout import AgentMisplays, StreamTasks
from swarm.client.sync_client import SwarmClient, SyncAgent, SyncEpisode, plain_agent

__all__ = [
    "Agent", "AgentFailed", "AgentMisplays", "AsyncSwarmClient", "ChatReply", "Earned", "Episode", "EpisodeResult",
    "HasId", "NamedTask", "Result", "RolloutSummary", "StreamTasks", "SwarmClient", "SyncAgent",
    "SyncEpisode", "plain_agent",
]  # fmt: skip
