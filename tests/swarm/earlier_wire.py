"""Answers as clients of the first release parse them, word for word: they refuse each field that they do not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Earlier(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EarlierStream(_Earlier):
    """A stream."""

    name: str
    share: float | None
    cursor: int
    groups_open: int
    groups_trained: int
    unfinished: Mapping[str, int] = Field(default_factory=dict)


class EarlierStreams(_Earlier):
    """What `/streams` answers."""

    streams: tuple[EarlierStream, ...]


class EarlierCheckpoint(_Earlier):
    """A checkpoint."""

    name: str
    step: int
    size_bytes: int


class EarlierCheckpoints(_Earlier):
    """What `/checkpoints` answers."""

    job_digest: str | None
    checkpoints: tuple[EarlierCheckpoint, ...]


class EarlierSummary(_Earlier):
    """An episode in a list."""

    id: str
    task_id: str
    stream: str
    kind: Literal["train", "eval"]
    owner: str
    state: Literal["open", "prepared", "ended", "in_step", "consumed", "aborted", "fenced", "dropped"]
    reason: str | None = None
    group: str | None = None
    step: int | None = None
    reward: float | None = None
    success: bool | None = None
    calls: int
    tokens: int


class EarlierEpisodes(_Earlier):
    """What `/episodes` answers."""

    episodes: tuple[EarlierSummary, ...]


class EarlierSpan(_Earlier):
    """Tokens of a call."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    special: tuple[int, ...] = ()


class EarlierCall(_Earlier):
    """A call of an episode."""

    index: int
    parent: int | None
    drift: str
    context: EarlierSpan
    sampled: EarlierSpan
    trained: bool = True
    truncated: bool | None = None


class EarlierEpisode(EarlierSummary):
    """What `/episodes/ID` answers."""

    record: tuple[EarlierCall, ...]
