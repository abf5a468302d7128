"""OpenAI's Responses API: `POST /v1/responses`, its reply and its stream (docs/protocols.md).

Items of one assistant turn become one message; item ids tell turns apart, else a second `message` opens a new one. A
`reasoning` item must bring `content` or `encrypted_content`; a call's output must come after the call.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic_core import to_json

from swarm.dialects import base
from swarm.dialects.fields import Fields, abbreviate, body_fields, field_error, function_tool, is_plain, join_text
from swarm.errors import InvalidRequest, SwarmError, Throttled
from swarm.rendering.messages import Message, Piece, Reasoning, Tool, ToolCall, Words

_ITEM_ID = re.compile(r"(?:msg|rs|fc)_(.+)_\d+")


def messages_of(value: Any) -> tuple[Message, ...]:
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if not isinstance(value, list) or not value:
        raise field_error("input", f"expected a string or a list of items, found {abbreviate(value)}")
    conversation = _Conversation()
    for number, item in enumerate(value):
        if is_plain(item):
            conversation.say(item["role"], item["content"], None)
        else:
            fields = Fields(item, f"input.{number}")
            kind = fields.text("type") or "message"
            if kind not in _ITEMS:
                wrong = f"items of type {kind!r} are not honoured by this server; leave them out"
                raise field_error(fields.at("type"), wrong)
            _ITEMS[kind](fields, conversation)
            fields.close()
    for message in conversation.messages:
        for name, texts in message.items():
            if isinstance(texts, list) and name != "tool_calls":
                message[name] = "".join(texts)
    return tuple(conversation.messages)


class _Conversation:
    """Messages being made of items, the texts of the assistant's still in parts."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.messages: list[dict[str, Any]] = []
        self._response: str | None = None
        """In which the items of the last message were served, if it is the assistant's."""

    def say(self, role: str, text: str, item_id: str | None) -> None:
        if role == "assistant":
            self.turn(item_id, words=True)["content"].append(text)
        else:
            self.messages.append({"role": "user" if role == "user" else "system", "content": text})

    def turn(self, item_id: str | None, *, words: bool = False) -> dict[str, Any]:
        served = _ITEM_ID.fullmatch(item_id or "")
        response = served[1] if served else None
        last = self.messages[-1] if self.messages and self.messages[-1]["role"] == "assistant" else None
        if last is not None and self._response is not None and response is not None:
            last = last if self._response == response else None
        elif last is not None and words and last["content"]:
            last = None
        if last is None:
            self.messages.append({"role": "assistant", "content": []})
            self._response = None
        self._response = self._response or response
        return self.messages[-1]


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
    conversation.turn(item.text("id")).setdefault("tool_calls", []).append(call)
    conversation.called.add(call_id)
    item.require_neutral(caller=({"type": "direct"},), **{"async": (False,)})
    item.ignore("status", "parsed_arguments")


def _read_output(item: Fields, conversation: _Conversation) -> None:
    content = join_text(item.take("output"), item.at("output"), _TEXTS)
    call_id = item.call_id("call_id", conversation.called)
    conversation.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    item.require_neutral(caller=({"type": "direct"},))
    item.ignore("id", "status", "name")


def _read_reasoning(item: Fields, conversation: _Conversation) -> None:
    found, token = item.items("content") or None, item.text("encrypted_content")
    shown_text = None if found is None else join_text(found, item.at("content"), {"reasoning_text": ()})
    carried = base.unseal(token) if token is not None else None
    if token is not None and (carried is None or shown_text not in (None, carried)):
        wrong = "was not made by this kind of server, or not for this `content`"
        raise field_error(item.at("encrypted_content"), wrong)
    text = shown_text if shown_text is not None else carried
    if text is None:
        raise field_error(
            item.where, "expected the reasoning's `content` or `encrypted_content`, found neither; nothing is kept here"
        )
    conversation.turn(item.text("id")).setdefault("reasoning_content", []).append(text)
    item.ignore("summary", "status")


_TEXTS: Mapping[str, Sequence[str]] = {"input_text": (), "output_text": ("annotations", "logprobs", "parsed")}
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


def parse(body: bytes, model: str) -> base.CompletionRequest:
    fields = body_fields(body)
    fields.require_model(model)
    instructions = fields.text("instructions")
    messages = messages_of(fields.take("input"))
    if instructions:
        messages = ({"role": "system", "content": instructions}, *messages)
    tools, left_out = fields.tools(_tool, _LEFT_OUT)
    text, reasoning, options = fields.inner("text"), fields.inner("reasoning"), fields.inner("stream_options")
    format_, verbosity = _format(text.inner("format")), text.choice("verbosity", ("low", "medium", "high"))
    effort = reasoning.text("effort")
    advised = {"reasoning.effort": effort, "text.verbosity": None if verbosity == "medium" else verbosity}
    request = base.CompletionRequest(
        messages=messages,
        tools=tools,
        tool_choice=fields.tool_choice(tools, nested=False),
        parallel_tool_calls=fields.flag("parallel_tool_calls") is not False,
        sampling=base.RequestedSampling(
            max_tokens=fields.integer("max_output_tokens", 1),
            temperature=fields.number("temperature", 0, 5),
            top_p=fields.number("top_p", 1e-9, 1),
            json_schema=None if format_["type"] == "text" else format_.get("schema") or {},
        ),
        train=fields.flag("train") is not False,
        stream=fields.flag("stream") or False,
        logprobs=_logprobs(fields),
        usage_in_stream=True,
        left_out=(*left_out, *(name for name, advice in advised.items() if advice is not None)),
        echo={"instructions": instructions, "metadata": fields.object("metadata") or {}, "format": format_},
    )
    reasoning.require_neutral(
        summary=("auto",), generate_summary=("auto",), context=("auto", "all_turns"), mode=("standard",)
    )
    options.ignore("include_obfuscation")
    fields.require_neutral(background=(False,), truncation=("disabled",), context_management=([],), moderation=())
    for stored in ("previous_response_id", "conversation", "prompt"):
        if fields.take(stored) is not None:
            wrong = "the server keeps no responses, conversations or prompts; send the history as `input`"
            raise field_error(stored, wrong)
    fields.ignore(*_NO_INFLUENCE)
    fields.close()
    return request


def _format(found: Fields) -> Mapping[str, Any]:
    if found.absent:
        return {"type": "text"}
    kinds = ("text", "json_object", "json_schema")
    kind = found.required_choice("type", kinds, f"one of {', '.join(kinds)}")
    read: dict[str, Any] = {"type": kind}
    if kind == "json_schema":
        read |= {"name": found.required_text("name"), "schema": found.object("schema") or {}, "strict": True}
        found.flag("strict")
        description = found.text("description")
        read |= {"description": description} if description else {}
    return read


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.items("include") or []
    for number, name in enumerate(wanted):
        if name not in (LOGPROBS, _SEALED):
            raise field_error(f"include.{number}", f"expected {LOGPROBS} or {_SEALED}, found {abbreviate(name)}")
    top = fields.integer("top_logprobs", 0, 20)
    if top and LOGPROBS not in wanted:
        wrong = f"expected {LOGPROBS!r} in `include` too; add it, or leave `top_logprobs` out"
        raise field_error("top_logprobs", wrong)
    return (top or 0) if LOGPROBS in wanted else None


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


Status = Literal["in_progress", "completed", "incomplete", "failed"]
Item = dict[str, Any]


def reasoning_item(item_id: str, text: str, status: Status) -> Item:
    """Return what was thought, with the token that carries it for clients that drop the text."""
    parts = [{"type": "reasoning_text", "text": text}] if text else []
    token = base.seal(text) if text else None
    head = {"id": item_id, "type": "reasoning", "summary": [], "status": status}
    return {**head, "content": parts, "encrypted_content": token}


def message_item(item_id: str, parts: Sequence[Item], status: Status) -> Item:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": list(parts)}


def text_part(text: str, logprobs: Sequence[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: Status) -> Item:
    head = {"id": item_id, "type": "function_call", "status": status, "call_id": call_id}
    return {**head, "name": name, "arguments": arguments}


def format_reply(name: str, model: str, request: base.CompletionRequest, replies: Sequence[base.Reply]) -> bytes:
    (reply,) = replies
    answer, items = reply.answer, list[Item]()
    cut: Status = "incomplete" if reply.finish == "length" else "completed"
    if answer.reasoning:
        silent = not answer.content and not answer.tool_calls
        items.append(reasoning_item(f"rs_{name}_0", answer.reasoning, cut if silent else "completed"))
    if answer.content or not (items or answer.tool_calls):
        part = text_part(answer.content, [token.to_wire() for token in base.answer_tokens(reply)])
        status = "completed" if answer.tool_calls else cut
        items.append(message_item(f"msg_{name}_{len(items)}", [part], status))
    for call_id, call in zip(reply.call_ids, answer.tool_calls, strict=True):
        items.append(call_item(f"fc_{name}_{len(items)}", call_id, call.name, call.arguments, "completed"))
    whole = response(name, model, request, cut, items, reply)
    return to_json(whole, inf_nan_mode="null")  # what a client sent may hold a number too large for JSON


def response(
    name: str, model: str, request: base.CompletionRequest, status: Status, items: Sequence[Item],
    reply: base.Reply | None,
) -> Item:  # fmt: skip
    """Return the response object; `reply` is None while it is being made."""
    json_schema, choice = request.sampling.json_schema, request.tool_choice
    usage = None if reply is None else {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},  # thinking is part of the output and not counted apart
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }  # fmt: skip
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": request.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": request.echo.get("instructions"),
        "max_output_tokens": request.sampling.max_tokens,
        "model": model,
        "output": list(items),
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "background": False,
        "temperature": request.sampling.temperature,
        "text": {"format": request.echo["format"] if json_schema is not None else {"type": "text"}},
        "tool_choice": choice.mode if choice.name is None else {"type": "function", "name": choice.name},
        "tools": [
            {"type": "function", "description": None, **tool["function"], "strict": False} for tool in request.tools
        ],
        "top_logprobs": request.logprobs or 0,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
        "usage": usage,
        "metadata": request.echo["metadata"],
    }


class ResponsesWriter(base.StreamWriter):
    """Writes one response as server-sent events, numbered from 0."""

    def __init__(self, name: str, model: str, request: base.CompletionRequest, version: int, prompt_size: int) -> None:
        self._name = name
        self._model = model
        self._request = request
        self._number = 0
        self._done: list[Item] = []
        self._kind: type[Words] | type[Reasoning] | None = None
        self._text = ""
        self._logprobs: list[Item] = []

    def opening(self) -> bytes:
        begun = response(self._name, self._model, self._request, "in_progress", [], None)
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def piece(self, choice: int, piece: Piece, tokens: Sequence[base.Token] = (), call_id: str | None = None) -> bytes:
        if isinstance(piece, ToolCall):
            closed, place = self._close_item("completed"), self._place
            named = (place["item_id"], call_id or "", piece.name)
            begun, whole = call_item(*named, "", "in_progress"), call_item(*named, piece.arguments, "completed")
            arguments = "response.function_call_arguments"
            return (
                closed
                + self._add_item(begun)
                + self._event(f"{arguments}.delta", **place, delta=piece.arguments)
                + self._event(f"{arguments}.done", **place, name=piece.name, arguments=piece.arguments)
                + self._finish_item(whole)
            )
        logprobs = [token.to_wire() for token in tokens] if isinstance(piece, Words) else []
        if not piece.text and type(piece) is not self._kind:
            return b""
        opened = b"" if type(piece) is self._kind else self._close_item("completed") + self._open_item(type(piece))
        self._text += piece.text
        self._logprobs += logprobs
        if not piece.text:
            return opened
        fields: dict[str, Any] = {**self._place, "content_index": 0, "delta": piece.text}
        if self._kind is Words:
            return opened + self._event("response.output_text.delta", **fields, logprobs=logprobs)
        return opened + self._event("response.reasoning_text.delta", **fields)

    def closing(self, replies: Sequence[base.Reply]) -> bytes:
        (reply,) = replies
        status: Status = "incomplete" if reply.finish == "length" else "completed"
        opened = b"" if self._done or self._kind else self._open_item(Words)
        closed = self._close_item(status)
        whole = response(self._name, self._model, self._request, status, self._done, reply)
        return opened + closed + self._event(f"response.{status}", response=whole)

    def fail(self, error: SwarmError) -> bytes:
        """Return that the response failed, and the error in a form that no client takes for an answer's end."""
        broken = response(self._name, self._model, self._request, "failed", self._done, None)
        code = "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
        code = "rate_limit_exceeded" if isinstance(error, Throttled) else code
        broken["error"] = {"code": code, "message": error.message}
        wire = error.to_wire()
        flat = {name: wire["error"][name] for name in ("code", "message", "param")}
        return self._event("response.failed", response=broken) + self._event("error", **flat, **wire)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return base.named_event({"type": kind, "sequence_number": self._number - 1, **fields})

    @property
    def _place(self) -> dict[str, Any]:
        prefix = "rs" if self._kind is Reasoning else "msg" if self._kind is Words else "fc"
        return {"item_id": f"{prefix}_{self._name}_{len(self._done)}", "output_index": len(self._done)}

    def _add_item(self, item: Item) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._done), item=item)

    def _finish_item(self, item: Item) -> bytes:
        event = self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        return event

    def _open_item(self, kind: type[Words] | type[Reasoning]) -> bytes:
        self._kind, self._text, self._logprobs = kind, "", []
        item_id = self._place["item_id"]
        item = message_item(item_id, [], "in_progress") if kind is Words else reasoning_item(item_id, "", "in_progress")
        added = self._add_item(item)
        return added + self._event("response.content_part.added", **self._place, content_index=0, part=self._part())

    def _part(self) -> Item:
        if self._kind is Words:
            return text_part(self._text, self._logprobs)
        return {"type": "reasoning_text", "text": self._text}

    def _close_item(self, status: Status) -> bytes:
        if self._kind is None:
            return b""
        place, part = {**self._place, "content_index": 0}, self._part()
        if self._kind is Words:
            done = self._event("response.output_text.done", **place, text=self._text, logprobs=self._logprobs)
            item = message_item(place["item_id"], [part], status)
        else:
            done = self._event("response.reasoning_text.done", **place, text=self._text)
            item = reasoning_item(place["item_id"], self._text, status)
        done += self._event("response.content_part.done", **place, part=part)
        done += self._finish_item(item)
        self._kind = None
        return done


_NAMES = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "include",
}


def format_error(error: SwarmError) -> bytes:
    return to_json(base.rename_param(error, _NAMES).to_wire())


RESPONSES = base.Dialect(parse, format_reply, ResponsesWriter, format_error, echoes=True)
