"""Anthropic's Messages API: `POST /v1/messages`, read into an `Ask`, and its event stream (docs/protocols.md).

A user turn with tool results becomes one `tool` message each, its words user messages; blocks of text are joined with
nothing between. Thinking comes back with its signature; a block that does not fit it is refused. A prefill (a last
message of the assistant) is refused: the answer would be another turn. The blocks of a stream, put together, are the
whole message, but for the order in which thinking and words alternated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from swarm.dialects.base import (
    CompletionRequest,
    Reply,
    RequestedSampling,
    StreamWriter,
    Token,
    ToolChoice,
    named_event,
    recover_thinking,
    rename_param,
    seal,
    signature,
    unseal,
)
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
from swarm.errors import ContextExceeded, InvalidRequest, SwarmError
from swarm.rendering.messages import Message, Piece, Reasoning, Tool, ToolCall, Words


class NoThreads(InvalidRequest):
    """A request that wants its conversation held here; `details` says in the protocol's words what is the matter."""

    def __init__(self, error_code: str) -> None:
        super().__init__(
            "thread: this server holds no conversations; send the whole one as `messages`, without `thread`",
            param="thread",
        )
        self.details: Mapping[str, Any] = {"type": "invalid_request_error", "error_code": error_code}


def refuse_thread(fields: Fields) -> None:
    """Raise NoThreads where a request has a thread: one to be made, or one that was made elsewhere."""
    thread = fields.inner("thread")
    if thread is None:
        return
    if thread.choice("type", ("create", "continue")) == "continue":
        raise NoThreads("thread_not_found")
    raise NoThreads("thread_unsupported_request")


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


def parse(body: bytes, model: str) -> CompletionRequest:
    fields = body_fields(body)
    max_tokens = fields.integer("max_tokens", 1)
    if max_tokens is None:
        raise field_error("max_tokens", "expected a whole number of at least 1, found none")
    stream, train = fields.flag("stream") or False, is_trained(fields)
    stops = fields.stops("stop_sequences")
    temperature, top_p = fields.number("temperature", 0, 5), fields.number("top_p", 1e-9, 1)
    top_k = fields.integer("top_k", 0)
    fields.ignore(*_NO_INFLUENCE)
    fields.require_neutral(**_NEUTRAL)
    schema, effort = _output(fields.inner("output_config"))
    request = _parse_shared(fields, model)
    return replace(
        request,
        sampling=RequestedSampling(max_tokens, temperature, top_p, top_k, stop=stops, json_schema=schema),
        train=train,
        stream=stream,
        usage_in_stream=True,
        left_out=(*request.left_out, *(["output_config.effort"] if effort is not None else [])),
    )


def parse_count(body: bytes, model: str) -> CompletionRequest:
    """Return what a request to count tokens would show the model; raises as `parse` does."""
    fields = body_fields(body)
    fields.ignore(*_NO_INFLUENCE, "train")
    fields.require_neutral(**_NEUTRAL)
    _output(fields.inner("output_config"))
    return _parse_shared(fields, model)


def _parse_shared(fields: Fields, model: str) -> CompletionRequest:
    refuse_thread(fields)
    fields.require_model(model)
    system, turns = _system(fields.take("system"), "system"), fields.items("messages")
    tools, left_out = read_tools(fields.items("tools") or [], "tools", _tool, _LEFT_OUT)
    choice, parallel = _tool_choice(fields.inner("tool_choice"))
    display = _thinking(fields.inner("thinking"))
    fields.close()
    return CompletionRequest(
        messages=(*system, *_messages(turns)),
        tools=tools,
        tool_choice=check_choice(choice, tools),
        parallel_tool_calls=parallel,
        left_out=left_out,
        echo={"omitted": display == "omitted"},
    )


def _output(config: Fields | None) -> tuple[Mapping[str, Any] | None, str | None]:
    if config is None:
        return None, None
    found, effort = config.inner("format"), config.text("effort")
    config.close()
    return None if found is None else _schema(found), effort


def _schema(found: Fields) -> Mapping[str, Any]:
    found.required_choice("type", ("json_schema",), "json_schema")
    schema = found.object("schema")
    found.close()
    return schema or {}


def _thinking(config: Fields | None) -> str | None:
    if config is None:
        return None
    config.required_choice(
        "type", ("enabled", "disabled", "adaptive", "between_tools"), "enabled, disabled or adaptive"
    )
    config.integer("budget_tokens", 1)
    display = config.choice("display", ("summarized", "omitted"))
    config.close()
    return display


def _tool(fields: Fields) -> Tool:
    kind = fields.text("type") or "custom"
    if kind != "custom":
        raise field_error(fields.at("type"), f"only custom tools are honoured by this server, found {kind!r}")
    schema = fields.object("input_schema")
    if schema is None:
        raise field_error(fields.at("input_schema"), "expected an object, found none")
    tool = function_tool(fields.required_text("name"), fields.text("description"), schema)
    fields.require_neutral(defer_loading=(False,), allowed_callers=(["direct"],), input_examples=([],))
    fields.ignore("strict", "cache_control", "eager_input_streaming")
    fields.close()
    return tool


def _tool_choice(found: Fields | None) -> tuple[ToolChoice, bool]:
    if found is None:
        return ToolChoice(), True
    kind = found.required_choice("type", ("auto", "any", "tool", "none"), "auto, any, tool or none")
    name = found.required_text("name") if kind == "tool" else None
    parallel = not (found.flag("disable_parallel_tool_use") or False)
    found.close()
    if kind in ("any", "tool"):
        return ToolChoice("required", name), parallel
    return ToolChoice("none" if kind == "none" else "auto"), parallel


def _system(found: Any, where: str) -> tuple[Message, ...]:
    text = "" if found is None else join_text(found, where, _TEXT)
    return ({"role": "system", "content": text},) if text else ()


def _messages(turns: list[Any] | None) -> list[Message]:
    if not turns:
        raise field_error("messages", "expected a list of at least one message, found none")
    read: list[Message] = []
    called: set[str] = set()
    for number, turn in enumerate(turns):
        if is_plain(turn):
            read.append(turn)
            continue
        fields = Fields(turn, f"messages.{number}")
        role = fields.required_choice("role", ("user", "assistant", "system"), "a role")
        content, where = fields.take("content"), fields.at("content")
        if role == "system":
            read += _system(content, where)
        else:
            read += _user(content, where, called) if role == "user" else [_assistant(content, where, called)]
        fields.close()
    if read and read[-1]["role"] == "assistant":
        raise field_error(
            f"messages.{len(turns) - 1}.role", "expected the last message not to be the assistant's: no answer is "
            "continued here; add a message of the user",
        )  # fmt: skip
    return read


def _assistant(value: Any, where: str, called: set[str]) -> Message:
    """Return one message: thinking, words and calls of a turn, however its blocks are ordered."""
    words: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in _blocks(value, where):
        kind = block.required_text("type")
        if kind == "text":
            words.append(_text(block))
        elif kind in ("thinking", "redacted_thinking"):
            block.ignore("cache_control")
            if kind == "redacted_thinking":
                field = "data"
                thought = unseal(block.required_text(field))
            else:
                field = "signature"
                thought = recover_thinking(block.required_text("thinking"), block.required_text(field))
            if thought is None:
                raise field_error(block.at(field), "does not fit its thinking, or was not made by this kind of server")
            thinking.append(thought)
        elif kind == "tool_use":
            arguments = json.dumps(block.object("input") or {}, ensure_ascii=False)
            function = {"name": block.required_text("name"), "arguments": arguments}
            block.require_neutral(caller=({"type": "direct"},))
            block.ignore("cache_control")
            calls.append({"id": block.required_text("id"), "type": "function", "function": function})
        else:
            raise field_error(block.at("type"), f"blocks of type {kind!r} are not honoured by this server")
        block.close()
    message: dict[str, Any] = {"role": "assistant", "content": "".join(words)}
    if any(thinking):
        message["reasoning_content"] = "".join(thinking)
    if calls:
        message["tool_calls"] = calls
        called.update(call["id"] for call in calls)
    return message


def _user(value: Any, where: str, called: set[str]) -> list[Message]:
    read: list[Message] = []
    words: list[str] = []
    for block in _blocks(value, where):
        kind = block.required_text("type")
        if kind == "text":
            words.append(_text(block))
        elif kind == "tool_result":
            read += _user_message(words)
            words = []
            content = block.take("content")
            text = "" if content is None else join_text(content, block.at("content"), _TEXT)
            if block.flag("is_error") and not text.lower().startswith("error"):
                text = f"Error: {text}"
            message = {"role": "tool", "tool_call_id": read_call_id(block, "tool_use_id", called), "content": text}
            block.ignore("cache_control")
            read.append(message)
        else:
            raise field_error(
                block.at("type"), f"only text and tool results are honoured by this server, found {kind!r}"
            )
        block.close()
    read += _user_message(words)
    if not read:
        raise field_error(where, "expected at least one block, found none")
    return read


def _user_message(words: list[str]) -> list[Message]:
    return [{"role": "user", "content": "".join(words)}] if words else []


def _blocks(found: Any, where: str) -> list[Fields]:
    if isinstance(found, str):
        found = [{"type": "text", "text": found}]
    if not isinstance(found, list):
        raise field_error(where, f"expected a string or a list of blocks, found {abbreviate(found)}")
    return [Fields(block, f"{where}.{number}") for number, block in enumerate(found)]


def _text(block: Fields) -> str:
    _ignore_cache_control(block)
    return block.required_text("text")


def _ignore_cache_control(block: Fields) -> None:
    block.ignore("cache_control", "citations", "parsed_output")


_TEXT: Mapping[str, Callable[[Fields], None]] = {"text": _ignore_cache_control}

Block = dict[str, Any]
_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
PING = named_event({"type": "ping"})


def thinking_block(text: str, *, omitted: bool) -> Block:
    """Return what was thought; where the client wants it omitted, its signature carries it."""
    if omitted:
        return {"type": "thinking", "thinking": "", "signature": seal(text)}
    return {"type": "thinking", "thinking": text, "signature": signature(text)}


def blocks(reply: Reply, *, omitted: bool) -> list[bytes]:
    """Return an answer's content as JSON, arguments as the model wrote them; an empty text where there is nothing."""
    answer = reply.answer
    found = [to_json(thinking_block(answer.reasoning, omitted=omitted))] if answer.reasoning else []
    if answer.content or not (found or answer.tool_calls):
        found.append(to_json({"type": "text", "text": answer.content}))
    for call_id, call in zip(reply.call_ids, answer.tool_calls, strict=True):
        begun = to_json({"type": "tool_use", "id": call_id, "name": call.name})
        found.append(begun[:-1] + b',"input":' + call.arguments.encode() + b"}")
    return found


def stop_fields(reply: Reply) -> dict[str, Any]:
    if reply.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if reply.answer.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if reply.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def usage(reply: Reply) -> dict[str, int]:
    """Return the tokens used: those read anew, those whose work was kept, and those sampled."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": reply.sampled_tokens,
    }


def message(name: str, model: str, reply: Reply, *, omitted: bool) -> bytes:
    head = to_json(_head(name, model))
    rest = to_json({**stop_fields(reply), "usage": usage(reply)})
    return head[:-1] + b',"content":[' + b",".join(blocks(reply, omitted=omitted)) + b"]," + rest[1:]


def error_object(error: SwarmError) -> Block:
    """Return an error in Anthropic's form, with our `code` and `param`; first words tell agents of a long prompt."""
    told = {**error.to_wire()["error"], "type": _KINDS.get(error.status, "api_error")}
    if isinstance(error, ContextExceeded):
        told["message"] = f"prompt is too long: {error.message}"
    if isinstance(error, NoThreads):
        told["details"] = error.details
    return {"type": "error", "error": told}


class MessagesWriter:
    """Writes one message as server-sent events."""

    def __init__(self, name: str, model: str, prompt_tokens: int, *, omitted: bool) -> None:
        self._name = name
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._omitted = omitted
        self._index = 0
        self._kind: type[Words] | type[Reasoning] | None = None
        self._text = ""

    def opening(self) -> bytes:
        """Return the message without content; its end says which of the prompt's tokens were kept from before."""
        used = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        rest: Block = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": used}
        return named_event({"type": "message_start", "message": {**_head(self._name, self._model), **rest}})

    def piece(self, choice: int, piece: Piece, tokens: Sequence[Token] = (), call_id: str | None = None) -> bytes:
        if isinstance(piece, ToolCall):
            begun = {"type": "tool_use", "id": call_id or "", "name": piece.name, "input": {}}
            arguments = {"type": "input_json_delta", "partial_json": piece.arguments}
            return self._close_block() + self._start(begun) + self._delta(arguments) + self._stop()
        if not piece.text:
            return b""
        opened = b"" if type(piece) is self._kind else self._close_block() + self._open_block(type(piece))
        self._text += piece.text
        if isinstance(piece, Words):
            return opened + self._delta({"type": "text_delta", "text": piece.text})
        return opened if self._omitted else opened + self._delta({"type": "thinking_delta", "thinking": piece.text})

    def finish(self, choice: int, reply: Reply) -> bytes:
        """Return the end of the last block; an answer without any gets an empty text."""
        opened = b"" if self._index or self._kind else self._open_block(Words)
        return opened + self._close_block()

    def closing(self, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        delta = named_event({"type": "message_delta", "delta": stop_fields(reply), "usage": usage(reply)})
        return delta + named_event({"type": "message_stop"})

    def keep_alive(self) -> bytes:
        return PING

    def fail(self, error: SwarmError) -> bytes:
        return named_event(error_object(error))

    def _open_block(self, kind: type[Words] | type[Reasoning]) -> bytes:
        self._kind, self._text = kind, ""
        empty: Block = {"type": "text", "text": ""}
        if kind is Reasoning:
            empty = {"type": "thinking", "thinking": "", "signature": ""}
        return self._start(empty)

    def _close_block(self) -> bytes:
        if self._kind is None:
            return b""
        signed = b""
        if self._kind is Reasoning:
            token = thinking_block(self._text, omitted=self._omitted)["signature"]
            signed = self._delta({"type": "signature_delta", "signature": token})
        self._kind = None
        return signed + self._stop()

    def _start(self, block: Block) -> bytes:
        return named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Block) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        self._index += 1
        return named_event({"type": "content_block_stop", "index": self._index - 1})


def _head(name: str, model: str) -> Block:
    return {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": model}


_NAMES = {"response_format": "output_config.format"}


class MessagesDialect:
    """Implements `Dialect`."""

    echoes = False

    parse = staticmethod(parse)

    def format_reply(self, name: str, model: str, request: CompletionRequest, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        return message(name, model, reply, omitted=request.echo["omitted"])

    def writer(self, name: str, model: str, request: CompletionRequest, version: int, prompt_size: int) -> StreamWriter:
        return MessagesWriter(name, model, prompt_size, omitted=request.echo["omitted"])

    def error(self, error: SwarmError) -> bytes:
        return to_json(error_object(rename_param(error, _NAMES)))
