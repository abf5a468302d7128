"""Tokens as bytes: little-endian, ids and policy versions as int32, log-probs as float64 and so exact.

Rewards of calls are few and rare, and so JSON, which keeps a float64 exactly too.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

from swarm.backends.protocols import CallReward

T = TypeVar("T", int, float)
_FOREIGN = sys.byteorder == "big"
ID_BYTES = 4
"""Bytes of one id."""


def pack_ints(values: Sequence[int]) -> bytes:
    """Return the bytes of ids or versions; raise OverflowError for one that is no int32."""
    return _native(array("i", values)).tobytes()


def pack_floats(values: Sequence[float]) -> bytes:
    """Return the bytes of log-probs."""
    return _native(array("d", values)).tobytes()


def unpack_ints(data: bytes) -> tuple[int, ...]:
    """Return what `pack_ints` packed."""
    values = array("i")
    values.frombytes(data)
    return tuple(_native(values))


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """Return what `pack_floats` packed."""
    values = array("d")
    values.frombytes(data)
    return tuple(_native(values))


def pack_rewards(rewards: Sequence[CallReward]) -> str | None:
    """Return the JSON of rewards of calls; None where there are none."""
    return json.dumps([[each.call, each.reward, each.agent] for each in rewards]) if rewards else None


def unpack_rewards(data: str | None) -> tuple[CallReward, ...]:
    """Return what `pack_rewards` packed."""
    return tuple(CallReward(*each) for each in json.loads(data or "[]"))


def _native(values: array[T]) -> array[T]:
    if _FOREIGN:
        values.byteswap()
    return values
