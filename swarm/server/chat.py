"""`POST /v1/chat/completions`: from the wire to a call and back, as one lean ASGI endpoint.

A run makes tens of thousands of calls on a core it shares with engine and client, so this path takes no
framework detour: one parse, one call, one write. A client that goes away cancels its generation.
"""

from __future__ import annotations

import asyncio
import itertools

from starlette.types import Receive, Scope, Send

from swarm.backends.protocols import BackendError
from swarm.errors import ServerFailed, SwarmError
from swarm.server import dialect
from swarm.server.calls import Call
from swarm.server.core import SwarmServer
from swarm.server.http import Presence, error_response, header, json_response, read_body
from swarm.server.training import Training


class ChatEndpoint:
    """The ASGI application of one route."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server
        self._names = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        presence = Presence(receive)
        try:
            await self._serve(scope, receive, send, presence)
        except SwarmError as error:
            await error_response(error)(scope, receive, send)
        except asyncio.CancelledError:
            if not presence.gone:
                raise

    async def _serve(self, scope: Scope, receive: Receive, send: Send, presence: Presence) -> None:
        claims = self._server.keys.authorise(header(scope, b"authorization"), uses=("model",))
        body = await read_body(receive)
        training = self._server.training
        backend = training.backend
        episode = training.rollout.leases.holding(claims)
        ask = dialect.parse(body, backend.model_name)
        sampling = dialect.sampling(ask, episode.kind, training.job, backend.renderer)
        call = Call(training.rollout, backend, episode, ask.messages, sampling, ask.stops)
        name = f"chatcmpl-{next(self._names)}"
        with presence.required():
            if ask.stream:
                await self._stream(training, call, name, ask, send)
                return
            try:
                reply = await call.run()
            except BackendError as error:
                raise self._broken(training, error) from error
        await json_response(dialect.completion(name, ask, reply, backend.renderer))(scope, receive, send)

    async def _stream(self, training: Training, call: Call, name: str, ask: dialect.ChatRequest, send: Send) -> None:
        writer = dialect.ChunkWriter(name, ask, training.version)
        stream = _EventStream(send, writer.opening())
        try:
            reply = await call.run(lambda text: stream.write(writer.delta(text)))
            await stream.write(writer.end(reply), more=False)
        except BackendError as error:
            await stream.fail(self._broken(training, error))
        except SwarmError as error:
            await stream.fail(error)

    def _broken(self, training: Training, error: BackendError) -> ServerFailed:
        """Turn the server FAILED: an engine that raises is broken."""
        training.fail(f"engine: {error}")
        return ServerFailed(f"the server FAILED: engine: {error}")


class _EventStream:
    """Server-sent events whose status line waits for the first one, so that early errors are proper answers."""

    def __init__(self, send: Send, opening: bytes) -> None:
        self._send = send
        self._opening: bytes | None = opening

    async def write(self, events: bytes, *, more: bool = True) -> None:
        """Send events; `more` False ends the stream."""
        if self._opening is not None:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            events, self._opening = self._opening + events, None
        await self._send({"type": "http.response.body", "body": events, "more_body": more})

    async def fail(self, error: SwarmError) -> None:
        """Raise an error before the first event, or end the stream with it."""
        if self._opening is not None:
            raise error
        await self.write(dialect.error_event(error.to_wire()), more=False)
