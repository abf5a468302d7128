"""What a replica is asked to generate, and what it says to that: plain data that a process can send to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from swarm.backends.protocols import Chunk, Sampling

Top = tuple[tuple[int, float], ...]
"""The likeliest ids of a place, likeliest first, with their log-probs."""


class ReplicaDied(Exception):
    """A replica's process, or its engine's, is gone or does not answer; the message says how that was seen."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """How a replica is made. `folder` is that of the model, at the same place on every node.

    max_context: tokens of a prompt and its answer together. max_concurrency: sequences that advance at once.
    kv_cache_bytes: most bytes of its key-value cache. gpu_memory: the part of a GPU's memory that it may take, weights
    and cache. colocated: whether it is told to rest, as something else uses its device in turns with it.
    """

    folder: str
    max_context: int
    max_concurrency: int
    kv_cache_bytes: int
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    tensor_parallel: int = 1
    gpu_memory: float = 0.6
    colocated: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """The next tokens of a stream, with the log-prob of each and, where asked for, the likeliest ids there."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[Top, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """One completion that a replica is to generate: `limit` tokens of prompt and answer at most."""

    key: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    limit: int


class Delivery(NamedTuple):
    """What a replica has of an order: its next chunk, or why there will be none any more."""

    key: int
    chunk: Chunk | None
    lost: str = ""
