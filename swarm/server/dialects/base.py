"""A model request and its reply, independent of the wire format, and the protocol that each format implements.

A dialect turns a body into an `Ask` and replies into bytes; it knows no episode, timeline or engine. Promises of
every dialect: a field is honoured, known to have no influence, left out and told (`Ask.left_out`), or refused with
InvalidRequest that names it; nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from swarm.answers import Answer, Piece
from swarm.backends.protocols import Finish, Message, Tool
from swarm.errors import SwarmError


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`auto`: the model may call tools; `none`: it sees none; `required`: it must call one, `name` if given."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the client would like the answer sampled; None where it does not say.

    stop: strings that end the answer. json_schema: the answer must be JSON of this schema ({} for any object).
    others: fields that change the sampling distribution and that no engine here applies (`logit_bias`,
    `min_p`, penalties, ...), by name, where they ask for something.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request in the server's own terms.

    messages, tools: in OpenAI's chat form. n: answers wanted. train: what a training episode samples here is learned.
    logprobs: None for none, else how many alternatives beside the chosen id's. usage_in_stream: a stream ends with the
    tokens used. left_out: by name, what a client offers the model or advises it, and no model here gets. echo: what the
    dialect needs again when it writes the reply. created: when the call began that answers it, in Unix seconds.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    wishes: Wishes = Wishes()
    n: int = 1
    train: bool = True
    stream: bool = False
    logprobs: int | None = None
    usage_in_stream: bool = False
    left_out: tuple[str, ...] = ()
    echo: Mapping[str, Any] = field(default_factory=dict)
    created: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled id as clients see it: its text, its log-prob, and the likeliest alternatives with theirs."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished generation.

    call_ids: the id of each tool call of `answer`. finish: why sampling ended; a dialect says `tool_calls` (or its
    own word for it) where an answer that was not cut has any. tokens: filled where log-probs were asked for. key:
    names the call in its episode and is the same for a request that was sent again; what the client gets must not
    betray more.
    """

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

    def opening(self) -> bytes:
        """Return what comes before any piece."""
        ...

    def piece(self, choice: int, piece: Piece, tokens: Sequence[Token] = (), call_id: str | None = None) -> bytes:
        """Return the events of a piece of answer number `choice`; a tool call has its id."""
        ...

    def finished(self, choice: int, reply: Reply) -> bytes:
        """Return the events that end answer number `choice`."""
        ...

    def closing(self, replies: Sequence[Reply]) -> bytes:
        """Return the events that end the stream."""
        ...

    def keep_alive(self) -> bytes:
        """Return what tells a waiting client that the answer is still coming."""
        ...

    def failed(self, error: SwarmError) -> bytes:
        """Return the events that end the stream with an error."""
        ...


class Dialect(Protocol):
    """One wire format."""

    @property
    def echoes(self) -> bool:
        """Its answers repeat what was asked: the `Ask` they are written for has the wishes that held, not all made."""
        ...

    def parse(self, body: bytes, model: str) -> Ask:
        """Return the request; InvalidRequest names what is wrong or not honoured, NotFound another model."""
        ...

    def whole(self, name: str, model: str, ask: Ask, replies: Sequence[Reply]) -> bytes:
        """Return the whole answer as JSON; `name` is unique and stable for a request that was sent again."""
        ...

    def writer(self, name: str, model: str, ask: Ask, version: int, prompt_tokens: int) -> StreamWriter:
        """Return what writes the answer as a stream; how much was read is known before anything is sampled."""
        ...

    def error(self, error: SwarmError) -> bytes:
        """Return an error's JSON body."""
        ...
