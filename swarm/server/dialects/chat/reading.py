"""Reads a request of OpenAI's chat completions into an `Ask`.

What is decided here and nowhere else:

- `developer` messages are `system` messages: chat templates know no other word for them.
- `reasoning` of an assistant's message is what others call `reasoning_content`.
- A tool message answers a call that an assistant's message before it made; its `tool_call_id` says which.
- `stream_options` without `stream`, and `top_logprobs` 0, ask for nothing that could be refused.
- Penalties, biases and the like are known, but no engine here applies them: they are handed on as `others`.
- `reasoning_effort` and `verbosity` are advice to a model, which no model here is given: they are left out and told.
- What clients store of our own answers and send back is taken: litellm's `provider_specific_fields`, which repeat what
  it has no field for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swarm.backends.protocols import Message, Tool
from swarm.errors import NotFound
from swarm.server.dialects.base import Ask, ToolChoice, Wishes
from swarm.server.dialects.reading import (
    Fields,
    answered,
    body_fields,
    function_tool,
    is_plain,
    joined_text,
    known_choice,
    refused,
    shown,
    trained,
)

MOST_ANSWERS = 128
MOST_ALTERNATIVES = 20
_NO_INFLUENCE = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention",
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}
_OTHERS: Mapping[str, Any] = {
    "logit_bias": {},
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "min_tokens": 0,
    "ignore_eos": False,
}
"""Fields that shape the distribution, each with the value that asks for nothing."""
_ADVICE: Mapping[str, str | None] = {"reasoning_effort": None, "verbosity": "medium"}
"""Fields that advise the model, each with the value that advises nothing."""


def parse(body: bytes, model: str) -> Ask:
    """Return the request; InvalidRequest names what is wrong or not honoured, NotFound another model."""
    fields = body_fields(body)
    name = fields.words("model")
    if name != model:
        raise NotFound(f"expected model {model!r}, found {name!r}", param="model")
    messages, stream = _messages(fields.items("messages")), fields.flag("stream") or False
    if fields.empty:  # as most requests are
        return Ask(messages, stream=stream)
    tools = [_tool(Fields(tool, f"tools.{number}")) for number, tool in enumerate(fields.items("tools") or [])]
    parallel = fields.flag("parallel_tool_calls")
    ask = Ask(
        messages=messages,
        tools=tuple(tools),
        tool_choice=_tool_choice(fields.take("tool_choice"), tools),
        parallel_tool_calls=parallel is not False,
        wishes=_wishes(fields),
        n=fields.whole("n", 1, MOST_ANSWERS) or 1,
        train=trained(fields),
        stream=stream,
        logprobs=_logprobs(fields),
        usage_in_stream=_usage_in_stream(fields.inner("stream_options")),
        left_out=tuple(name for name, plain in _ADVICE.items() if fields.text(name) not in (None, plain)),
    )
    fields.without_influence(*_NO_INFLUENCE)
    fields.neutral(**_NEUTRAL)
    fields.close()
    return ask


def _wishes(fields: Fields) -> Wishes:
    limits = [fields.whole("max_tokens", 1), fields.whole("max_completion_tokens", 1)]
    return Wishes(
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        temperature=fields.number("temperature", 0, 5),
        top_p=fields.number("top_p", 1e-9, 1),
        top_k=fields.whole("top_k", -1),
        seed=fields.whole("seed", -(2**63), 2**63 - 1),
        stop=fields.stops("stop", alone=True),
        json_schema=_schema(fields.inner("response_format")),
        others={name: value for name, value in ((n, fields.take(n)) for n in _OTHERS) if _asks(name, value)},
    )


def _asks(name: str, value: Any) -> bool:
    return value is not None and value != _OTHERS[name]


def _schema(found: Fields | None) -> Mapping[str, Any] | None:
    """Return the schema an answer must follow, {} for any object, None for free text."""
    kind = None if found is None else found.choice("type", ("text", "json_object", "json_schema"))
    if found is None:
        return None
    if kind is None:
        raise refused(found.at("type"), "expected text, json_object or json_schema, found none")
    schema: Mapping[str, Any] | None = {} if kind == "json_object" else None
    if kind == "json_schema":
        inner = found.inner("json_schema")
        if inner is None:
            raise refused(found.at("json_schema"), "expected an object, found none")
        schema = inner.object("schema") or {}
        inner.without_influence("name", "description", "strict")
        inner.close()
    found.close()
    return schema


def _logprobs(fields: Fields) -> int | None:
    wanted, most = fields.flag("logprobs") or False, fields.whole("top_logprobs", 0, MOST_ALTERNATIVES)
    if most and not wanted:
        raise refused("top_logprobs", "is given only beside `logprobs` true; add it, or leave this out")
    return (most or 0) if wanted else None


def _usage_in_stream(options: Fields | None) -> bool:
    if options is None:
        return False
    wanted = options.flag("include_usage") or False
    options.without_influence("include_obfuscation")
    options.close()
    return wanted


def _tool(fields: Fields) -> Tool:
    function = _function(fields, fields.text("type"), "tools")
    tool = function_tool(function.words("name"), function.text("description"), function.object("parameters"))
    function.without_influence("strict")
    function.close()
    fields.close()
    return tool


def _function(fields: Fields, kind: str | None, what: str) -> Fields:
    """Return the function of a tool or a call."""
    if kind != "function":
        raise refused(fields.at("type"), f"only {what} of type 'function' are honoured, found {kind!r}")
    function = fields.inner("function")
    if function is None:
        raise refused(fields.at("function"), "expected an object with the function's name, found none")
    return function


def _tool_choice(found: Any, tools: list[Tool]) -> ToolChoice:
    if found is None or found == "auto":
        return ToolChoice()
    if found == "none":
        return ToolChoice("none")
    return known_choice(ToolChoice("required", None if found == "required" else _named(found)), tools)


def _named(found: Any) -> str:
    if not isinstance(found, dict) or found.get("type") != "function":
        raise refused("tool_choice", f"expected none, auto, required or a function, found {shown(found)}")
    fields = Fields(found, "tool_choice")
    fields.take("type")
    function = fields.inner("function")
    if function is None:
        raise refused("tool_choice.function", "expected an object, found none")
    name = function.words("name")
    function.close()
    fields.close()
    return name


def _messages(found: list[Any] | None) -> tuple[Message, ...]:
    if not found:
        raise refused("messages", "expected a list of at least one message, found none")
    called: set[str] = set()
    return tuple(
        message if is_plain(message) else _message(Fields(message, f"messages.{number}"), called)
        for number, message in enumerate(found)
    )


def _message(fields: Fields, called: set[str]) -> Message:
    """Return one message; `called` are the ids of the tool calls before it, and gets its own."""
    role = fields.choice("role", tuple(_ROLES))
    if role is None:
        raise refused(fields.at("role"), f"expected one of {', '.join(_ROLES)}, found none")
    message: dict[str, Any] = {"role": _ROLES[role]}
    content = fields.take("content")
    if content is None and role != "assistant":
        raise refused(fields.at("content"), "expected a string or a list of text parts, found none")
    message["content"] = "" if content is None else joined_text(content, fields.at("content"), _TEXT)
    name = fields.text("name")
    if name:
        message["name"] = name
    if role == "assistant":
        message |= _assistant(fields, called)
    elif role == "tool":
        message["tool_call_id"] = answered(fields, "tool_call_id", called)
    fields.close()
    return message


def _assistant(fields: Fields, called: set[str]) -> Message:
    """Return what an answer has besides its words; what the SDKs add when they write one down asks for nothing."""
    fields.neutral(refusal=("",), audio=(), function_call=(), annotations=([],))
    fields.without_influence("parsed")
    _take_stored(fields)
    message: dict[str, Any] = {}
    thought = [fields.text("reasoning_content"), fields.text("reasoning")]
    if any(thought):
        message["reasoning_content"] = thought[0] or thought[1]
    where = fields.at("tool_calls")
    calls = [_call(Fields(call, f"{where}.{number}")) for number, call in enumerate(fields.items("tool_calls") or [])]
    if calls:
        message["tool_calls"] = calls
        called.update(call["id"] for call in calls)
    return message


def _take_stored(fields: Fields) -> None:
    """Take what litellm stored of an answer of ours beside its own fields: no refusal, and the thinking once more."""
    stored = fields.inner(_STORED)
    if stored is not None:
        stored.neutral(refusal=("",))
        stored.without_influence("reasoning_content", "reasoning")
        stored.close()


def _call(fields: Fields) -> dict[str, Any]:
    call_id, function = fields.words("id"), _function(fields, fields.text("type") or "function", "calls")
    named = {"name": function.words("name"), "arguments": function.words("arguments")}
    function.without_influence("parsed_arguments", _STORED)
    function.close()
    fields.without_influence("index", _STORED)
    fields.close()
    return {"id": call_id, "type": "function", "function": named}


def _plain(part: Fields) -> None:
    part.without_influence("cache_control")


_STORED = "provider_specific_fields"
_TEXT = {"text": _plain}
_ROLES: Mapping[str, str] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
