"""Server-sent events as the protocols write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

COMMENT = b": keep-alive\n\n"
"""What every client of server-sent events must skip."""


def named_event(value: Mapping[str, Any]) -> bytes:
    """Return an event that bears the name its data has as `type`; a number that JSON cannot write becomes null."""
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + to_json(value, inf_nan_mode="null") + b"\n\n"
