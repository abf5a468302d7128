"""The light client."""

from importlib import import_module
from typing import TYPE_CHECKING

from swarm.client.async_client import AsyncSwarmClient, ExportFormat, NamedTask
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
