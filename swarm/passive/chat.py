"""OpenAI's chat completions as the front speaks them: what is asked, and the reply, whole or as a stream.

What shapes the distribution of the answers (`temperature`, `top_p`, penalties) is honoured in answers that are not
trained; those of a group are sampled as the server's job says, since the learner must recompute their log-probs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm.errors import InvalidRequest

_OWN = ("model", "stream", "stream_options", "user", "n", "metadata", "safety_identifier", "train")
"""Read here, and not handed on."""
_POLICY = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "logit_bias", "seed", "min_tokens", "ignore_eos",
)  # fmt: skip
_PIECE = 24
"""Characters in a chunk of a stream."""


@dataclass(frozen=True, slots=True)
class ChatAsk:
    """A request. `fields` is what the model is asked with, `messages` among them."""

    model: str
    fields: Mapping[str, Any]
    stream: bool = False
    usage: bool = False
    user: str | None = None
    n: int = 1

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation."""
        messages: Sequence[Mapping[str, Any]] = self.fields["messages"]
        return messages

    def params(self, *, trained: bool) -> dict[str, Any]:
        """Return what else a call of the model is asked with."""
        left_out = ("messages", *(_POLICY if trained else ()))
        return {name: value for name, value in self.fields.items() if name not in left_out}


def read(body: bytes) -> ChatAsk:
    """Return the request; InvalidRequest names what is wrong. What it holds for the model, the server judges."""
    try:
        found = json.loads(body)
    except ValueError:
        raise InvalidRequest("expected a JSON object, found text that is none") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"expected a JSON object, found {type(found).__name__}")
    options = found.get("stream_options") or {}
    messages = found.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(said, dict) for said in messages):
        raise InvalidRequest("expected a list of messages, found none", param="messages")
    return ChatAsk(
        model=_of(found, "model", str, ""),
        fields={name: value for name, value in found.items() if name not in _OWN},
        stream=_of(found, "stream", bool, False),
        usage=bool(isinstance(options, dict) and options.get("include_usage")),
        user=_of(found, "user", str, "") or None,
        n=_of(found, "n", int, 1),
    )


def _of(found: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = found.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (
        isinstance(value, int) and kind is int and (isinstance(value, bool) or value < 1)
    ):
        raise InvalidRequest(f"expected {name} to be of type {kind.__name__}, found {str(value)[:80]!r}", param=name)
    return value


@dataclass(frozen=True, slots=True)
class FrontReply:
    """What is answered. `trained` says whether the answers may become training data, `why` else why not."""

    id: str
    model: str
    choices: Sequence[Mapping[str, Any]]
    usage: Mapping[str, int]
    trained: bool
    why: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def headers(self) -> dict[str, str]:
        """Tell the application what becomes of the answer."""
        return {"x-ajet-trained": "true" if self.trained else f"false; {self.why}"}

    def whole(self) -> dict[str, Any]:
        """Return the completion."""
        return {
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": list(self.choices), "usage": dict(self.usage),
        }  # fmt: skip

    def chunks(self, *, usage: bool) -> Iterator[bytes]:
        """Yield the completion as server-sent events."""
        for choice in self.choices:
            message, index = choice["message"], choice["index"]
            text = message.get("content") or ""
            yield self._chunk(index, {"role": "assistant", "content": ""})
            for start in range(0, len(text), _PIECE):
                yield self._chunk(index, {"content": text[start : start + _PIECE]})
            if message.get("tool_calls"):
                calls = [{"index": place, **call} for place, call in enumerate(message["tool_calls"])]
                yield self._chunk(index, {"tool_calls": calls})
            yield self._chunk(index, {}, choice["finish_reason"])
        if usage:
            yield _event({**self._head(), "choices": [], "usage": dict(self.usage)})
        yield b"data: [DONE]\n\n"

    def _chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
        return _event({**self._head(), "choices": [choice]})

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def gathered(raws: Sequence[Mapping[str, Any]], order: Sequence[int]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the first choices of several completions in an order, as those of one, and their common usage."""
    choices = [{**raws[place]["choices"][0], "index": index} for index, place in enumerate(order)]
    used = [raws[place].get("usage") or {} for place in order]
    prompt = max((int(one.get("prompt_tokens", 0)) for one in used), default=0)
    completion = sum(int(one.get("completion_tokens", 0)) for one in used)
    return choices, {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def text_of(raw: Mapping[str, Any]) -> str:
    """Return what an answer says; of one that calls tools, its calls too."""
    message = raw["choices"][0]["message"]
    calls = message.get("tool_calls")
    return (message.get("content") or "") + (json.dumps(calls) if calls else "")
