"""Chat messages made comparable: what an agent sends back is matched with what was served.

Promises that two messages have equal keys exactly when they say the same: absent, null and empty optional
fields are one; content in text parts equals the joined string; a tool call is its function's name and its arguments
as a JSON value, whatever its id; whitespace at the ends of an assistant's words and thinking is no difference.
Arguments that no template could write, since they hold half a character or are nested hundreds deep, stay text.
Knows nothing of templates or tokens.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from swarm.backends.protocols import Message

_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())
_IDS = frozenset({"id", "tool_call_id"})
"""Fields that only tie a result to its call: clients and dialects write them anew."""


def normalise(message: Message) -> dict[str, Any]:
    """Return the message as templates want it.

    It has no null or empty optional field, its text parts are joined, and the arguments of its tool calls are
    objects where they are valid JSON objects.
    """
    kept = {name: value for name, value in message.items() if name == "role" or value not in _EMPTY}
    kept["content"] = _text(kept.get("content", ""))
    calls = kept.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        kept["tool_calls"] = [_with_object_arguments(call) for call in calls]
    return kept


def canonical(message: Message) -> Hashable:
    """Return a key that equal messages share; a plain message's is the pair of its role and text."""
    role = message.get("role")
    if len(message) == 2 and type(message.get("content")) is str and "role" in message:
        return role, message["content"].strip() if role == "assistant" else message["content"]
    plain = {name: value for name, value in normalise(message).items() if name not in _IDS}
    if role == "assistant":
        plain = _without_outer_spaces(plain)
    if plain.keys() == {"role", "content"} and isinstance(plain["content"], str):
        return role, plain["content"]
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_named(call) for call in plain["tool_calls"]]
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str)


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def _without_outer_spaces(message: dict[str, Any]) -> dict[str, Any]:
    trimmed = {name: value.strip() if isinstance(value, str) else value for name, value in message.items()}
    return {name: value for name, value in trimmed.items() if value != "" or name in ("role", "content")}


def _with_object_arguments(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = call["function"]
    arguments = _parsed(function.get("arguments"))
    if not isinstance(arguments, Mapping):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _named(call: Any) -> Any:
    """Return what a call says: its function and the value of its arguments."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = call["function"]
    return [function.get("name"), _parsed(function.get("arguments"))]


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return from_json(arguments)  # unlike json's, it refuses half characters, and depths that others fail on
    except ValueError:
        return arguments
