"""The lean ASGI route of every dialect, and count_tokens.

A run makes tens of thousands of calls on a core it shares with engine and client, so this path takes no framework
detour: one parse, one call, one write. Every error is answered in the dialect's own form. A client that asked for a
stream gets one, or an error with its status; a stream that is silent for long says that it lives. What becomes of the
calls of clients that go away stands in `swarm.calls.call`.

`POST /v1/messages/count_tokens` says how many tokens the engine would read if this request were a call: exactly, as the
very prompt is made. Nothing is sampled, captured, counted or trained; it renews the episode's lease.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from functools import partial

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from swarm.calls.call import Call, RetryCache
from swarm.calls.prompts import effective_sampling, visible_tools
from swarm.dialects.base import CompletionRequest, Dialect
from swarm.dialects.messages import MESSAGES, parse_count
from swarm.errors import InvalidRequest, NotFound, ServerFailed, SwarmError
from swarm.job import LONGEST_AGENT
from swarm.rendering.messages import BackendError
from swarm.rollout.keys import Claims
from swarm.server.http import authorize, cancel_on_disconnect, header, read_call_body, send_json
from swarm.server.service import SwarmServer
from swarm.training.loop import Training
from swarm.wire import BundledRequest


class CountEndpoint:
    """The ASGI application of the route."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server
        self.tell = MESSAGES.error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        claims = authorize(scope, uses=("model",))
        body = await read_call_body(scope, receive, self._server.training.job.max_context)
        training = self._server.training
        playing = partial(training.rollout.renew_episode, claims)
        episode = playing()
        request = parse_count(body, training.backend.model_name)
        _, prompt = await training.serving.prompts.build(episode, playing, request.messages, visible_tools(request))
        await send_json(scope, to_json({"input_tokens": len(prompt.prompt_ids)}))


_RETRY = b"x-stainless-retry-count"
"""Sent by the SDKs of OpenAI and Anthropic: how often this request was sent before."""
_TRAIN = b"x-ajet-train"
"""For agents that cannot add a field to a body: `false` is the field `train` false."""
_AGENT = b"x-ajet-agent"
"""Which of an episode's agents calls: a name that its end may give a reward (`by_agent`), and the job may train alone
(`train_agents`). Agents that cannot set it write `KEY/NAME` for their key."""

KEEP_ALIVE_S = 10.0
"""Seconds after which a stream that sent nothing sends a sign of life."""


class ModelEndpoint:
    """The ASGI application of one route."""

    def __init__(self, server: SwarmServer, dialect: Dialect) -> None:
        self._server = server
        self._dialect = dialect
        self.tell = dialect.error
        self._retries = RetryCache(lambda: asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        claims = authorize(scope, uses=("model",))
        try:
            await self._answer(claims, scope, receive, send)
        except (InvalidRequest, NotFound) as error:
            self._server.training.rollout.count_refusal(claims, error)
            raise

    async def _answer(self, claims: Claims, scope: Scope, receive: Receive, send: Send) -> None:
        retry = header(scope, _RETRY)
        sent_before = int(retry) if retry is not None and retry.isdecimal() and len(retry) < 5 else None
        train = header(scope, _TRAIN)
        if train not in (None, "true", "false"):
            name = _TRAIN.decode()
            raise InvalidRequest(f"{name}: expected true or false, found {train[:80]!r}", param=name)
        agent = _parse_agent(header(scope, _AGENT), claims.agent)
        body = await read_call_body(scope, receive, self._server.training.job.max_context)
        training, request, call = await self._open(claims, body, agent, sent_before, train)
        with call.attach(comes_back=sent_before is not None), cancel_on_disconnect(scope):
            if request.stream:
                await self._stream(training, request, call, send)
                return
            await send_json(scope, await self._take_reply(training, request, call))

    async def reply(self, claims: Claims, asked: BundledRequest) -> bytes:
        """Return the answer to a call of a bundle; raise what it is refused with."""
        try:
            if asked.body.get("stream"):
                raise InvalidRequest("expected a call that is not streamed in a bundle", param="stream")
            training, request, call = await self._open(claims, to_json(asked.body), _parse_agent(None, claims.agent))
            with call.attach(comes_back=False):
                return await self._take_reply(training, request, call)
        except (InvalidRequest, NotFound) as error:
            self._server.training.rollout.count_refusal(claims, error)
            raise

    async def _open(
        self, claims: Claims, body: bytes, agent: str, sent_before: int | None = None, train: str | None = None
    ) -> tuple[Training, CompletionRequest, Call]:
        training = self._server.training
        episode = training.rollout.renew_episode(claims)
        request = self._dialect.parse(body, training.backend.model_name)
        if train == "false" or not (episode.kind == "eval" or training.job.trains(agent)):
            request = replace(request, train=False)
        key = (episode.id, episode.fencing_token, hashlib.blake2b(body, digest_size=16, key=agent.encode()).digest())
        call = self._retries.find(key) if sent_before else None
        if call is None:
            call = await Call.open(training.serving, claims, episode, request, agent)
            self._retries.add(key, call)
        else:
            training.rollout.counts["calls_coalesced"] += 1
        if self._dialect.echoes:
            request = effective_sampling(request, episode.kind, training.job)
        if request.created != call.created:
            request = replace(request, created=call.created)
        return training, request, call

    async def _take_reply(self, training: Training, request: CompletionRequest, call: Call) -> bytes:
        try:
            replies = await call.replies()
        except BackendError as error:
            raise _fail_server(training, error) from error
        return self._dialect.format_reply(call.reply_name, training.backend.model_name, request, replies)

    async def _stream(self, training: Training, request: CompletionRequest, call: Call, send: Send) -> None:
        """Send the answer as server-sent events. The status line waits for the first one, so that an error before it is
        a proper answer."""
        model, read = training.backend.model_name, call.prompt_tokens
        writer = self._dialect.writer(call.reply_name, model, request, training.rollout.version, read)
        opened, quiet = False, True

        async def write(events: bytes, *, more: bool = True) -> None:
            nonlocal opened, quiet
            quiet = False
            if not opened:
                opened = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                events = writer.opening() + events
            await send({"type": "http.response.body", "body": events, "more_body": more})

        async def keep_alive() -> None:
            nonlocal quiet
            while True:
                quiet = True
                await asyncio.sleep(KEEP_ALIVE_S)
                if quiet:
                    await write(writer.keep_alive)

        beating = asyncio.create_task(keep_alive())
        try:
            async for pieces in call.stream_pieces():
                await write(b"".join(writer.piece(one.choice, one.piece, one.tokens, one.call_id) for one in pieces))
            end = writer.closing(await call.replies())
        except (BackendError, SwarmError) as error:
            failure = _fail_server(training, error) if isinstance(error, BackendError) else error
            if not opened:
                raise failure from error
            end = writer.fail(failure)
        finally:
            beating.cancel()
        await write(end, more=False)


def _parse_agent(header: str | None, behind_key: str) -> str:
    said = (header or "").encode("latin-1").decode("utf-8", "replace")  # as it was sent
    name = said or behind_key
    if said and behind_key and said != behind_key:
        found = f"{said[:80]!r}, and {behind_key[:80]!r} behind the key"
        raise InvalidRequest(f"{_AGENT.decode()}: expected one name of an agent, found {found}", param=_AGENT.decode())
    if len(name.encode()) > LONGEST_AGENT or not name.isprintable():
        expected = f"a name of at most {LONGEST_AGENT} bytes of printable characters"
        raise InvalidRequest(f"{_AGENT.decode()}: expected {expected}, found {name[:80]!r}", param=_AGENT.decode())
    return name


def _fail_server(training: Training, error: BackendError) -> ServerFailed:
    training.fail(f"engine: {error}")
    return ServerFailed(f"the server FAILED: engine: {error}")
