"""A model request and its reply, independent of the wire format, and the dialect protocol.

A field is honoured, known to have no influence, left out and told (`left_out`), or refused with an InvalidRequest that
names it; nothing is dropped silently. Thinking is given back by clients with opaque tokens: a `signature` fits the
shown text alone, a `seal` carries thinking that is not shown. They need no secret: they guard against mistakes, not
against a client that invents thinking, which every client may.
"""

import base64
import binascii
import hashlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic_core import to_json

from swarm.backends.protocols import Finish
from swarm.errors import SwarmError
from swarm.rendering.messages import Answer, Message, Piece, Tool


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`auto`: the model may call tools; `none`: it sees none; `required`: it must call one, `name` if given."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class RequestedSampling:
    """How the client would like the answer sampled; None where it does not say. stop: strings that end the answer.
    json_schema: the answer must be JSON of this schema ({} for any object). others: fields that ask for another
    distribution and that no engine here applies (`logit_bias`, `min_p`, penalties, ...)."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request in the server's own terms. messages, tools: in OpenAI's chat form. n: answers wanted. train: what a
    training episode samples here is learned. logprobs: None for none, else how many alternatives beside the chosen
    id's. left_out: by name, what a client offers the model or advises it, and no model here gets. echo: what the
    dialect needs again when it writes the reply. created: when the call began that answers it, in Unix seconds."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: RequestedSampling = RequestedSampling()
    n: int = 1
    train: bool = True
    stream: bool = False
    logprobs: int | None = None
    usage_in_stream: bool = False
    left_out: tuple[str, ...] = ()
    echo: Mapping[str, Any] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()), compare=False)


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled id as clients see it: its text, its log-prob, and the likeliest alternatives with theirs."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return it as OpenAI's protocols have it."""

        def logprob(text: str, value: float) -> dict[str, Any]:
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        return {**logprob(self.text, self.logprob), "top_logprobs": [logprob(*other) for other in self.top]}


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished generation. call_ids: the id of each tool call of `answer`. finish: why sampling ended. tokens:
    where log-probs were asked for. key: names the call in its episode and is the same for a request sent again."""

    answer: Answer
    call_ids: tuple[str, ...]
    finish: Finish
    stop: str | None
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    version: int
    key: str
    tokens: tuple[Token, ...] = ()


class StreamWriter(Protocol):
    """Writes one stream of server-sent events; all methods return the bytes to send."""

    keep_alive: bytes = b": keep-alive\n\n"
    """Tells a waiting client that the answer is still coming: a comment, which every one must skip."""

    def opening(self) -> bytes: ...

    def piece(self, choice: int, piece: Piece, tokens: Sequence[Token] = (), call_id: str | None = None) -> bytes:
        """Return the events of a piece of answer number `choice`; a tool call has its id."""

    def closing(self, replies: Sequence[Reply]) -> bytes:
        """Return the ends of all answers and of the stream."""

    def fail(self, error: SwarmError) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format, as functions. parse: a body and the served model to the request; raises InvalidRequest, and
    NotFound for another model. format_reply: the whole answer as JSON, of its name (unique, and stable for a request
    that was sent again), model, request and replies. writer: what writes it as a stream, of name, model, request,
    policy version and tokens of the prompt. echoes: answers repeat what was asked: the sampling that held."""

    parse: Callable[[bytes, str], CompletionRequest]
    format_reply: Callable[[str, str, CompletionRequest, Sequence[Reply]], bytes]
    writer: Callable[[str, str, CompletionRequest, int, int], StreamWriter]
    error: Callable[[SwarmError], bytes]
    echoes: bool = False


_LINE_ENDS = tuple((letter.encode(), b"\\u%04x" % ord(letter)) for letter in "\x85\u2028\u2029")


def event(value: Mapping[str, Any]) -> bytes:
    """Return an event of one line of data, free of U+0085, U+2028, U+2029 (ends of lines to some); NaN becomes null."""
    data = to_json(value, inf_nan_mode="null")
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\n" + event(value)


def rename_param(error: SwarmError, names: Mapping[str, str]) -> SwarmError:
    """Return the error with fields named as the protocol does; `names` has chat's name for each first."""
    if error.param is None or error.param not in names:
        return error
    message = error.message
    for name, own in names.items():
        message = message.replace(f"`{name}`", f"`{own}`")
    return type(error)(message, param=names[error.param], retry_after=error.retry_after)


_SIGNED = "v1.s."
_SEALED = "v1.r."
_DIGEST_BYTES = 24
MOST_CHARACTERS = 4_000_000
"""Thinking longer than this is not unsealed."""
_FOLDED = 8
"""Bytes a packed one may unfold to; what would pack better is not packed. So no body full of short tokens, which any
client may make, unfolds into a server's whole memory."""


def signature(text: str) -> str:
    return _SIGNED + _encode(_digest(text))


def seal(text: str) -> str:
    raw = text.encode()
    packed = zlib.compress(raw)
    if len(raw) > _FOLDED * len(packed):
        packed = zlib.compress(raw, 0)
    return _SEALED + _encode(_digest(text) + packed)


def unseal(token: str) -> str | None:
    """Return the text a token carries, or None if it was not made by `sealed`."""
    if not token.startswith(_SEALED):
        return None
    unpacker = zlib.decompressobj()
    try:
        raw = base64.b64decode(token[len(_SEALED) :], altchars=b"-_", validate=True)
        digest, packed = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        most = min(4 * MOST_CHARACTERS, _FOLDED * len(packed))
        unpacked = unpacker.decompress(packed, most + 1)
        text = unpacked.decode()
    except (binascii.Error, zlib.error, ValueError):
        return None
    whole = len(unpacked) <= most and unpacker.eof
    return text if whole and _digest(text) == digest else None


def recover_thinking(text: str, token: str) -> str | None:
    """Return what was thought: `text` if `token` signs it, else what `token` carries if no text is shown; or None."""
    if token == signature(text):
        return text
    carried = unseal(token)
    return carried if text in ("", carried) else None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()


def answer_tokens(reply: Reply) -> Sequence[Token]:
    """Return the tokens that overlap the answer's words; all of them where thinking and calls cannot be told apart."""
    answer, tokens = reply.answer, reply.tokens
    if not answer.reasoning and not answer.tool_calls:
        return tokens
    text = "".join(token.text for token in tokens)
    thought = max(text.find(answer.reasoning), 0) + len(answer.reasoning)
    first = text.find(answer.content, thought)
    if first < 0:
        return tokens
    found, place = [], 0
    for token in tokens:
        if place < first + len(answer.content) and place + len(token.text) > first:
            found.append(token)
        place += len(token.text)
    return found
