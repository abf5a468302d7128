"""The lean ASGI route of every dialect, count_tokens, and bundles.

A run makes tens of thousands of calls on a core it shares with engine and client, so this path takes no framework
detour: one parse, one call, one write. Every error is answered in the dialect's own form. A client that asked for a
stream gets one, or an error with its status; a stream that is silent for long says that it lives. What becomes of the
calls of clients that go away stands in `swarm.calls.call`.

`POST /v1/messages/count_tokens` says how many tokens the engine would read if this request were a call: exactly, as the
very prompt is made. Nothing is sampled, captured, counted or trained; it renews the episode's lease.

A bundle is requests of several episodes in one, each judged, done and answered as if it had come alone: for a tiny
model a request costs more than what it asks for. Clients send together what they ask for in the same turn of their
event loop: begins by the bundle's own role token, ends and calls by the key of each. Answers are lines of JSON, in the
order in which they are there. A client that goes away cancels all that is not answered, as it does alone.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Final, cast

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from swarm import wire
from swarm.calls.call import Call, RetryCache
from swarm.calls.prompts import effective_sampling, visible_tools
from swarm.dialects.base import CompletionRequest, Dialect
from swarm.dialects.messages import MESSAGES, parse_count
from swarm.errors import InvalidKey, InvalidRequest, NotFound, ServerFailed, SwarmError, to_invalid_request
from swarm.job import LONGEST_AGENT
from swarm.rendering.messages import BackendError
from swarm.rollout.keys import Claims, Role, Use
from swarm.server import http
from swarm.server.connections import peer_of
from swarm.server.service import SwarmServer
from swarm.training.loop import Training


class CountEndpoint:
    """The ASGI application of the route."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server
        self.tell = MESSAGES.error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        claims = http.authorize(scope, uses=("model",))
        body = await http.read_call_body(scope, receive, self._server.training.job.max_context)
        training = self._server.training
        playing = partial(training.rollout.renew_episode, claims)
        episode = playing()
        request = parse_count(body, training.backend.model_name)
        _, prompt = await training.serving.prompts.build(episode, playing, request.messages, visible_tools(request))
        await http.send_json(scope, to_json({"input_tokens": len(prompt.prompt_ids)}))


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
        claims = http.authorize(scope, uses=("model",))
        try:
            await self._answer(claims, scope, receive, send)
        except (InvalidRequest, NotFound) as error:
            self._server.training.rollout.count_refusal(claims, error)
            raise

    async def _answer(self, claims: Claims, scope: Scope, receive: Receive, send: Send) -> None:
        retry = http.header(scope, _RETRY)
        sent_before = int(retry) if retry is not None and retry.isdecimal() and len(retry) < 5 else None
        train = http.header(scope, _TRAIN)
        if train not in (None, "true", "false"):
            name = _TRAIN.decode()
            raise InvalidRequest(f"{name}: expected true or false, found {train[:80]!r}", param=name)
        agent = _parse_agent(http.header(scope, _AGENT), claims.agent)
        body = await http.read_call_body(scope, receive, self._server.training.job.max_context)
        training, request, call = await self._open(claims, body, agent, sent_before, train)
        with call.attach(comes_back=sent_before is not None), http.cancel_on_disconnect(scope):
            if request.stream:
                await self._stream(training, request, call, send)
                return
            await http.send_json(scope, await self._take_reply(training, request, call))

    async def reply(self, claims: Claims, asked: wire.BundledRequest) -> bytes:
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


CHAT_PATH: Final = "/v1/chat/completions"
PLAYING: tuple[Role, ...] = ("client", "admin")
_ENDED = re.compile(r"/episodes/([^/]+)/end")


async def lease_of(server: SwarmServer, asked: wire.BeginRequest, request: Request) -> wire.Lease:
    training, keys = server.training, server.keys
    episode = await training.rollout.begin(asked)
    token = episode.fencing_token
    return wire.Lease(
        episode_id=episode.id, epoch=token, task_id=episode.task_id, kind=episode.kind,
        api_key=keys.model_key(episode.id, token), lease_token=keys.lease_key(episode.id, token),
        base_url=f"{request.base_url}v1",  # the address the client came by, whatever lies between
        model=training.backend.model_name, ttl_s=min(training.job.lease_ttl_s, training.job.drain_timeout_s),
        policy_version=training.rollout.version,
    )  # fmt: skip


class BundleAnswer(StreamingResponse):
    """The answers of a bundle's requests, all that are there at a time in one piece."""

    def __init__(self, bundle: wire.Bundle, request: Request, server: SwarmServer) -> None:
        super().__init__(self._lines(bundle), media_type="application/jsonl")
        self._request = request
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answers; what is left is cancelled where the client goes away."""
        lines = cast(AsyncGenerator[bytes, None], self.body_iterator)
        with suppress(ClientDisconnect):
            async with aclosing(lines):
                with http.cancel_on_disconnect(scope):
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    async for piece in lines:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _lines(self, bundle: wire.Bundle) -> AsyncGenerator[bytes, None]:
        done = asyncio.Queue[bytes]()

        async def answer(at: int, asked: wire.BundledRequest) -> None:
            status, wait, content = 200, b"null", b""
            try:
                content = await self._answer(asked)
            except Exception as error:  # noqa: BLE001  -- the others of the bundle have no part in it
                refusal = to_invalid_request(error) if isinstance(error, ValidationError) else error
                if isinstance(refusal, SwarmError):
                    told = http.error_response(refusal)
                else:
                    told = await http.on_any_error(self._request, refusal)
                status, wait = told.status_code, told.headers.get("retry-after", "null").encode()
                content = bytes(told.body)
            line = b'{"at":%d,"status":%d,"retry_after":%b,"body":%b}\n'
            done.put_nowait(line % (at, status, wait, content))

        left = [asyncio.create_task(answer(at, asked)) for at, asked in enumerate(bundle.requests)]
        try:
            count = 0
            while count < len(left):
                pieces = [await done.get()]
                while not done.empty():
                    pieces.append(done.get_nowait())
                count += len(pieces)
                yield b"".join(pieces)
        finally:
            for each in left:
                each.cancel()

    async def _answer(self, asked: wire.BundledRequest) -> bytes:
        server, request = self._server, self._request
        if asked.path == CHAT_PATH:
            return bytes(await request.app.state.chat.reply(self._claims(asked, "model"), asked))
        if asked.path == "/episodes" and asked.key is None:
            http.authorize(request.scope, roles=PLAYING)
            lease = await lease_of(server, wire.BeginRequest.model_validate(asked.body), request)
            return lease.model_dump_json().encode()
        if (ended := _ENDED.fullmatch(asked.path)) is None:
            raise NotFound(f"there is no {asked.path[:80]!r} in a bundle; expected begins, ends and chat completions")
        claims = self._claims(asked, "lease")
        if claims.episode != ended[1]:
            raise InvalidKey(f"expected the lease token of the episode in the path, found that of {claims.episode}")
        end = await server.training.rollout.end(claims, wire.EndRequest.model_validate(asked.body))
        return end.model_dump_json(exclude_none=True).encode()

    def _claims(self, asked: wire.BundledRequest, use: Use) -> Claims:
        """Return what a request's key says; of what is none of this use, nothing: it may be a guess at a token, and
        counts as a wrong key that came alone."""
        with suppress(InvalidKey):
            claims = self._server.keys.read_header(f"Bearer {asked.key}")
            if claims.use == use:
                return claims
        failures, peer = self._request.app.state.failures, peer_of(self._request.scope)
        if (refusal := failures.find_refusal(peer)) is not None:
            raise refusal
        failures.note(peer)
        raise InvalidKey(f"expected a {use} key of an episode that was begun here, found none")
