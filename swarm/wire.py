"""The control plane's wire types, shared by server and client: frozen, validated, documented.

    POST /job                          Job            -> Status        (admin)
    GET  /job                                         -> Job | 404     (any role)
    POST /engine/start                                -> Status        (admin)
    POST /engine/stop                                 -> Status        (admin)
    GET  /status                                      -> Status        (any role)
    POST /episodes                     BeginRequest   -> Lease         (client, admin)
    POST /episodes/{id}/heartbeat                     -> Ack           (lease token)
    POST /episodes/{id}/end            EndRequest     -> Ack           (lease token)
    POST /episodes/{id}/abort          AbortRequest   -> Ack           (lease token)
    POST /v1/chat/completions          OpenAI chat    -> OpenAI chat   (the episode's api_key)
    GET  /v1/models                                   -> OpenAI list   (api_key or any role)
    GET  /health                                      -> {"status": "ok"}   (no key)

Keys travel as `Authorization: Bearer KEY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServerState(StrEnum):
    """The server's life: see `swarm.server.states` for the transitions."""

    OFFLINE = "OFFLINE"
    BOOTING = "BOOTING"
    ROLLING = "ROLLING"
    ROLLING_POST = "ROLLING_POST"
    WEIGHT_SYNCING = "WEIGHT_SYNCING"
    FAILED = "FAILED"


EpisodeKind = Literal["train", "eval"]


class Status(_Wire):
    """What a server is doing now."""

    state: ServerState
    reason: str | None = None
    """Why the server FAILED; None in every other state."""
    job_digest: str | None = None
    """Digest of the loaded job, None before one is loaded."""
    group_size: int | None = None
    """Episodes a client plays per task in the loaded job."""
    step: int = 0
    """Training steps done."""
    steps: int | None = None
    """Training steps the job asks for."""
    finished: bool = False
    """True once the last step is done: evaluation goes on, training episodes are refused (`job_finished`)."""
    policy_version: int = 0
    """Version of the weights that serve now; grows by one per step."""
    open_episodes: int = 0
    collected_episodes: int = 0
    """Ended training episodes waiting for the present step's batch."""
    needed_episodes: int = 0
    """Episodes the present step's batch takes."""
    metrics: Mapping[str, float] = Field(default_factory=dict)
    """Metrics of the last finished step, by verl's names (`critic/rewards/mean`, ...)."""


class BeginRequest(_Wire):
    """Ask for a lease on one episode of a task."""

    task_id: str = Field(min_length=1, max_length=512)
    stream: str = Field(default="default", min_length=1, max_length=128)
    kind: EpisodeKind = "train"
    owner: str = Field(default="anonymous", max_length=128)
    """Who asks; shown in status and logs."""
    wait_s: float = Field(default=0.0, ge=0, le=60)
    """Seconds the server may hold the request until there is room, before it answers 429."""


class Lease(_Wire):
    """The right to play one episode, until it ends or its time runs out."""

    episode_id: str
    epoch: int
    """Fencing number: a holder of an older epoch gets 409."""
    task_id: str
    kind: EpisodeKind
    api_key: str
    """Key for the model calls of this episode, and for nothing else."""
    lease_token: str
    """Key for this episode's heartbeat, end and abort, and for nothing else."""
    base_url: str
    """OpenAI-compatible address for the agent, ending in /v1."""
    model: str
    """Model name to send in calls."""
    ttl_s: float
    """Seconds the lease lives without a call or heartbeat."""
    policy_version: int


class EndRequest(_Wire):
    """End an episode with its reward."""

    reward: float = Field(ge=-1e9, le=1e9, allow_inf_nan=False)
    """What is trained on; within bounds that leave the learner's fp32 sums finite."""
    success: bool | None = None
    """Whether the task was solved; logged, never trained on."""


class AbortRequest(_Wire):
    """Give an episode up: nothing of it is trained, and its slot is free again."""

    reason: str = Field(default="", max_length=2000)


class Ack(_Wire):
    """The call took effect (or had before: end, abort and heartbeat are idempotent)."""

    episode_id: str
    state: Literal["open", "ended", "aborted"]
