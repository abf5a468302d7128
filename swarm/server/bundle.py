"""Bundles: requests of several episodes in one, each judged, done and answered as if it had come alone.

For a tiny model a request costs more than what it asks for. Clients send together what they ask for in the same turn of
their event loop: begins by the bundle's own role token, ends and calls by the key of each. Answers are lines of JSON,
in the order in which they are there. A client that goes away cancels all that is not answered, as it does alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final, cast

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from swarm import wire
from swarm.errors import InvalidKey, NotFound, SwarmError, to_invalid_request
from swarm.rollout.keys import Claims, Role, Use
from swarm.server.connections import peer_of
from swarm.server.http import authorize, cancel_on_disconnect, error_response, on_any_error
from swarm.server.service import SwarmServer

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
                with cancel_on_disconnect(scope):
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
                told = await self._refuse(to_invalid_request(error) if isinstance(error, ValidationError) else error)
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

    async def _refuse(self, error: Exception) -> Response:
        return error_response(error) if isinstance(error, SwarmError) else await on_any_error(self._request, error)

    async def _answer(self, asked: wire.BundledRequest) -> bytes:
        server, request = self._server, self._request
        if asked.path == CHAT_PATH:
            return bytes(await request.app.state.chat.reply(self._claims(asked, "model"), asked))
        if asked.path == "/episodes" and asked.key is None:
            authorize(request.scope, roles=PLAYING)
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
