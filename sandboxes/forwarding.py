"""Requests of a container on their way to the swarm server: judged, given the run's token, and streamed both ways."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

PLACEHOLDER = "sandbox"
"""The key that stands for the run's token inside of a container."""
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_JUDGED_BYTES = 1024 * 1024
"""Most bytes of a body that is read whole, to be judged."""
CONNECT_TIMEOUT_S = 10.0
PIECE_BYTES = 1 << 16

_PLAIN = re.compile(r"/(?:[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]*(?:/[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]*)*)?")
"""Paths that every reader reads alike: nothing encoded, no empty or dotted parts."""
_NOT_PASSED_ON = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "content-length", "forwarded", "via", "x-real-ip",
    }
)  # fmt: skip
_JUDGED = frozenset({("POST", "/episodes")})


@dataclass(frozen=True, slots=True)
class Request:
    """What a container asks of the server, as far as it is judged."""

    method: str
    path: str
    query: str = ""
    body: Any = None
    """The parsed body of `POST /episodes`; None for all else."""


Admits = Callable[[Request], str | None]
"""Returns why a request is refused, in a few words, or None when it may pass."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The swarm server behind the gateway."""

    url: str
    token: str = field(repr=False)
    """Takes the placeholder's place."""
    admits: Admits


class Refused(Exception):
    """A request is not passed on; `reason` is what it is counted by."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


_CODES = {413: "body_too_large", 403: "forbidden", 502: "engine_unavailable", 503: "engine_unavailable"}


def answer(refusal: Refused) -> web.Response:
    """Return a refusal as OpenAI's error object."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    code = _CODES.get(refusal.status, "invalid_request")
    error = {"message": str(refusal), "type": kind, "code": code, "param": None}
    headers = {"Retry-After": "1"} if refusal.status >= 500 else {}
    return web.json_response({"error": error}, status=refusal.status, headers=headers)


class Forwarder:
    """Passes requests on to one upstream."""

    def __init__(self, upstream: Upstream, session: aiohttp.ClientSession, counts: Counter[str]) -> None:
        self._upstream = upstream
        self._session = session
        self._counts = counts
        self._base = upstream.url.rstrip("/")

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        try:
            return await self._forward(request)
        except Refused as refusal:
            self._counts[refusal.reason] += 1
            return answer(refusal)

    async def _forward(self, request: web.BaseRequest) -> web.StreamResponse:
        data = await self._judged(request)
        url = URL(self._base + request.raw_path, encoded=True)
        headers = self._headers(request)
        if not isinstance(data, bytes | None) and request.content_length is not None:
            headers["Content-Length"] = str(request.content_length)
        try:
            reply = await self._session.request(
                request.method, url, headers=headers, data=data, allow_redirects=False, skip_auto_headers=_AUTOMATIC
            )
        except aiohttp.ClientConnectorError as error:
            raise Refused(503, "unreachable", "the swarm server cannot be reached now; try again") from error
        except aiohttp.ClientError as error:
            raise Refused(502, "lost", "the swarm server went away before it answered; try again") from error
        async with reply:
            self._counts["forwarded"] += 1
            return await _passed_back(request, reply)

    async def _judged(self, request: web.BaseRequest) -> bytes | AsyncIterator[bytes] | None:
        """Return the body to send. Raises Refused."""
        path, _, query = request.raw_path.partition("?")
        if not _PLAIN.fullmatch(path):
            raise Refused(400, "path", "expected a plain path, as /v1/models: nothing encoded, no empty parts")
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large(MAX_BODY_BYTES)
        body: Any = None
        data: bytes | AsyncIterator[bytes] | None = None
        if (request.method, path) in _JUDGED:
            body = await _parsed(request)
            data = json.dumps(body).encode()
        elif request.body_exists:
            data = _pieces(request)
        asked = Request(request.method, path, query, body)
        if (reason := self._upstream.admits(asked)) is not None:
            self._counts[f"refused: {reason}"] += 1
            raise Refused(403, "refused", f"this sandbox may not do that: {reason}")
        return data

    def _headers(self, request: web.BaseRequest) -> CIMultiDict[str]:
        named = {name.strip().lower() for name in request.headers.get("Connection", "").split(",")}
        headers: CIMultiDict[str] = CIMultiDict()
        for name, value in request.headers.items():
            lower = name.lower()
            if lower in _NOT_PASSED_ON or lower in named or lower.startswith("x-forwarded-"):
                continue
            headers.add(name, self._key(lower, value))
        return headers

    def _key(self, name: str, value: str) -> str:
        if name == "authorization" and value == f"Bearer {PLACEHOLDER}":
            return f"Bearer {self._upstream.token}"
        return self._upstream.token if name == "x-api-key" and value == PLACEHOLDER else value


_AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


def _too_large(most: int) -> Refused:
    return Refused(413, "too_large", f"expected a body of at most {most} bytes, found more")


async def _parsed(request: web.BaseRequest) -> Any:
    data = bytearray()
    async for piece in request.content.iter_any():
        data += piece
        if len(data) > MAX_JUDGED_BYTES:
            raise _too_large(MAX_JUDGED_BYTES)
    try:
        return json.loads(bytes(data) or b"{}", object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "body", f"expected JSON with each key once ({error})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


async def _pieces(request: web.BaseRequest) -> AsyncIterator[bytes]:
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise _too_large(MAX_BODY_BYTES)
        yield piece


async def _passed_back(request: web.BaseRequest, reply: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, reason=reply.reason)
    for name, value in reply.headers.items():
        if name.lower() not in _NOT_PASSED_ON or name.lower() == "content-length":
            response.headers.add(name, value)
    await response.prepare(request)
    try:
        async for piece in reply.content.iter_any():
            await response.write(piece)
    except aiohttp.ClientError:  # half an answer must not look whole
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError from None
    await response.write_eof()
    return response
