"""OpenAI's chat completions: `POST /v1/chat/completions` and the list of models (docs/protocols.md).

A tool message answers a call made before it. Log-probs are those of all sampled ids, whatever part they belong to.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from swarm.dialects.base import CompletionRequest, Dialect, Reply, RequestedSampling, StreamWriter, Token, event
from swarm.dialects.fields import Fields, body_fields, field_error, function_tool, is_plain, join_text
from swarm.errors import SwarmError
from swarm.rendering.messages import Message, Piece, Reasoning, Tool, ToolCall, Words, chat_call, chat_message

MOST_ANSWERS = 128
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
    "logit_bias": {}, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_p": 0,
    "min_tokens": 0, "ignore_eos": False,
}  # fmt: skip
"""Fields that shape the distribution, each with the value that asks for nothing."""
_ADVICE: Mapping[str, str | None] = {"reasoning_effort": None, "verbosity": "medium"}
"""Fields that advise the model, each with the value that advises nothing."""


def parse(body: bytes, model: str) -> CompletionRequest:
    fields = body_fields(body)
    fields.require_model(model)
    sent = fields.items("messages")
    if not sent:
        raise field_error("messages", "expected a list of at least one message, found none")
    called: set[str] = set()
    messages = tuple(
        message if is_plain(message) else _message(Fields(message, f"messages.{number}"), called)
        for number, message in enumerate(sent)
    )
    stream = fields.flag("stream") or False
    if fields.empty:  # as most requests are
        return CompletionRequest(messages, stream=stream)
    tools = [_tool(Fields(tool, f"tools.{number}")) for number, tool in enumerate(fields.items("tools") or [])]
    limits = [fields.integer("max_tokens", 1), fields.integer("max_completion_tokens", 1)]
    logprobs, alternatives = fields.flag("logprobs"), fields.integer("top_logprobs", 0, 20)
    if alternatives and not logprobs:
        raise field_error("top_logprobs", "is given only beside `logprobs` true; add it, or leave this out")
    options = fields.inner("stream_options")
    request = CompletionRequest(
        messages=messages,
        tools=tuple(tools),
        tool_choice=fields.tool_choice(tools, nested=True),
        parallel_tool_calls=fields.flag("parallel_tool_calls") is not False,
        sampling=RequestedSampling(
            max_tokens=min((limit for limit in limits if limit is not None), default=None),
            temperature=fields.number("temperature", 0, 5),
            top_p=fields.number("top_p", 1e-9, 1),
            top_k=fields.integer("top_k", -1),
            seed=fields.integer("seed", -(2**63), 2**63 - 1),
            stop=fields.stops("stop", alone=True),
            json_schema=_schema(fields.inner("response_format")),
            others={name: value for name, no in _OTHERS.items() if (value := fields.take(name)) not in (None, no)},
        ),
        n=fields.integer("n", 1, MOST_ANSWERS) or 1,
        train=fields.flag("train") is not False,
        stream=stream,
        logprobs=(alternatives or 0) if logprobs else None,
        usage_in_stream=options.flag("include_usage") or False,
        left_out=tuple(name for name, plain in _ADVICE.items() if fields.text(name) not in (None, plain)),
    )
    options.ignore("include_obfuscation")
    fields.ignore(*_NO_INFLUENCE)
    fields.require_neutral(**_NEUTRAL)
    fields.close()
    return request


def _schema(found: Fields) -> Mapping[str, Any] | None:
    if found.absent:
        return None
    kind = found.required_choice("type", ("text", "json_object", "json_schema"), "text, json_object or json_schema")
    schema: Mapping[str, Any] | None = {} if kind == "json_object" else None
    if kind == "json_schema":
        inner = found.inner("json_schema")
        if inner.absent:
            raise field_error(inner.where, "expected an object, found none")
        schema = inner.object("schema") or {}
        inner.ignore("name", "description", "strict")
    return schema


def _tool(fields: Fields) -> Tool:
    function = _function(fields, fields.text("type"), "tools")
    tool = function_tool(function.required_text("name"), function.text("description"), function.object("parameters"))
    function.ignore("strict")
    fields.close()
    return tool


def _function(fields: Fields, kind: str | None, what: str) -> Fields:
    if kind != "function":
        raise field_error(fields.at("type"), f"only {what} of type 'function' are honoured, found {kind!r}")
    return fields.inner("function")


def _message(fields: Fields, called: set[str]) -> Message:
    role = fields.required_choice("role", _ROLES, f"one of {', '.join(_ROLES)}")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    content = fields.take("content")
    if content is None and role != "assistant":
        raise field_error(fields.at("content"), "expected a string or a list of text parts, found none")
    message["content"] = "" if content is None else join_text(content, fields.at("content"), _TEXT)
    name = fields.text("name")
    if name:
        message["name"] = name
    if role == "assistant":
        message |= _assistant(fields, called)
    elif role == "tool":
        message["tool_call_id"] = fields.call_id("tool_call_id", called)
    fields.close()
    return message


def _assistant(fields: Fields, called: set[str]) -> Message:
    fields.require_neutral(refusal=("",), audio=(), function_call=(), annotations=([],))
    fields.ignore("parsed")
    stored = fields.inner(_STORED)
    stored.require_neutral(refusal=("",))
    stored.ignore("reasoning_content", "reasoning")
    message: dict[str, Any] = {}
    reasoning, other = fields.text("reasoning_content"), fields.text("reasoning")
    if reasoning or other:
        message["reasoning_content"] = reasoning or other
    where = fields.at("tool_calls")
    calls = [_read_call(Fields(call, f"{where}.{at}")) for at, call in enumerate(fields.items("tool_calls") or [])]
    if calls:
        message["tool_calls"] = calls
        called.update(call["id"] for call in calls)
    return message


def _read_call(fields: Fields) -> dict[str, Any]:
    call_id, function = fields.required_text("id"), _function(fields, fields.text("type") or "function", "calls")
    named = {"name": function.required_text("name"), "arguments": function.required_text("arguments")}
    function.ignore("parsed_arguments", _STORED)
    fields.ignore("index", _STORED)
    fields.close()
    return {"id": call_id, "type": "function", "function": named}


_STORED = "provider_specific_fields"
_TEXT = {"text": ["cache_control"]}
_ROLES = ("developer", "system", "user", "assistant", "tool")


class ChatWriter(StreamWriter):
    """Writes the chunks of one chat completion."""

    def __init__(self, name: str, model: str, request: CompletionRequest, version: int, prompt_size: int) -> None:
        self._head = _head(name, "chat.completion.chunk", model, request, version)
        if request.usage_in_stream:
            self._head["usage"] = None
        self._request = request
        self._calls: Counter[int] = Counter()

    def opening(self) -> bytes:
        first = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(choice, first) for choice in range(self._request.n))

    def piece(self, choice: int, piece: Piece, tokens: Sequence[Token] = (), call_id: str | None = None) -> bytes:
        delta: Mapping[str, Any]
        match piece:
            case Words(text):
                delta = {"content": text}
            case Reasoning(text):
                delta = {"reasoning_content": text}
            case ToolCall():
                index = self._calls[choice]
                self._calls[choice] += 1
                delta = {"tool_calls": [{"index": index, **chat_call(call_id or "", piece)}]}
        return self._chunk(choice, delta, tokens)

    def closing(self, replies: Sequence[Reply]) -> bytes:
        ends = [self._chunk(choice, {}, finish=_finish(reply)) for choice, reply in enumerate(replies)]
        if self._request.usage_in_stream:
            ends.append(event({**self._head, "choices": [], "usage": _usage(replies)}))
        return b"".join(ends) + b"data: [DONE]\n\n"

    def fail(self, error: SwarmError) -> bytes:
        """Return the error object as the last event; an end mark would say that all went well."""
        return event(error.to_wire())

    def _chunk(
        self, choice: int, delta: Mapping[str, Any], tokens: Sequence[Token] = (), *, finish: str | None = None
    ) -> bytes:
        logprobs = {"content": [token.to_wire() for token in tokens]} if tokens else None
        one = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head, "choices": [one]})


def model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}


def format_reply(name: str, model: str, request: CompletionRequest, replies: Sequence[Reply]) -> bytes:
    choices: list[dict[str, Any]] = []
    for reply in replies:
        message = chat_message(reply.answer, reply.call_ids)
        if reply.answer.tool_calls:
            message["content"] = reply.answer.content or None
        logprobs = None if request.logprobs is None else {"content": [token.to_wire() for token in reply.tokens]}
        end = {"logprobs": logprobs, "finish_reason": _finish(reply)}
        choices.append({"index": len(choices), "message": message, **end})
    head = _head(name, "chat.completion", model, request, replies[0].version)
    return to_json({**head, "choices": choices, "usage": _usage(replies)})


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.answer.tool_calls and reply.finish == "stop" else reply.finish


def _head(name: str, kind: str, model: str, request: CompletionRequest, version: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{name}",
        "object": kind,
        "created": request.created,
        "model": model,
        "system_fingerprint": f"policy-{version}",
    }


def _usage(replies: Sequence[Reply]) -> dict[str, Any]:
    prompt, answers = replies[0].prompt_tokens, sum(reply.sampled_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": {"cached_tokens": replies[0].cached_tokens},
    }


CHAT = Dialect(parse, format_reply, ChatWriter, lambda error: to_json(error.to_wire()))
