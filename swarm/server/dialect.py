"""OpenAI's chat completions on the wire: requests in, replies, streams and model lists out.

Requests are honoured or refused, never silently dropped: a field that is not known, or asks for what is not
honoured, is refused by name. Neutral values of known fields (`n` 1, an empty `tools`, ...) ask for nothing and
pass. In a training episode the sampling policy is the job's, because the learner must recompute its log-probs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from swarm.backends.protocols import Renderer, Sampling
from swarm.errors import InvalidRequest, NotFound
from swarm.job import Job
from swarm.server.calls import Reply
from swarm.wire import EpisodeKind

_NO_INFLUENCE = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "top_logprobs": (0,),
    "ignore_eos": (False,),
}


class StreamOptions(BaseModel):
    """What a stream says besides the text."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields that are honoured; all others are in `model_extra` and judged by `parse`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=5, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    stop: str | list[str] | None = Field(default=None, max_length=1024)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def parse(body: bytes, model: str) -> ChatRequest:
    """Return the request, or raise InvalidRequest naming the field that is wrong or not honoured."""
    try:
        ask = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None
    for name, value in (ask.model_extra or {}).items():
        if value is not None and name not in _NO_INFLUENCE and value not in _NEUTRAL.get(name, ()):
            raise InvalidRequest(f"`{name}` is not honoured by this server; leave it out", param=name)
    if ask.model != model:
        raise NotFound(f"expected model {model!r}, found {ask.model!r}", param="model")
    if ask.stream and ask.logprobs:
        raise InvalidRequest("`logprobs` is not honoured together with `stream`; leave one out", param="logprobs")
    if any(not stop for stop in ask.stops):
        raise InvalidRequest("a stop string must not be empty", param="stop")
    for number, message in enumerate(ask.messages):
        _check_message(number, message)
    return ask


def sampling(ask: ChatRequest, kind: EpisodeKind, job: Job, renderer: Renderer) -> Sampling:
    """Return how to sample; in a training episode raise InvalidRequest for a policy that is not the job's."""
    temperature = job.temperature if ask.temperature is None else ask.temperature
    top_p = 1.0 if ask.top_p is None else ask.top_p
    top_k = max(ask.top_k or 0, 0)
    if kind == "train":
        _same("temperature", temperature, job.temperature)
        _same("top_p", top_p, 1.0)
        _same("top_k", top_k, 0)
    limits = [limit for limit in (ask.max_tokens, ask.max_completion_tokens, job.max_tokens) if limit is not None]
    return Sampling(min(limits), temperature, top_p, top_k, (renderer.eos_id,), ask.seed)


def completion(name: str, ask: ChatRequest, reply: Reply, renderer: Renderer) -> bytes:
    """Return a whole chat completion as JSON."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text},
        "logprobs": _logprobs(reply, renderer) if ask.logprobs else None,
        "finish_reason": reply.finish,
    }
    return to_json({**_head(name, "chat.completion", ask, reply.version), "choices": [choice], "usage": _usage(reply)})


class ChunkWriter:
    """Writes one completion as server-sent events: opening, deltas, end."""

    def __init__(self, name: str, ask: ChatRequest, version: int) -> None:
        self._ask = ask
        self._head = _head(name, "chat.completion.chunk", ask, version)

    def opening(self) -> bytes:
        """Return the first event: the role."""
        return self._choice({"role": "assistant", "content": ""}, None)

    def delta(self, text: str) -> bytes:
        """Return an event with more text."""
        return self._choice({"content": text}, None)

    def end(self, reply: Reply) -> bytes:
        """Return the last events: finish reason, usage if asked for, and the end mark."""
        usage = b""
        if self._ask.stream_options is not None and self._ask.stream_options.include_usage:
            usage = _event({**self._head, "choices": [], "usage": _usage(reply)})
        return self._choice({}, reply.finish) + usage + b"data: [DONE]\n\n"

    def _choice(self, delta: Mapping[str, str], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**self._head, "choices": [choice]})


def error_event(wire: Mapping[str, Any]) -> bytes:
    """Return an error as the last event of a stream that had begun."""
    return _event(wire)


def models(name: str) -> bytes:
    """Return the list of the one model."""
    return to_json({"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "ajet"}]})


def invalid(error: ValidationError) -> InvalidRequest:
    """Return a validation error as one line that names the first wrong field."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    found = "" if first["type"] in {"missing", "json_invalid"} else f", found {str(first['input'])[:80]!r}"
    return InvalidRequest(f"{field or 'body'}: {first['msg']}{found}", param=field or None)


def _same(name: str, found: float, expected: float) -> None:
    if abs(found - expected) > 1e-9:
        raise InvalidRequest(
            f"a training episode samples as its job says: expected {name} {expected:g}, found {found:g}; "
            "leave it out, or begin an eval episode",
            param=name,
        )


def _check_message(number: int, message: Mapping[str, Any]) -> None:
    where = f"messages.{number}"
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{where}: expected a `role`, found {message.get('role')!r}", param=f"{where}.role")
    if not isinstance(message.get("tool_calls") or [], list):
        raise InvalidRequest(f"{where}: expected `tool_calls` to be a list", param=f"{where}.tool_calls")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list) or any(not _is_text(part) for part in content):
        raise InvalidRequest(f"{where}: only text content is honoured", param=f"{where}.content")


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _head(name: str, kind: str, ask: ChatRequest, version: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": kind,
        "created": int(time.time()),
        "model": ask.model,
        "system_fingerprint": f"policy-{version}",
    }


def _usage(reply: Reply) -> dict[str, int]:
    prompt, answer = reply.prompt_tokens, len(reply.ids)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _logprobs(reply: Reply, renderer: Renderer) -> dict[str, Any]:
    tokens = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in zip((renderer.decode([token]) for token in reply.ids), reply.logprobs, strict=True)
    ]
    return {"content": tokens, "refusal": None}


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"
