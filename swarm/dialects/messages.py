"""Anthropic's Messages API: `POST /v1/messages` and its event stream (docs/protocols.md).

A user turn with tool results becomes one `tool` message each, its words user messages. Thinking comes back with its
signature; a block that does not fit it is refused. A prefill (a last message of the assistant) is refused: the answer
would be another turn.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from swarm.dialects import base
from swarm.dialects.fields import Fields, abbreviate, body_fields, field_error, function_tool, is_plain, join_text
from swarm.errors import ContextExceeded, SwarmError
from swarm.rendering.messages import Message, Piece, Reasoning, Tool, ToolCall, Words

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


def parse(body: bytes, model: str) -> base.CompletionRequest:
    fields = body_fields(body)
    max_tokens = fields.integer("max_tokens", 1)
    if max_tokens is None:
        raise field_error("max_tokens", "expected a whole number of at least 1, found none")
    stream, train = fields.flag("stream") or False, fields.flag("train") is not False
    sampling = base.RequestedSampling(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 0, 5),
        top_p=fields.number("top_p", 1e-9, 1),
        top_k=fields.integer("top_k", 0),
        stop=fields.stops("stop_sequences"),
    )
    request = _parse_shared(fields, model)
    sampling = replace(sampling, json_schema=request.sampling.json_schema)
    return replace(request, sampling=sampling, train=train, stream=stream, usage_in_stream=True)


def parse_count(body: bytes, model: str) -> base.CompletionRequest:
    """Return what a request to count tokens would show the model; raises as `parse` does."""
    fields = body_fields(body)
    fields.ignore("train")
    return _parse_shared(fields, model)


def _parse_shared(fields: Fields, model: str) -> base.CompletionRequest:
    fields.ignore(*_NO_INFLUENCE)
    fields.require_neutral(**_NEUTRAL)
    thread = fields.inner("thread")
    if not thread.absent:
        made_elsewhere = thread.choice("type", ("create", "continue")) == "continue"
        refusal = field_error(
            "thread", "this server holds no conversations; send the whole one as `messages`, without `thread`"
        )
        code = "thread_not_found" if made_elsewhere else "thread_unsupported_request"
        refusal.details = {"type": "invalid_request_error", "error_code": code}
        raise refusal
    fields.require_model(model)
    system, turns = _system(fields.take("system"), "system"), fields.items("messages")
    tools, left_out = fields.tools(_tool, _LEFT_OUT)
    choice, parallel = _tool_choice(fields.inner("tool_choice"))
    thinking, output = fields.inner("thinking"), fields.inner("output_config")
    if not thinking.absent:
        kinds = ("enabled", "disabled", "adaptive", "between_tools")
        thinking.required_choice("type", kinds, "enabled, disabled or adaptive")
    thinking.integer("budget_tokens", 1)
    display = thinking.choice("display", ("summarized", "omitted"))
    form, effort = output.inner("format"), output.text("effort")
    schema = None
    if not form.absent:
        form.required_choice("type", ("json_schema",), "json_schema")
        schema = form.object("schema") or {}
    fields.close()
    return base.CompletionRequest(
        messages=(*system, *_messages(turns)),
        tools=tools,
        tool_choice=fields.check_choice(choice, tools),
        parallel_tool_calls=parallel,
        sampling=base.RequestedSampling(json_schema=schema),
        left_out=left_out if effort is None else (*left_out, "output_config.effort"),
        echo={"omitted": display == "omitted"},
    )


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


def _tool_choice(found: Fields) -> tuple[base.ToolChoice, bool]:
    if found.absent:
        return base.ToolChoice(), True
    kind = found.required_choice("type", ("auto", "any", "tool", "none"), "auto, any, tool or none")
    name = found.required_text("name") if kind == "tool" else None
    parallel = not (found.flag("disable_parallel_tool_use") or False)
    if kind in ("any", "tool"):
        return base.ToolChoice("required", name), parallel
    return base.ToolChoice("none" if kind == "none" else "auto"), parallel


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
    words: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, kind in _blocks(value, where):
        if kind == "text":
            words.append(_text(block))
        elif kind in ("thinking", "redacted_thinking"):
            block.ignore("cache_control")
            if kind == "redacted_thinking":
                field = "data"
                thought = base.unseal(block.required_text(field))
            else:
                field = "signature"
                thought = base.recover_thinking(block.required_text("thinking"), block.required_text(field))
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
    read: list[dict[str, Any]] = []
    for block, kind in _blocks(value, where):
        if kind == "text":
            if not read or read[-1]["role"] == "tool":
                read.append({"role": "user", "content": []})
            read[-1]["content"].append(_text(block))
        elif kind == "tool_result":
            content = block.take("content")
            text = "" if content is None else join_text(content, block.at("content"), _TEXT)
            if block.flag("is_error") and not text.lower().startswith("error"):
                text = f"Error: {text}"
            call_id = block.call_id("tool_use_id", called)
            read.append({"role": "tool", "tool_call_id": call_id, "content": [text]})
            block.ignore("cache_control")
        else:
            wrong = f"only text and tool results are honoured by this server, found {kind!r}"
            raise field_error(block.at("type"), wrong)
        block.close()
    if not read:
        raise field_error(where, "expected at least one block, found none")
    return [{**message, "content": "".join(message["content"])} for message in read]


def _blocks(found: Any, where: str) -> Iterator[tuple[Fields, str]]:
    if isinstance(found, str):
        found = [{"type": "text", "text": found}]
    if not isinstance(found, list):
        raise field_error(where, f"expected a string or a list of blocks, found {abbreviate(found)}")
    for number, value in enumerate(found):
        block = Fields(value, f"{where}.{number}")
        yield block, block.required_text("type")


def _text(block: Fields) -> str:
    block.ignore(*_TEXT["text"])
    return block.required_text("text")


_TEXT: Mapping[str, Sequence[str]] = {"text": ["cache_control", "citations", "parsed_output"]}

Block = dict[str, Any]
_KINDS: Mapping[int, str] = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    409: "conflict_error", 410: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip


def format_reply(name: str, model: str, request: base.CompletionRequest, replies: Sequence[base.Reply]) -> bytes:
    """Return the message, arguments as the model wrote them; its content is an empty text where there is nothing."""
    (reply,) = replies
    answer, blocks = reply.answer, []
    if answer.reasoning:
        omitted = request.echo["omitted"]
        shown, sign = ("", base.seal) if omitted else (answer.reasoning, base.signature)
        blocks.append(to_json({"type": "thinking", "thinking": shown, "signature": sign(answer.reasoning)}))
    if answer.content or not (blocks or answer.tool_calls):
        blocks.append(to_json({"type": "text", "text": answer.content}))
    for call_id, call in zip(reply.call_ids, answer.tool_calls, strict=True):
        begun = to_json({"type": "tool_use", "id": call_id, "name": call.name})
        blocks.append(begun[:-1] + b',"input":' + call.arguments.encode() + b"}")
    head, (delta, usage) = to_json(_head(name, model)), _end(reply)
    return head[:-1] + b',"content":[' + b",".join(blocks) + b"]," + to_json({**delta, "usage": usage})[1:]


def _end(reply: base.Reply) -> tuple[Block, Block]:
    reason, stop = "end_turn", None
    if reply.finish == "length":
        reason = "max_tokens"
    elif reply.answer.tool_calls:
        reason = "tool_use"
    elif reply.stop is not None:
        reason, stop = "stop_sequence", reply.stop
    return {"stop_reason": reason, "stop_sequence": stop}, {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": reply.sampled_tokens,
    }


def error_object(error: SwarmError) -> Block:
    """Return an error in Anthropic's form, with our `code` and `param`; first words tell agents of a long prompt."""
    told = {**error.to_wire()["error"], "type": _KINDS.get(error.status, "api_error")}
    if isinstance(error, ContextExceeded):
        told["message"] = f"prompt is too long: {error.message}"
    if error.details is not None:
        told["details"] = error.details
    return {"type": "error", "error": told}


class MessagesWriter(base.StreamWriter):
    """Writes one message as server-sent events."""

    keep_alive = base.named_event({"type": "ping"})

    def __init__(self, name: str, model: str, request: base.CompletionRequest, version: int, prompt_size: int) -> None:
        self._head = _head(name, model)
        self._prompt_tokens = prompt_size
        self._omitted = request.echo["omitted"]
        self._index = 0
        self._kind: type[Words] | type[Reasoning] | None = None
        self._text = ""

    def opening(self) -> bytes:
        """Return the message without content; its end says which of the prompt's tokens were kept from before."""
        used = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        rest: Block = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": used}
        return base.named_event({"type": "message_start", "message": {**self._head, **rest}})

    def piece(self, choice: int, piece: Piece, tokens: Sequence[base.Token] = (), call_id: str | None = None) -> bytes:
        if isinstance(piece, ToolCall):
            begun = {"type": "tool_use", "id": call_id or "", "name": piece.name, "input": {}}
            arguments = {"type": "input_json_delta", "partial_json": piece.arguments}
            return self._close_block() + self._start(begun) + self._delta(arguments) + self._stop()
        if not piece.text:
            return b""
        opened = b"" if type(piece) is self._kind else self._open_block(type(piece))
        self._text += piece.text
        if isinstance(piece, Words):
            return opened + self._delta({"type": "text_delta", "text": piece.text})
        return opened if self._omitted else opened + self._delta({"type": "thinking_delta", "thinking": piece.text})

    def closing(self, replies: Sequence[base.Reply]) -> bytes:
        opened = b"" if self._index or self._kind else self._open_block(Words)
        closed = self._close_block()
        delta, usage = _end(*replies)
        ends = base.named_event({"type": "message_delta", "delta": delta, "usage": usage})
        return opened + closed + ends + base.named_event({"type": "message_stop"})

    def fail(self, error: SwarmError) -> bytes:
        return base.named_event(error_object(error))

    def _open_block(self, kind: type[Words] | type[Reasoning]) -> bytes:
        closed = self._close_block()
        self._kind, self._text = kind, ""
        thinking = {"type": "thinking", "thinking": "", "signature": ""}
        return closed + self._start(thinking if kind is Reasoning else {"type": "text", "text": ""})

    def _close_block(self) -> bytes:
        if self._kind is None:
            return b""
        signed = b""
        if self._kind is Reasoning:
            token = (base.seal if self._omitted else base.signature)(self._text)
            signed = self._delta({"type": "signature_delta", "signature": token})
        self._kind = None
        return signed + self._stop()

    def _start(self, block: Block) -> bytes:
        return base.named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Block) -> bytes:
        return base.named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        self._index += 1
        return base.named_event({"type": "content_block_stop", "index": self._index - 1})


def _head(name: str, model: str) -> Block:
    return {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": model}


def format_error(error: SwarmError) -> bytes:
    return to_json(error_object(base.rename_param(error, {"response_format": "output_config.format"})))


MESSAGES = base.Dialect(parse, format_reply, MessagesWriter, format_error)
