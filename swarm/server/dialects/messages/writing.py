"""Writes answers as Anthropic's Messages API does: content blocks, the message around them, and its event stream.

Promises that the blocks of a stream, put together by a client, are what the whole message would have been, but
for the order in which thinking and words alternated. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from swarm.answers import Piece, Reasoning, ToolCall, Words
from swarm.errors import ContextExceeded, SwarmError
from swarm.server.dialects.base import Reply, Token
from swarm.server.dialects.events import named_event
from swarm.server.dialects.messages.threads import NoThreads
from swarm.server.dialects.opaque import sealed, signature

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
        return {"type": "thinking", "thinking": "", "signature": sealed(text)}
    return {"type": "thinking", "thinking": text, "signature": signature(text)}


def blocks(reply: Reply, *, omitted: bool) -> list[bytes]:
    """Return the content of a whole answer as JSON; one without anything has one empty text.

    The arguments of a call stand as the model wrote them, so that no number or depth is lost on the way.
    """
    answer = reply.answer
    found = [to_json(thinking_block(answer.reasoning, omitted=omitted))] if answer.reasoning else []
    if answer.content or not (found or answer.tool_calls):
        found.append(to_json({"type": "text", "text": answer.content}))
    for call_id, call in zip(reply.call_ids, answer.tool_calls, strict=True):
        begun = to_json({"type": "tool_use", "id": call_id, "name": call.name})
        found.append(begun[:-1] + b',"input":' + call.arguments.encode() + b"}")
    return found


def ending(reply: Reply) -> dict[str, Any]:
    """Return why the answer ended."""
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
    """Return a whole message as JSON."""
    head = to_json(_head(name, model))
    rest = to_json({**ending(reply), "usage": usage(reply)})
    return head[:-1] + b',"content":[' + b",".join(blocks(reply, omitted=omitted)) + b"]," + rest[1:]


def error_object(error: SwarmError) -> Block:
    """Return an error in Anthropic's form; `code` and `param` are this server's, as in all its protocols.

    Agents of this protocol know a prompt that is too long by the first words of the message.
    """
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
        """Return the events of a piece; a block is opened when the kind of piece changes."""
        if isinstance(piece, ToolCall):
            return self._stopped() + self._called(piece, call_id or "")
        if not piece.text:
            return b""
        opened = b"" if type(piece) is self._kind else self._stopped() + self._opened(type(piece))
        self._text += piece.text
        return opened + self._more(piece)

    def finished(self, choice: int, reply: Reply) -> bytes:
        """Return the end of the last block; an answer without any gets an empty text."""
        opened = b"" if self._index or self._kind else self._opened(Words)
        return opened + self._stopped()

    def closing(self, replies: Sequence[Reply]) -> bytes:
        """Return why the answer ended, and the end."""
        (reply,) = replies
        return named_event({"type": "message_delta", "delta": ending(reply), "usage": usage(reply)}) + named_event(
            {"type": "message_stop"}
        )

    def keep_alive(self) -> bytes:
        """Return a ping."""
        return PING

    def failed(self, error: SwarmError) -> bytes:
        """Return the error, which ends a stream without its `message_stop`."""
        return named_event(error_object(error))

    def _opened(self, kind: type[Words] | type[Reasoning]) -> bytes:
        self._kind, self._text = kind, ""
        empty: Block = {"type": "text", "text": ""}
        if kind is Reasoning:
            empty = {"type": "thinking", "thinking": "", "signature": ""}
        return self._start(empty)

    def _more(self, piece: Words | Reasoning) -> bytes:
        if isinstance(piece, Words):
            return self._delta({"type": "text_delta", "text": piece.text})
        return b"" if self._omitted else self._delta({"type": "thinking_delta", "thinking": piece.text})

    def _stopped(self) -> bytes:
        """Return the end of the open block, if one is."""
        if self._kind is None:
            return b""
        signed = b""
        if self._kind is Reasoning:
            token = thinking_block(self._text, omitted=self._omitted)["signature"]
            signed = self._delta({"type": "signature_delta", "signature": token})
        self._kind = None
        return signed + self._stop()

    def _called(self, call: ToolCall, call_id: str) -> bytes:
        begun = self._start({"type": "tool_use", "id": call_id, "name": call.name, "input": {}})
        return begun + self._delta({"type": "input_json_delta", "partial_json": call.arguments}) + self._stop()

    def _start(self, block: Block) -> bytes:
        return named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Block) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        self._index += 1
        return named_event({"type": "content_block_stop", "index": self._index - 1})


def _head(name: str, model: str) -> Block:
    return {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": model}
