"""Reads a request of Anthropic's Messages API into an `Ask`.

What is decided here and nowhere else:

- A user turn with tool results becomes one `tool` message for each, in place; its words become user messages.
  Blocks of text are joined with nothing between. A result that `is_error` is shown to the model with `Error: `
  before it, unless its text begins with `error` itself, for chat templates have no other mark for it.
- Thinking comes back with its signature, and a block whose text and signature do not fit is refused. Thinking
  cannot be switched on or off by a request: blocks are served when the model thinks, whatever `thinking` says, and
  `budget_tokens` has no influence beside `max_tokens`, which thinking counts into. `display: omitted` is honoured:
  the text is left out and its signature carries it.
- A last message of the assistant (a prefill) is refused: the answer would be another turn, not its continuation.
- `cache_control` has no influence; `strict` of a tool has none. `output_config.format` holds an answer to a schema;
  `output_config.effort` is advice to a model, which no model here is given: it is left out and told.
- Tools that Anthropic runs itself (a search of the web, the running of code, ...) are left out and told: a model here
  could only ask for what nobody does. Its tools that the client runs are refused, for an agent is nothing without them.
- `thread` is refused in the protocol's own words (`swarm.server.dialects.messages.threads`).
- `context_management` that clears nothing asks for nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swarm.backends.protocols import Message, Tool
from swarm.errors import NotFound
from swarm.server.dialects.base import Ask, ToolChoice, Wishes
from swarm.server.dialects.messages.threads import refuse_thread
from swarm.server.dialects.opaque import thinking_of, unsealed
from swarm.server.dialects.reading import (
    Fields,
    answered,
    body_fields,
    function_tool,
    is_plain,
    joined_text,
    known_choice,
    read_tools,
    refused,
    shown,
    trained,
)

_NO_INFLUENCE = (
    "metadata", "service_tier", "cache_control", "inference_geo", "diagnostics", "user_profile_id", "workspace_id",
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "speed": ("standard",), "container": (), "mcp_servers": ([],),
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
}  # fmt: skip
_LEFT_OUT = re.compile(
    r"(web_search|web_fetch|code_execution|tool_search_tool_(?:regex|bm25)|advisor)_\d{8}|(mcp_toolset)"
)


def parse(body: bytes, model: str) -> Ask:
    """Return the request; InvalidRequest names what is wrong or not honoured, NotFound another model."""
    fields = body_fields(body)
    max_tokens = fields.whole("max_tokens", 1)
    if max_tokens is None:
        raise refused("max_tokens", "expected a whole number of at least 1, found none")
    stream, train = fields.flag("stream") or False, trained(fields)
    stops = fields.stops("stop_sequences")
    temperature, top_p = fields.number("temperature", 0, 5), fields.number("top_p", 1e-9, 1)
    top_k = fields.whole("top_k", 0)
    fields.without_influence(*_NO_INFLUENCE)
    fields.neutral(**_NEUTRAL)
    schema, effort = _output(fields.inner("output_config"))
    ask = _shared(fields, model)
    return Ask(
        messages=ask.messages,
        tools=ask.tools,
        tool_choice=ask.tool_choice,
        parallel_tool_calls=ask.parallel_tool_calls,
        wishes=Wishes(max_tokens, temperature, top_p, top_k, stop=stops, json_schema=schema),
        train=train,
        stream=stream,
        usage_in_stream=True,
        left_out=(*ask.left_out, *(["output_config.effort"] if effort is not None else [])),
        echo=ask.echo,
    )


def parse_count(body: bytes, model: str) -> Ask:
    """Return what a request to count tokens would show the model; raises as `parse` does."""
    fields = body_fields(body)
    fields.without_influence(*_NO_INFLUENCE, "train")
    fields.neutral(**_NEUTRAL)
    _output(fields.inner("output_config"))
    return _shared(fields, model)


def _shared(fields: Fields, model: str) -> Ask:
    """Read what both kinds of request have, and close the body."""
    refuse_thread(fields)
    name = fields.words("model")
    if name != model:
        raise NotFound(f"expected model {model!r}, found {name!r}", param="model")
    system, turns = _system(fields.take("system"), "system"), fields.items("messages")
    tools, left_out = read_tools(fields.items("tools") or [], "tools", _tool, _LEFT_OUT)
    choice, parallel = _tool_choice(fields.inner("tool_choice"))
    display = _thinking(fields.inner("thinking"))
    fields.close()
    return Ask(
        messages=(*system, *_messages(turns)),
        tools=tools,
        tool_choice=known_choice(choice, tools),
        parallel_tool_calls=parallel,
        left_out=left_out,
        echo={"omitted": display == "omitted"},
    )


def _output(config: Fields | None) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return the schema an answer must follow, and the effort asked for."""
    if config is None:
        return None, None
    found, effort = config.inner("format"), config.text("effort")
    config.close()
    return None if found is None else _schema(found), effort


def _schema(found: Fields) -> Mapping[str, Any]:
    if found.choice("type", ("json_schema",)) is None:
        raise refused(found.at("type"), "expected json_schema, found none")
    schema = found.object("schema")
    found.close()
    return schema or {}


def _thinking(config: Fields | None) -> str | None:
    if config is None:
        return None
    kind = config.choice("type", ("enabled", "disabled", "adaptive", "between_tools"))
    if kind is None:
        raise refused(config.at("type"), "expected enabled, disabled or adaptive, found none")
    config.whole("budget_tokens", 1)
    display = config.choice("display", ("summarized", "omitted"))
    config.close()
    return display


def _tool(fields: Fields) -> Tool:
    kind = fields.text("type") or "custom"
    if kind != "custom":
        raise refused(fields.at("type"), f"only custom tools are honoured by this server, found {kind!r}")
    schema = fields.object("input_schema")
    if schema is None:
        raise refused(fields.at("input_schema"), "expected an object, found none")
    tool = function_tool(fields.words("name"), fields.text("description"), schema)
    fields.neutral(defer_loading=(False,), allowed_callers=(["direct"],), input_examples=([],))
    fields.without_influence("strict", "cache_control", "eager_input_streaming")
    fields.close()
    return tool


def _tool_choice(found: Fields | None) -> tuple[ToolChoice, bool]:
    """Return the choice, and whether several calls in one answer are allowed."""
    if found is None:
        return ToolChoice(), True
    kind = found.choice("type", ("auto", "any", "tool", "none"))
    if kind is None:
        raise refused(found.at("type"), "expected auto, any, tool or none, found none")
    name = found.words("name") if kind == "tool" else None
    parallel = not (found.flag("disable_parallel_tool_use") or False)
    found.close()
    if kind in ("any", "tool"):
        return ToolChoice("required", name), parallel
    return ToolChoice("none" if kind == "none" else "auto"), parallel


def _system(found: Any, where: str) -> tuple[Message, ...]:
    text = "" if found is None else joined_text(found, where, _TEXT)
    return ({"role": "system", "content": text},) if text else ()


def _messages(turns: list[Any] | None) -> list[Message]:
    if not turns:
        raise refused("messages", "expected a list of at least one message, found none")
    read: list[Message] = []
    called: set[str] = set()
    for number, turn in enumerate(turns):
        if is_plain(turn):
            read.append(turn)
            continue
        fields = Fields(turn, f"messages.{number}")
        role = fields.choice("role", ("user", "assistant", "system"))
        if role is None:
            raise refused(fields.at("role"), "expected a role, found none")
        read += _turn(role, fields.take("content"), fields.at("content"), called)
        fields.close()
    if read and read[-1]["role"] == "assistant":
        raise refused(
            f"messages.{len(turns) - 1}.role", "expected the last message not to be the assistant's: no answer is "
            "continued here; add a message of the user",
        )  # fmt: skip
    return read


def _turn(role: str, found: Any, where: str, called: set[str]) -> Sequence[Message]:
    """Return the messages of one turn; `called` are the ids of the tool calls before it, and gets its own."""
    if role == "system":
        return _system(found, where)
    return _user(found, where, called) if role == "user" else [_assistant(found, where, called)]


def _assistant(found: Any, where: str, called: set[str]) -> Message:
    """Return one message: thinking, words and calls of a turn, however its blocks are ordered."""
    words: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in _blocks(found, where):
        kind = block.words("type")
        if kind == "text":
            words.append(_text(block))
        elif kind in ("thinking", "redacted_thinking"):
            thinking.append(_thought(block, kind))
        elif kind == "tool_use":
            calls.append(_call(block))
        else:
            raise refused(block.at("type"), f"blocks of type {kind!r} are not honoured by this server")
        block.close()
    message: dict[str, Any] = {"role": "assistant", "content": "".join(words)}
    if any(thinking):
        message["reasoning_content"] = "".join(thinking)
    if calls:
        message["tool_calls"] = calls
        called.update(call["id"] for call in calls)
    return message


def _user(found: Any, where: str, called: set[str]) -> list[Message]:
    """Return tool results and words in the order they stand."""
    read: list[Message] = []
    words: list[str] = []
    for block in _blocks(found, where):
        kind = block.words("type")
        if kind == "text":
            words.append(_text(block))
        elif kind == "tool_result":
            read += _said(words)
            words = []
            read.append(_result(block, called))
        else:
            raise refused(block.at("type"), f"only text and tool results are honoured by this server, found {kind!r}")
        block.close()
    read += _said(words)
    if not read:
        raise refused(where, "expected at least one block, found none")
    return read


def _said(words: list[str]) -> list[Message]:
    return [{"role": "user", "content": "".join(words)}] if words else []


def _blocks(found: Any, where: str) -> list[Fields]:
    if isinstance(found, str):
        found = [{"type": "text", "text": found}]
    if not isinstance(found, list):
        raise refused(where, f"expected a string or a list of blocks, found {shown(found)}")
    return [Fields(block, f"{where}.{number}") for number, block in enumerate(found)]


def _text(block: Fields) -> str:
    _plain(block)
    return block.words("text")


def _plain(block: Fields) -> None:
    block.without_influence("cache_control", "citations", "parsed_output")


def _thought(block: Fields, kind: str) -> str:
    block.without_influence("cache_control")
    if kind == "redacted_thinking":
        text, token = unsealed(block.words("data")), "data"
    else:
        text, token = thinking_of(block.words("thinking"), block.words("signature")), "signature"
    if text is None:
        raise refused(block.at(token), "does not fit its thinking, or was not made by this kind of server")
    return text


def _call(block: Fields) -> dict[str, Any]:
    arguments = json.dumps(block.object("input") or {}, ensure_ascii=False)
    function = {"name": block.words("name"), "arguments": arguments}
    block.neutral(caller=({"type": "direct"},))
    block.without_influence("cache_control")
    return {"id": block.words("id"), "type": "function", "function": function}


def _result(block: Fields, called: set[str]) -> Message:
    content = block.take("content")
    text = "" if content is None else joined_text(content, block.at("content"), _TEXT)
    if block.flag("is_error") and not text.lower().startswith("error"):
        text = f"Error: {text}"
    message = {"role": "tool", "tool_call_id": answered(block, "tool_use_id", called), "content": text}
    block.without_influence("cache_control")
    return message


_TEXT: Mapping[str, Callable[[Fields], None]] = {"text": _plain}
