"""Server-sent events as the protocols write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

COMMENT = b": keep-alive\n\n"
"""What every client of server-sent events must skip."""


_LINE_ENDS = tuple((letter.encode(), b"\\u%04x" % ord(letter)) for letter in "\x85\u2028\u2029")


def event(value: Mapping[str, Any]) -> bytes:
    """Return an event of one line of data; a number that JSON cannot write becomes null.

    No end of a line that some clients see and others do not is left in it (U+0085, U+2028, U+2029).
    """
    data = to_json(value, inf_nan_mode="null")
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """Return an event that bears the name its data has as `type`."""
    return b"event: " + str(value["type"]).encode() + b"\n" + event(value)
