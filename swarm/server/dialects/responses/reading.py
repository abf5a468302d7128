"""Reads a request of OpenAI's Responses API into an `Ask`.

What is decided here and nowhere else (and, of items, in `items`):

- The server keeps nothing: `previous_response_id`, `conversation`, `item_reference` and `background` are refused;
  `store` has no influence, and the answer says `store: false`.
- `reasoning.effort` and `text.verbosity` are advice to a model, which no model here is given, and tools that OpenAI
  runs itself (a search of the web, of files, ...) and groups of tools (`namespace`) cannot be offered: they are left
  out and told. The answer's `tools` are those that the model was offered.
  `reasoning.summary: auto` asks for the best there is, which is the whole reasoning, served as `content`.
- `truncation: auto` is refused: nothing is ever cut out of a history.
- `strict` of a tool has no influence: the answer says `strict: false`. `text.format` is the way to hold an answer
  to a schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swarm.backends.protocols import Message, Tool
from swarm.errors import NotFound
from swarm.server.dialects.base import Ask, ToolChoice, Wishes
from swarm.server.dialects.reading import (
    Fields,
    body_fields,
    function_tool,
    known_choice,
    read_tools,
    refused,
    shown,
    trained,
)
from swarm.server.dialects.responses.items import messages_of

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


def parse(body: bytes, model: str) -> Ask:
    """Return the request; InvalidRequest names what is wrong or not honoured, NotFound another model."""
    fields = body_fields(body)
    name = fields.words("model")
    if name != model:
        raise NotFound(f"expected model {model!r}, found {name!r}", param="model")
    instructions = fields.text("instructions")
    messages = _instructed(instructions, messages_of(fields.take("input")))
    tools, left_out = read_tools(fields.items("tools") or [], "tools", _tool, _LEFT_OUT)
    format_, verbosity = _text(fields.inner("text"))
    advised = {"reasoning.effort": _effort(fields.inner("reasoning")), "text.verbosity": verbosity}
    parallel = fields.flag("parallel_tool_calls")
    ask = Ask(
        messages=messages,
        tools=tools,
        tool_choice=known_choice(_tool_choice(fields), tools),
        parallel_tool_calls=parallel is not False,
        wishes=_wishes(fields, format_),
        train=trained(fields),
        stream=_stream(fields),
        logprobs=_logprobs(fields),
        usage_in_stream=True,
        left_out=(*left_out, *(name for name, advice in advised.items() if advice is not None)),
        echo={"instructions": instructions, "metadata": fields.object("metadata") or {}, "format": format_},
    )
    fields.neutral(background=(False,), truncation=("disabled",), context_management=([],), moderation=())
    _refuse_kept(fields)
    fields.without_influence(*_NO_INFLUENCE)
    fields.close()
    return ask


def _refuse_kept(fields: Fields) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if fields.take(name) is not None:
            raise refused(name, "the server keeps no responses, conversations or prompts; send the history as `input`")


def _instructed(instructions: str | None, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return ({"role": "system", "content": instructions}, *messages) if instructions else messages


def _wishes(fields: Fields, format_: Mapping[str, Any]) -> Wishes:
    schema = None
    if format_["type"] != "text":
        schema = format_.get("schema") or {}
    return Wishes(
        max_tokens=fields.whole("max_output_tokens", 1),
        temperature=fields.number("temperature", 0, 5),
        top_p=fields.number("top_p", 1e-9, 1),
        json_schema=schema,
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
    kind = found.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise refused(found.at("type"), "expected one of text, json_object, json_schema, found none")
    read: dict[str, Any] = {"type": kind}
    if kind == "json_schema":
        read |= {"name": found.words("name"), "schema": found.object("schema") or {}, "strict": True}
        found.flag("strict")
        description = found.text("description")
        read |= {"description": description} if description else {}
    found.close()
    return read


def _stream(fields: Fields) -> bool:
    options = fields.inner("stream_options")
    if options is not None:
        options.without_influence("include_obfuscation")
        options.close()
    return fields.flag("stream") or False


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.items("include") or []
    for number, name in enumerate(wanted):
        if name not in (LOGPROBS, _SEALED):
            raise refused(f"include.{number}", f"expected {LOGPROBS} or {_SEALED}, found {shown(name)}")
    top = fields.whole("top_logprobs", 0, 20)
    if top and LOGPROBS not in wanted:
        raise refused("top_logprobs", f"expected {LOGPROBS!r} in `include` too; add it, or leave `top_logprobs` out")
    return (top or 0) if LOGPROBS in wanted else None


def _effort(reasoning: Fields | None) -> str | None:
    if reasoning is None:
        return None
    effort = reasoning.text("effort")
    reasoning.neutral(summary=("auto",), generate_summary=("auto",), context=("auto", "all_turns"), mode=("standard",))
    reasoning.close()
    return effort


def _tool(fields: Fields) -> Tool:
    kind = fields.words("type")
    if kind != "function":
        raise refused(fields.at("type"), f"only function tools are honoured by this server, found {kind!r}")
    tool = function_tool(fields.words("name"), fields.text("description"), fields.object("parameters"))
    fields.flag("strict")
    fields.neutral(allowed_callers=(["direct"],), defer_loading=(False,), **{"async": (False,)})
    fields.without_influence("output_schema")
    fields.close()
    return tool


def _tool_choice(fields: Fields) -> ToolChoice:
    found = fields.take("tool_choice")
    if found is None or found in ("auto", "none", "required"):
        return ToolChoice(found or "auto")
    if not isinstance(found, dict) or found.get("type") != "function":
        raise refused("tool_choice", f"only auto, none, required and a function are honoured, found {shown(found)}")
    named = Fields(found, "tool_choice")
    named.take("type")
    choice = ToolChoice("required", named.words("name"))
    named.close()
    return choice
