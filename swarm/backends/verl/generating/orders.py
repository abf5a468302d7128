"""What a replica is asked to generate, and what it says to that.

Promises: all of it is plain data that a process can send to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from swarm.backends.protocols import Chunk, Sampling


@dataclass(frozen=True, slots=True)
class Order:
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
