"""Anthropic's endpoint: a chat completion request as its Messages API takes it, and its reply as a chat completion.

Planners speak one form, OpenAI's; recordings hold it too, whichever endpoint answered. A model's thinking goes back to
it unread with the call of a tool that followed it, as the API demands, under a name that no other endpoint uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError

from research.planners.endpoint import OpenAiEndpoint

THINKING: Final = "anthropic_thinking"
USUAL_TOKENS: Final = 16_000
"""Most tokens of an answer where nobody says: this API wants a number."""
_ENDS: Final = {"max_tokens": "length", "model_context_window_exceeded": "length", "tool_use": "tool_calls"}


class AnthropicEndpoint(OpenAiEndpoint):
    """An endpoint behind the anthropic client."""

    api = "anthropic"

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> str:
        import anthropic

        key, url = self._api_key, self._base_url
        with anthropic.Anthropic(api_key=key, base_url=url, timeout=timeout_s, max_retries=0) as client:
            return to_completion(client.messages.with_raw_response.create(**to_messages(request)).text())


def to_messages(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat completion request as one of the Messages API: turns alternate, the system prompt stands apart."""
    import anthropic

    turns: list[dict[str, Any]] = []
    for message in request["messages"]:
        role = "user" if message["role"] == "tool" else message["role"]
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += _blocks(message)
    system = turns.pop(0)["content"] if turns[0]["role"] == "system" else []
    most = request.get("max_completion_tokens", USUAL_TOKENS)
    asked = {"model": request["model"], "max_tokens": most, "system": system, "messages": turns}
    if functions := [tool["function"] for tool in request.get("tools", ())]:
        asked["tools"] = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions
        ]
    if choice := request.get("tool_choice"):
        asked["tool_choice"] = {"type": choice}
    config = {"effort": effort} if (effort := request.get("reasoning_effort")) else {}
    if form := request.get("response_format"):
        config["format"] = {"type": "json_schema", "schema": anthropic.transform_schema(form["json_schema"]["schema"])}
    return asked | ({"output_config": config} if config else {})


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = message.get("content") or ""
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}]
    blocks = [*message.get(THINKING, ()), *([{"type": "text", "text": text}] if text.strip() else [])]
    for call in message.get("tool_calls", ()):
        arguments: Any = {}
        with suppress(ValueError):  # of another model, which wrote no JSON
            arguments = json.loads(call["function"]["arguments"])
        given = arguments if isinstance(arguments, dict) else {}
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
    return blocks


def to_completion(body: str) -> str:
    """Return the body of a reply as that of a chat completion; one that is no reply as it is, for others to refuse."""
    from anthropic.types import Message

    try:
        reply = Message.model_validate_json(body)
    except ValidationError:
        return body
    calls = [
        {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": json.dumps(b.input)}}
        for b in reply.content
        if b.type == "tool_use"
    ]
    thinking = [b.model_dump() for b in reply.content if b.type in ("thinking", "redacted_thinking")]
    message = {"content": "".join(b.text for b in reply.content if b.type == "text"), "tool_calls": calls}
    message |= {THINKING: thinking} if thinking else {}
    message |= {"refusal": "its safety rules end the answer"} if reply.stop_reason == "refusal" else {}
    usage = reply.usage
    cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    tokens = {"prompt_tokens": usage.input_tokens + cached, "completion_tokens": usage.output_tokens}
    choice = {"message": message, "finish_reason": _ENDS.get(str(reply.stop_reason), "stop")}
    return json.dumps({"model": str(reply.model), "choices": [choice], "usage": tokens})
