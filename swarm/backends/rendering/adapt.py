"""Messages adapted to what a chat template takes, without changing what they say.

A `developer` is a `system` where the template knows none; tool-call ids are shortened, or made up, where the
template takes only short ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from swarm.backends.protocols import Message
from swarm.backends.rendering.marks import SHORT_ID


def as_system(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the role `developer` as `system`."""
    return [{**message, "role": "system"} if message.get("role") == "developer" else message for message in messages]


def with_short_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with tool-call ids of `SHORT_ID` letters and digits; a result without one takes the next."""
    fitted: list[Message] = []
    open_ids: dict[str, None] = {}  # in their order
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
            named = [{**call, "id": _short(call.get("id"), number)} for number, call in enumerate(calls)]
            open_ids = dict.fromkeys(call["id"] for call in named)
            message = {**message, "tool_calls": named}
        elif message.get("role") == "tool":
            given = message.get("tool_call_id")
            unnamed = next(iter(open_ids), _short(None, 0))
            own = _short(given, 0) if given else unnamed
            open_ids.pop(own, None)
            message = {**message, "tool_call_id": own}
        fitted.append(message)
    return fitted


def _short(given: Any, number: int) -> str:
    if not given:
        return f"{number:0{SHORT_ID}d}"
    text = str(given)
    fits = len(text) == SHORT_ID and text.isascii() and text.isalnum()
    return text if fits else blake2b(text.encode(), digest_size=8).hexdigest()[:SHORT_ID]
