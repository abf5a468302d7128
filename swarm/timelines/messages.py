"""Chat messages made comparable: what an agent sends back is matched with what was served.

Promises that two messages have equal keys exactly when they say the same: absent, null and empty optional
fields are one; content in text parts equals the joined string; the arguments of a tool call are compared as
JSON values. Knows nothing of templates or tokens.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from swarm.backends.protocols import Message

_EMPTY: tuple[Any, ...] = (None, "", [], {})


def normalise(message: Message) -> dict[str, Any]:
    """Return the message as templates want it: no null or empty optional field, text parts joined."""
    kept = {name: value for name, value in message.items() if name == "role" or value not in _EMPTY}
    kept["content"] = _text(kept.get("content", ""))
    return kept


def canonical(message: Message) -> Hashable:
    """Return a key that equal messages share; a plain message's is the pair of its role and text."""
    if len(message) == 2 and type(message.get("content")) is str and "role" in message:
        return message["role"], message["content"]
    plain = normalise(message)
    if plain.keys() == {"role", "content"} and isinstance(plain["content"], str):
        return plain["role"], plain["content"]
    if "tool_calls" in plain:
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in plain["tool_calls"]]
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str)


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def _with_parsed_arguments(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    function["arguments"] = _parsed(function.get("arguments"))
    return {**call, "function": function}


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
