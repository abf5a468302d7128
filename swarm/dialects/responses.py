"""OpenAI Responses on the wire: reply and stream.

What a stream of `POST /v1/responses` ends with is what its events said, and echoed fields say what held: `store` is
false, `tools` are not strict, the sampling is that of the `Ask` it is given. A request's items become the same messages
the chat dialect would read, so that one episode may be played through either (`responses_request`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic_core import to_json

from swarm.dialects.base import (
    COMMENT,
    CompletionRequest,
    Reply,
    StreamWriter,
    Token,
    answer_tokens,
    named_event,
    rename_param,
    seal,
    token_logprobs,
)
from swarm.dialects.responses_request import parse
from swarm.errors import InvalidRequest, SwarmError, Throttled
from swarm.rendering.messages import Piece, Reasoning, ToolCall, Words

Status = Literal["in_progress", "completed", "incomplete", "failed"]
Item = dict[str, Any]


def reasoning_item(item_id: str, text: str, status: Status) -> Item:
    """Return what was thought, with the token that carries it for clients that drop the text."""
    parts = [{"type": "reasoning_text", "text": text}] if text else []
    token = seal(text) if text else None
    head = {"id": item_id, "type": "reasoning", "summary": [], "status": status}
    return {**head, "content": parts, "encrypted_content": token}


def message_item(item_id: str, parts: Sequence[Item], status: Status) -> Item:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": list(parts)}


def text_part(text: str, logprobs: Sequence[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: Status) -> Item:
    head = {"id": item_id, "type": "function_call", "status": status, "call_id": call_id}
    return {**head, "name": name, "arguments": arguments}


def output_items(name: str, reply: Reply) -> list[Item]:
    """Return the items of a whole answer; the last one is incomplete if it was cut."""
    answer, items = reply.answer, []
    cut: Status = "incomplete" if reply.finish == "length" else "completed"
    if answer.reasoning:
        silent = not answer.content and not answer.tool_calls
        items.append(reasoning_item(f"rs_{name}_0", answer.reasoning, cut if silent else "completed"))
    if answer.content or not (items or answer.tool_calls):
        part = text_part(answer.content, token_logprobs(answer_tokens(reply)))
        status = "completed" if answer.tool_calls else cut
        items.append(message_item(f"msg_{name}_{len(items)}", [part], status))
    for call_id, call in zip(reply.call_ids, answer.tool_calls, strict=True):
        items.append(call_item(f"fc_{name}_{len(items)}", call_id, call.name, call.arguments, "completed"))
    return items


def response(
    name: str, model: str, request: CompletionRequest, status: Status, items: Sequence[Item], reply: Reply | None
) -> Item:
    """Return the response object; `reply` is None while it is being made."""
    json_schema = request.sampling.json_schema
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
        "tool_choice": _tool_choice(request),
        "tools": [_tool(tool["function"]) for tool in request.tools],
        "top_logprobs": request.logprobs or 0,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
        "usage": None if reply is None else _usage(reply),
        "metadata": request.echo["metadata"],
    }


class ResponsesWriter:
    """Writes one response as server-sent events, numbered from 0."""

    def __init__(self, name: str, model: str, request: CompletionRequest) -> None:
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

    def piece(self, choice: int, piece: Piece, tokens: Sequence[Token] = (), call_id: str | None = None) -> bytes:
        if isinstance(piece, ToolCall):
            return self._close_item("completed") + self._write_call(piece, call_id or "")
        logprobs = token_logprobs(tokens) if isinstance(piece, Words) else []
        if not piece.text and type(piece) is not self._kind:
            return b""
        opened = b"" if type(piece) is self._kind else self._close_item("completed") + self._open_item(type(piece))
        self._text += piece.text
        self._logprobs += logprobs
        return opened + (self._delta(piece.text, logprobs) if piece.text else b"")

    def finish(self, choice: int, reply: Reply) -> bytes:
        opened = b"" if self._done or self._kind else self._open_item(Words)
        return opened + self._close_item("incomplete" if reply.finish == "length" else "completed")

    def closing(self, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        status: Status = "incomplete" if reply.finish == "length" else "completed"
        whole = response(self._name, self._model, self._request, status, self._done, reply)
        return self._event(f"response.{status}", response=whole)

    def keep_alive(self) -> bytes:
        return COMMENT

    def fail(self, error: SwarmError) -> bytes:
        """Return that the response failed, and the error in a form that no client takes for an answer's end."""
        broken = response(self._name, self._model, self._request, "failed", self._done, None)
        broken["error"] = {"code": _failure_code(error), "message": error.message}
        wire = error.to_wire()
        flat = {name: wire["error"][name] for name in ("code", "message", "param")}
        return self._event("response.failed", response=broken) + self._event("error", **flat, **wire)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return named_event({"type": kind, "sequence_number": self._number - 1, **fields})

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

    def _delta(self, text: str, logprobs: Sequence[Item]) -> bytes:
        fields: dict[str, Any] = {**self._place, "content_index": 0, "delta": text}
        if self._kind is Words:
            return self._event("response.output_text.delta", **fields, logprobs=logprobs)
        return self._event("response.reasoning_text.delta", **fields)

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

    def _write_call(self, call: ToolCall, call_id: str) -> bytes:
        place = self._place
        begun = call_item(place["item_id"], call_id, call.name, "", "in_progress")
        whole = call_item(place["item_id"], call_id, call.name, call.arguments, "completed")
        return (
            self._add_item(begun)
            + self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
            + self._event(
                "response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments
            )
            + self._finish_item(whole)
        )  # fmt: skip


def _tool(function: Mapping[str, Any]) -> Item:
    described = {"description": function.get("description"), "parameters": function["parameters"]}
    return {"type": "function", "name": function["name"], **described, "strict": False}


def _tool_choice(request: CompletionRequest) -> str | Item:
    choice = request.tool_choice
    return {"type": "function", "name": choice.name} if choice.name is not None else choice.mode


def _usage(reply: Reply) -> Item:
    """Return the tokens used. Thinking is part of the output and not counted apart, so its own count stays 0."""
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }


def _failure_code(error: SwarmError) -> str:
    if isinstance(error, Throttled):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"


_NAMES = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "include",
}


class ResponsesDialect:
    """Implements `Dialect`."""

    echoes = True

    def parse(self, body: bytes, model: str) -> CompletionRequest:
        return parse(body, model)

    def format_reply(self, name: str, model: str, request: CompletionRequest, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        status: Status = "incomplete" if reply.finish == "length" else "completed"
        whole = response(name, model, request, status, output_items(name, reply), reply)
        return to_json(whole, inf_nan_mode="null")  # what a client sent may hold a number too large for JSON

    def writer(self, name: str, model: str, request: CompletionRequest, version: int, prompt_size: int) -> StreamWriter:
        return ResponsesWriter(name, model, request)

    def error(self, error: SwarmError) -> bytes:
        return to_json(rename_param(error, _NAMES).to_wire())
