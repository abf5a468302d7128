"""The lean ASGI route of every dialect, and count_tokens.

`POST /v1/messages/count_tokens`: how many tokens the engine would read if this request were a call.

It promises the exact number, because the very prompt of such a call is made, and no trace: nothing is sampled,
captured, counted or trained. Renews the episode's lease, as any word from its owner does.

A route to the model: from the wire to a call and back, as one lean ASGI endpoint for every dialect.

A run makes tens of thousands of calls on a core it shares with engine and client, so this path takes no
framework detour: one parse, one call, one write. Every error is answered in the dialect's own form. A client that
asked for a stream gets one, or an error with its status; a stream that is silent for long says that it lives.
What becomes of the calls of clients that go away stands in `swarm.calls.call`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from swarm.calls.call import GRACE_S, Call, Retries
from swarm.calls.generation import SampledPiece
from swarm.calls.prompts import honoured, shown_tools
from swarm.dialects.base import Ask, Dialect, StreamWriter
from swarm.dialects.messages import MessagesDialect, parse_count
from swarm.errors import InvalidRequest, NotFound, ServerFailed, SwarmError
from swarm.job import LONGEST_AGENT
from swarm.rendering.messages import BackendError
from swarm.rollout.keys import Claims
from swarm.server.http import Presence, authorised, error_response, header, json_response, whole_body
from swarm.server.service import SwarmServer
from swarm.training.loop import Training


class CountEndpoint:
    """The ASGI application of the route."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server
        self.tell = MessagesDialect().error
        """Returns an error's body as this route tells it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            claims = authorised(scope, uses=("model",))
            body = await whole_body(scope, receive, self._server.training.job.max_context)
            tokens = await self._counted(claims, body)
            response = json_response(to_json({"input_tokens": tokens}))
        except SwarmError as error:
            response = error_response(error, self.tell(error))
        await response(scope, receive, send)

    async def _counted(self, claims: Claims, body: bytes) -> int:
        training = self._server.training
        playing = partial(training.rollout.playing, claims)
        episode = playing()
        ask = parse_count(body, training.backend.model_name)
        _, prompt = await training.serving.prompts.build(episode, playing, ask.messages, shown_tools(ask))
        return len(prompt.prompt_ids)


log = logging.getLogger(__name__)

_RETRY = b"x-stainless-retry-count"
"""Sent by the SDKs of OpenAI and Anthropic: how often this request was sent before."""
_TRAIN = b"x-ajet-train"
"""For agents that cannot add a field to a body: `false` is the field `train` false."""
_AGENT = b"x-ajet-agent"
"""Which of an episode's agents calls: a name that its end may give a reward (`by_agent`), and the job may train alone
(`train_agents`). Agents that cannot set it write `KEY/NAME` for their key."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, in seconds.

    keep_alive_s: a stream that sent nothing for so long sends a sign of life. grace_s: a call waits so long for a
    client that announced to come back.
    """

    keep_alive_s: float = 10.0
    grace_s: float = GRACE_S


PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class _Request:
    """What was asked, as far as it held, and of whom; `sent_before` is None for a client that never sends it again."""

    training: Training
    ask: Ask
    call: Call
    sent_before: int | None


class ModelEndpoint:
    """The ASGI application of one route."""

    def __init__(
        self,
        server: SwarmServer,
        dialect: Dialect,
        patience: Patience = PATIENCE,
    ) -> None:
        self._server = server
        self._dialect = dialect
        self.tell = dialect.error
        """Returns an error's body as this route tells it."""
        self._patience = patience
        self._retries = Retries(lambda: asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        presence = Presence(receive)
        try:
            await self._serve(scope, receive, send, presence)
        except SwarmError as error:
            await error_response(error, self.tell(error))(scope, receive, send)
        except asyncio.CancelledError:
            if not presence.gone:
                raise

    async def _serve(self, scope: Scope, receive: Receive, send: Send, presence: Presence) -> None:
        claims = authorised(scope, uses=("model",))
        try:
            await self._answered(claims, scope, receive, send, presence)
        except (InvalidRequest, NotFound) as error:
            self._server.training.rollout.refused(claims, error)
            raise

    async def _answered(self, claims: Claims, scope: Scope, receive: Receive, send: Send, presence: Presence) -> None:
        sent_before = _count(header(scope, _RETRY))
        trained, agent = _trained(header(scope, _TRAIN)), _agent(header(scope, _AGENT), claims.agent)
        body = await whole_body(scope, receive, self._server.training.job.max_context)
        request = await self._request(claims, body, sent_before, trained=trained, agent=agent)
        with presence.required(), request.call.attached(comes_back=request.sent_before is not None):
            if request.ask.stream:
                await self._stream(request, send)
            else:
                await self._whole(request, scope, receive, send)

    async def _request(
        self, claims: Claims, body: bytes, sent_before: int | None, *, trained: bool, agent: str
    ) -> _Request:
        training = self._server.training
        episode = training.rollout.playing(claims)
        ask = self._dialect.parse(body, training.backend.model_name)
        if not (trained and (episode.kind == "eval" or training.job.trains(agent))):
            ask = replace(ask, train=False)
        key = (episode.id, episode.epoch, hashlib.blake2b(body, digest_size=16, key=agent.encode()).digest())
        call = self._retries.find(key) if sent_before else None
        if call is None:
            call = await Call.open(training.serving, claims, episode, ask, agent=agent, grace_s=self._patience.grace_s)
            self._retries.add(key, call)
        else:
            training.rollout.counts["calls_coalesced"] += 1
        if self._dialect.echoes:
            ask = honoured(ask, episode.kind, training.job)
        return _Request(training, replace(ask, created=call.created), call, sent_before)

    async def _whole(self, request: _Request, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            replies = await request.call.replies()
        except BackendError as error:
            raise _broken(request.training, error) from error
        model = request.training.backend.model_name
        content = self._dialect.whole(request.call.reply_name, model, request.ask, replies)
        await json_response(content)(scope, receive, send)

    async def _stream(self, request: _Request, send: Send) -> None:
        training, call = request.training, request.call
        model, read = training.backend.model_name, call.prompt_tokens
        writer = self._dialect.writer(call.reply_name, model, request.ask, training.version, read)
        stream = _EventStream(send, writer)
        try:
            with stream.kept_alive(self._patience.keep_alive_s):
                async for pieces in call.said():
                    await stream.write(_events(writer, pieces))
                replies = await call.replies()
            ends = [writer.finished(choice, reply) for choice, reply in enumerate(replies)]
            await stream.write(b"".join(ends) + writer.closing(replies), more=False)
        except BackendError as error:
            await stream.fail(_broken(training, error))
        except SwarmError as error:
            await stream.fail(error)


class _EventStream:
    """Server-sent events whose status line waits for the first one, so that early errors are proper answers."""

    def __init__(self, send: Send, writer: StreamWriter) -> None:
        self._send = send
        self._writer = writer
        self._opened = False
        self._quiet = True

    async def write(self, events: bytes, *, more: bool = True) -> None:
        """Send events; `more` False ends the stream."""
        self._quiet = False
        if not self._opened:
            self._opened = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            events = self._writer.opening() + events
        await self._send({"type": "http.response.body", "body": events, "more_body": more})

    async def fail(self, error: SwarmError) -> None:
        """Raise an error before the first event, or end the stream with it."""
        if not self._opened:
            raise error
        await self.write(self._writer.failed(error), more=False)

    @contextlib.contextmanager
    def kept_alive(self, every_s: float) -> Iterator[None]:
        """Send a sign of life whenever nothing was sent for `every_s`."""
        beating = asyncio.create_task(self._beat(every_s))
        try:
            yield
        finally:
            beating.cancel()

    async def _beat(self, every_s: float) -> None:
        while True:
            self._quiet = True
            await asyncio.sleep(every_s)
            if self._quiet:
                await self.write(self._writer.keep_alive())


def _events(writer: StreamWriter, pieces: Sequence[SampledPiece]) -> bytes:
    return b"".join(writer.piece(said.choice, said.piece, said.tokens, said.call_id) for said in pieces)


def _count(header: str | None) -> int | None:
    return int(header) if header is not None and header.isdecimal() and len(header) < 5 else None


def _trained(header: str | None) -> bool:
    if header not in (None, "true", "false"):
        name = _TRAIN.decode()
        raise InvalidRequest(f"{name}: expected true or false, found {header[:80]!r}", param=name)
    return header != "false"


def _agent(header: str | None, behind_key: str) -> str:
    """Return the name that an agent says in a header, behind its key, or in both, which must be the same."""
    said = (header or "").encode("latin-1").decode("utf-8", "replace")  # as it was sent
    name = said or behind_key
    if said and behind_key and said != behind_key:
        found = f"{said[:80]!r}, and {behind_key[:80]!r} behind the key"
        raise InvalidRequest(f"{_AGENT.decode()}: expected one name of an agent, found {found}", param=_AGENT.decode())
    if len(name.encode()) > LONGEST_AGENT or not name.isprintable():
        expected = f"a name of at most {LONGEST_AGENT} bytes of printable characters"
        raise InvalidRequest(f"{_AGENT.decode()}: expected {expected}, found {name[:80]!r}", param=_AGENT.decode())
    return name


def _broken(training: Training, error: BackendError) -> ServerFailed:
    """Turn the server FAILED: an engine that raises is broken."""
    training.fail(f"engine: {error}")
    return ServerFailed(f"the server FAILED: engine: {error}")
