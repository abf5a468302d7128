"""ReplicaSpec, GenerateCommand, Delivery, ReplicaHandle.

What a replica is asked to generate, and what it says to that: plain data that a process can send to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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


class ReplicaHandle(Protocol):
    """One life of a replica: it is booted once, and once it is dead or killed another takes its place.

    Whatever waits has a bound. ReplicaDied says that this life is over; BackendError, that another would not do either.
    """

    async def boot(self) -> None:
        """Load the model; return once it could answer."""

    def submit(self, order: GenerateCommand) -> None:
        """Have it generate; what comes of it is in `take`."""

    def cancel(self, key: int) -> None:
        """Have it forget an order."""

    async def take(self) -> Sequence[Delivery]:
        """Return what it generated; empty after some seconds in which there was nothing."""

    def load(self, version: int, buckets: Sequence[Any]) -> None:
        """Give it weights, and return once it serves them as `version`. Blocks, off or on the event loop.

        One that rests takes its device's memory again for them, and goes on with what waits.
        """

    def sleep(self) -> None:
        """Have it stop, keep what is open, and give its device's memory back until the next `load`. Blocks."""

    def score(self, rows: Sequence[Sequence[int]], seconds: float) -> tuple[int, Sequence[Sequence[float]]]:
        """Return the version that it serves, and log-probs of each row's ids but the first at temperature 1. Blocks.

        Of a row as long as the context it leaves the last id out. BackendError where it rests.
        """

    def kill(self) -> None:
        """End it at once; safe to call twice."""
