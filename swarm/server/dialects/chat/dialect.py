"""OpenAI's chat completions on the wire: `POST /v1/chat/completions`, and the list of models.

What is honoured and what is refused stands in `reading`. Thinking goes out as `reasoning_content`, apart from
the words. Log-probs are those of all sampled ids, in their order, whatever part of the answer they belong to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from swarm.answers import Piece, Reasoning, ToolCall, Words
from swarm.errors import SwarmError
from swarm.server.dialects.base import Ask, Reply, StreamWriter, Token
from swarm.server.dialects.chat.reading import parse
from swarm.server.dialects.events import COMMENT, event

_END = b"data: [DONE]\n\n"


class ChatDialect:
    """Implements `Dialect`."""

    echoes = False

    def parse(self, body: bytes, model: str) -> Ask:
        """Return the request; InvalidRequest names what is wrong or not honoured, NotFound another model."""
        return parse(body, model)

    def whole(self, name: str, model: str, ask: Ask, replies: Sequence[Reply]) -> bytes:
        """Return the whole chat completion as JSON."""
        choices = [_choice(number, ask, reply) for number, reply in enumerate(replies)]
        head = _head(name, "chat.completion", model, ask, replies[0].version)
        return to_json({**head, "choices": choices, "usage": _usage(replies)})

    def writer(self, name: str, model: str, ask: Ask, version: int, prompt_tokens: int) -> StreamWriter:
        """Return what writes the chat completion as a stream."""
        return ChatWriter(_head(name, "chat.completion.chunk", model, ask, version), ask)

    def error(self, error: SwarmError) -> bytes:
        """Return OpenAI's error object."""
        return to_json(error.to_wire())


class ChatWriter:
    """Writes the chunks of one chat completion."""

    def __init__(self, head: Mapping[str, Any], ask: Ask) -> None:
        self._head = {**head, "usage": None} if ask.usage_in_stream else head
        self._ask = ask
        self._calls: Counter[int] = Counter()

    def opening(self) -> bytes:
        """Return the first chunk of each answer: the role."""
        first = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(choice, first) for choice in range(self._ask.n))

    def piece(self, choice: int, piece: Piece, tokens: Sequence[Token] = (), call_id: str | None = None) -> bytes:
        """Return the chunk of a piece; a tool call comes whole."""
        return self._chunk(choice, self._delta(choice, piece, call_id), tokens)

    def finished(self, choice: int, reply: Reply) -> bytes:
        """Return the chunk that says why an answer ended."""
        return self._chunk(choice, {}, finish=_finish(reply))

    def closing(self, replies: Sequence[Reply]) -> bytes:
        """Return the usage if asked for, and the end mark."""
        if not self._ask.usage_in_stream:
            return _END
        return event({**self._head, "choices": [], "usage": _usage(replies)}) + _END

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return COMMENT

    def failed(self, error: SwarmError) -> bytes:
        """Return the error object as the last event; an end mark would say that all went well."""
        return event(error.to_wire())

    def _delta(self, choice: int, piece: Piece, call_id: str | None) -> Mapping[str, Any]:
        match piece:
            case Words(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case ToolCall():
                index = self._calls[choice]
                self._calls[choice] += 1
                return {"tool_calls": [{"index": index, **_call(call_id or "", piece)}]}

    def _chunk(
        self, choice: int, delta: Mapping[str, Any], tokens: Sequence[Token] = (), *, finish: str | None = None
    ) -> bytes:
        logprobs = _logprobs(tokens) if tokens else None
        one = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head, "choices": [one]})


def models(name: str) -> bytes:
    """Return the list of the one model."""
    return to_json({"object": "list", "data": [model_card(name)]})


def model_card(name: str) -> dict[str, Any]:
    """Return what is said of the one model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}


def _choice(number: int, ask: Ask, reply: Reply) -> dict[str, Any]:
    answer = reply.answer
    calls = [_call(name, call) for name, call in zip(reply.call_ids, answer.tool_calls, strict=True)]
    message: dict[str, Any] = {"role": "assistant", "content": answer.content if answer.content or not calls else None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls:
        message["tool_calls"] = calls
    logprobs = None if ask.logprobs is None else _logprobs(reply.tokens)
    return {"index": number, "message": message, "logprobs": logprobs, "finish_reason": _finish(reply)}


def _call(call_id: str, call: ToolCall) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.answer.tool_calls and reply.finish == "stop" else reply.finish


def _head(name: str, kind: str, model: str, ask: Ask, version: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{name}",
        "object": kind,
        "created": ask.created,
        "model": model,
        "system_fingerprint": f"policy-{version}",
    }


def _usage(replies: Sequence[Reply]) -> dict[str, Any]:
    """Return the tokens of all answers, which share one prompt."""
    prompt, answers = replies[0].prompt_tokens, sum(reply.sampled_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": {"cached_tokens": replies[0].cached_tokens},
    }


def _logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    content = [
        {**_logprob(token.text, token.logprob), "top_logprobs": [_logprob(text, value) for text, value in token.top]}
        for token in tokens
    ]
    return {"content": content}


def _logprob(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode())}
