"""Reads a request of OpenAI's Responses API into an `Ask`.

- Items of one assistant turn become one message; item ids tell turns apart, else a second `message` opens a new one.
- A `reasoning` item must bring `content` or `encrypted_content`; a call's output must come after the call. The server
  keeps nothing: `previous_response_id`, `conversation`, `item_reference` and `background` are refused, `store` has no
  influence (the answer says false). Items of built-in tools are refused.
- `developer` is `system`: chat templates know no other word for it.
- `reasoning.effort`, `text.verbosity`, tools that OpenAI runs itself and `namespace` groups are left out and told; the
  answer's `tools` are those the model was offered. `reasoning.summary: auto` gets the whole reasoning as `content`.
- `truncation: auto` is refused, as nothing is cut out of a history. `strict` of a tool has no influence (the answer
  says false); `text.format` holds an answer to a schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.dialects.base import CompletionRequest, RequestedSampling, ToolChoice, unseal
from swarm.dialects.fields import (
    Fields,
    abbreviate,
    body_fields,
    check_choice,
    field_error,
    function_tool,
    is_plain,
    is_trained,
    join_text,
    read_call_id,
    read_tools,
)
from swarm.errors import NotFound
from swarm.rendering.messages import Message, Tool

_ITEM_ID = re.compile(r"(?:msg|rs|fc)_(.+)_\d+")


def messages_of(found: Any) -> tuple[Message, ...]:
    if isinstance(found, str):
        return ({"role": "user", "content": found},)
    if not isinstance(found, list) or not found:
        raise field_error("input", f"expected a string or a list of items, found {abbreviate(found)}")
    conversation = _Conversation()
    for number, item in enumerate(found):
        if is_plain(item):
            conversation.say(item["role"], item["content"], None)
        else:
            _read_item(Fields(item, f"input.{number}"), conversation)
    return conversation.messages()


@dataclass(slots=True)
class _AssistantTurn:
    """The items of one assistant turn, as they come; `response` names the response they were served in."""

    response: str | None = None
    words: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def takes(self, kind: str, response: str | None) -> bool:
        if self.response is not None and response is not None:
            return self.response == response
        return kind != "message" or not self.words

    def message(self) -> Message:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.words)}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Conversation:
    """Messages being made of items; `called` are the ids of the function calls so far."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self._messages: list[Message] = []
        self._turn: _AssistantTurn | None = None

    def messages(self) -> tuple[Message, ...]:
        self._close_turn()
        return tuple(self._messages)

    def add(self, message: Message) -> None:
        self._close_turn()
        self._messages.append(message)

    def say(self, role: str, text: str, item_id: str | None) -> None:
        if role == "assistant":
            self.turn("message", item_id).words.append(text)
        else:
            self.add({"role": "user" if role == "user" else "system", "content": text})

    def turn(self, kind: str, item_id: str | None) -> _AssistantTurn:
        found = _ITEM_ID.fullmatch(item_id) if item_id else None
        response = found[1] if found else None
        if self._turn is None or not self._turn.takes(kind, response):
            self._close_turn()
            self._turn = _AssistantTurn(response)
        self._turn.response = self._turn.response or response
        return self._turn

    def _close_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None


def _read_item(item: Fields, conversation: _Conversation) -> None:
    kind = item.text("type") or "message"
    if kind not in _ITEMS:
        raise field_error(item.at("type"), f"items of type {kind!r} are not honoured by this server; leave them out")
    _ITEMS[kind](item, conversation)
    item.close()


def _read_message(item: Fields, conversation: _Conversation) -> None:
    role = item.required_choice("role", ("user", "assistant", "system", "developer"), "a role")
    content = join_text(item.take("content"), item.at("content"), _TEXTS)
    item_id = item.text("id")
    item.ignore("status", "phase")
    conversation.say(role, content, item_id)


def _read_call(item: Fields, conversation: _Conversation) -> None:
    function = {"name": item.required_text("name"), "arguments": item.required_text("arguments")}
    call_id = item.required_text("call_id")
    call = {"id": call_id, "type": "function", "function": function}
    conversation.turn("function_call", item.text("id")).calls.append(call)
    conversation.called.add(call_id)
    item.require_neutral(caller=({"type": "direct"},), **{"async": (False,)})
    item.ignore("status", "parsed_arguments")


def _read_output(item: Fields, conversation: _Conversation) -> None:
    content = join_text(item.take("output"), item.at("output"), _TEXTS)
    conversation.add(
        {"role": "tool", "tool_call_id": read_call_id(item, "call_id", conversation.called), "content": content}
    )
    item.require_neutral(caller=({"type": "direct"},))
    item.ignore("id", "status", "name")


def _read_reasoning(item: Fields, conversation: _Conversation) -> None:
    found, token = item.items("content") or None, item.text("encrypted_content")
    shown_text = None if found is None else join_text(found, item.at("content"), {"reasoning_text": _no_fields})
    carried = unseal(token) if token is not None else None
    if token is not None and (carried is None or shown_text not in (None, carried)):
        raise field_error(
            item.at("encrypted_content"), "was not made by this kind of server, or not for this `content`"
        )
    text = shown_text if shown_text is not None else carried
    if text is None:
        raise field_error(
            item.where, "expected the reasoning's `content` or `encrypted_content`, found neither; nothing is kept here"
        )
    conversation.turn("reasoning", item.text("id")).reasoning.append(text)
    item.ignore("summary", "status")


def _no_fields(part: Fields) -> None:
    """A part without further fields."""


def _ignore_served_fields(part: Fields) -> None:
    part.ignore("annotations", "logprobs", "parsed")


_TEXTS: Mapping[str, Callable[[Fields], None]] = {"input_text": _no_fields, "output_text": _ignore_served_fields}
_ITEMS: Mapping[str, Callable[[Fields, _Conversation], None]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "reasoning": _read_reasoning,
}

LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"
_NO_INFLUENCE = (
    "store", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "max_tool_calls", "client_metadata",
)  # fmt: skip
_LEFT_OUT = re.compile(
    r"(web_search(?:_preview)?)(?:_\d{4}_\d\d_\d\d)?"
    r"|(file_search|code_interpreter|image_generation|mcp|tool_search|namespace)"
)
_PLAIN_FORMAT: Mapping[str, Any] = {"type": "text"}


def parse(body: bytes, model: str) -> CompletionRequest:
    fields = body_fields(body)
    name = fields.required_text("model")
    if name != model:
        raise NotFound(f"expected model {model!r}, found {name!r}", param="model")
    instructions = fields.text("instructions")
    messages = messages_of(fields.take("input"))
    if instructions:
        messages = ({"role": "system", "content": instructions}, *messages)
    tools, left_out = read_tools(fields.items("tools") or [], "tools", _tool, _LEFT_OUT)
    format_, verbosity = _text(fields.inner("text"))
    advised = {"reasoning.effort": _effort(fields.inner("reasoning")), "text.verbosity": verbosity}
    parallel = fields.flag("parallel_tool_calls")
    request = CompletionRequest(
        messages=messages,
        tools=tools,
        tool_choice=check_choice(_tool_choice(fields), tools),
        parallel_tool_calls=parallel is not False,
        sampling=_parse_sampling(fields, format_),
        train=is_trained(fields),
        stream=_stream(fields),
        logprobs=_logprobs(fields),
        usage_in_stream=True,
        left_out=(*left_out, *(name for name, advice in advised.items() if advice is not None)),
        echo={"instructions": instructions, "metadata": fields.object("metadata") or {}, "format": format_},
    )
    fields.require_neutral(background=(False,), truncation=("disabled",), context_management=([],), moderation=())
    for stored in ("previous_response_id", "conversation", "prompt"):
        if fields.take(stored) is not None:
            raise field_error(
                stored, "the server keeps no responses, conversations or prompts; send the history as `input`"
            )
    fields.ignore(*_NO_INFLUENCE)
    fields.close()
    return request


def _parse_sampling(fields: Fields, format_: Mapping[str, Any]) -> RequestedSampling:
    return RequestedSampling(
        max_tokens=fields.integer("max_output_tokens", 1),
        temperature=fields.number("temperature", 0, 5),
        top_p=fields.number("top_p", 1e-9, 1),
        json_schema=None if format_["type"] == "text" else format_.get("schema") or {},
    )


def _text(text: Fields | None) -> tuple[Mapping[str, Any], str | None]:
    """Return the format of the answer, and how wordy it is asked to be, if that is not the default."""
    if text is None:
        return _PLAIN_FORMAT, None
    found, verbosity = text.inner("format"), text.choice("verbosity", ("low", "medium", "high"))
    text.close()
    return _format(found), verbosity if verbosity != "medium" else None


def _format(found: Fields | None) -> Mapping[str, Any]:
    if found is None:
        return _PLAIN_FORMAT
    kinds = ("text", "json_object", "json_schema")
    kind = found.required_choice("type", kinds, f"one of {', '.join(kinds)}")
    read: dict[str, Any] = {"type": kind}
    if kind == "json_schema":
        read |= {"name": found.required_text("name"), "schema": found.object("schema") or {}, "strict": True}
        found.flag("strict")
        description = found.text("description")
        read |= {"description": description} if description else {}
    found.close()
    return read


def _stream(fields: Fields) -> bool:
    options = fields.inner("stream_options")
    if options is not None:
        options.ignore("include_obfuscation")
        options.close()
    return fields.flag("stream") or False


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.items("include") or []
    for number, name in enumerate(wanted):
        if name not in (LOGPROBS, _SEALED):
            raise field_error(f"include.{number}", f"expected {LOGPROBS} or {_SEALED}, found {abbreviate(name)}")
    top = fields.integer("top_logprobs", 0, 20)
    if top and LOGPROBS not in wanted:
        raise field_error(
            "top_logprobs", f"expected {LOGPROBS!r} in `include` too; add it, or leave `top_logprobs` out"
        )
    return (top or 0) if LOGPROBS in wanted else None


def _effort(reasoning: Fields | None) -> str | None:
    if reasoning is None:
        return None
    effort = reasoning.text("effort")
    reasoning.require_neutral(
        summary=("auto",), generate_summary=("auto",), context=("auto", "all_turns"), mode=("standard",)
    )
    reasoning.close()
    return effort


def _tool(fields: Fields) -> Tool:
    kind = fields.required_text("type")
    if kind != "function":
        raise field_error(fields.at("type"), f"only function tools are honoured by this server, found {kind!r}")
    tool = function_tool(fields.required_text("name"), fields.text("description"), fields.object("parameters"))
    fields.flag("strict")
    fields.require_neutral(allowed_callers=(["direct"],), defer_loading=(False,), **{"async": (False,)})
    fields.ignore("output_schema")
    fields.close()
    return tool


def _tool_choice(fields: Fields) -> ToolChoice:
    found = fields.take("tool_choice")
    if found is None or found in ("auto", "none", "required"):
        return ToolChoice(found or "auto")
    if not isinstance(found, dict) or found.get("type") != "function":
        raise field_error(
            "tool_choice", f"only auto, none, required and a function are honoured, found {abbreviate(found)}"
        )
    named = Fields(found, "tool_choice")
    named.take("type")
    choice = ToolChoice("required", named.required_text("name"))
    named.close()
    return choice
