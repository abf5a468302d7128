"""Tools in a game: how one is described, what a policy's message calls, and how a call is answered.

tools = (tool("price", "The price of an item, in cents.", item="string"),)
...
for call in calls_of(message):
    answers.append(tool_result(call, str(prices[call.arguments["item"]])))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.environments.base import Message, Tool


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call in a policy's message."""

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What it is called with; empty where the policy wrote no JSON object."""
    error: str = ""
    """What is wrong with what the policy wrote; empty for a well-formed call."""


def tool(name: str, description: str, **parameters: str | Mapping[str, Any]) -> Tool:
    """Return a tool; each parameter is a JSON type (`"string"`) or a JSON schema, and all of them are required."""
    properties = {key: {"type": kind} if isinstance(kind, str) else dict(kind) for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def calls_of(message: Message) -> list[ToolUse]:
    """Return the calls in a policy's message, in its order."""
    return [_call(entry) for entry in message.get("tool_calls") or ()]


def tool_result(call: ToolUse, text: str) -> Message:
    """Return the message that answers a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def calling(name: str, call_id: str = "call-1", **arguments: Any) -> Message:
    """Return the message of a policy that calls a tool; for oracles and demonstrations."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }  # fmt: skip


def _call(entry: Mapping[str, Any]) -> ToolUse:
    function, given = entry["function"], entry["function"].get("arguments")
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        return ToolUse(entry["id"], function["name"], error=f"the arguments are no JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolUse(entry["id"], function["name"], error="the arguments are no JSON object")
    return ToolUse(entry["id"], function["name"], arguments)
