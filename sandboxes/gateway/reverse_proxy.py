"""Requests of a container to the swarm server: checked, given the run's token, and passed on.

An aiohttp server on a Unix socket, and a client session. Nothing is copied through: what a strict parser read of a head
is written anew with one framing, and a body that says what is learned from the value that was judged. So no two readers
can take what we send for different messages. Other bodies, and replies, stream as they come, bounded in size and time;
an agent that goes away takes its request with it, and every refusal is counted by its reason.
"""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE, HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from yarl import URL

from sandboxes.spec import SandboxError

PLACEHOLDER = "sandbox"
"""The key that stands for the run's token inside of a container."""
QUEUE = 1024
MOST_HEADERS = 100
MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 16 * 1024 * 1024
MOST_JUDGED_BYTES = 64 * 1024
"""Most bytes of a body that is held, to be judged whole; each connection may have one."""
MOST_BUNDLE_BYTES = 1024 * 1024
"""The same of a bundle of requests."""
MOST_LISTED_BYTES = 8 * 1024 * 1024
"""The same of a task list."""
MOST_BYTES_AT_ONCE = 128 * 1024 * 1024
"""Most bytes of the bodies of all requests that are not answered yet; one of no stated length counts as the largest."""
COLLECTED_BYTES = 64 * 1024
"""A body of at most so many bytes passes in one piece, for the sake of speed."""
CONNECT_TIMEOUT_S = 10.0
MOST_IDLE_S = 30.0
"""A connection that waited longer is not used again: the server may be about to close it."""
SEND_TIMEOUT_S = 20.0
"""To send a head, and between two pieces of a body."""
IDLE_TIMEOUT_S = 300.0
"""Between two requests; longer than clients keep idle connections, so that none is closed under a request."""
LINGER_S = 2.0
"""What still comes after the last reply is read for so long, so that the reply is not lost with the connection."""

_PART = r"[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]*"
_TARGET = re.compile(rf"(/(?:{_PART}(?:/{_PART})*)?)(?:\?([!-\"$-~]*))?")
"""Paths that every reader reads alike: nothing encoded, no empty or dotted parts."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LENGTH = re.compile(r"[0-9]{1,18}")
_JUDGED_WHOLE = (
    (re.compile(r"/episodes(?:/[^/]+/end)?"), MOST_JUDGED_BYTES),
    (re.compile(r"/bundle"), MOST_BUNDLE_BYTES),
    (re.compile(r"/streams/tasks"), MOST_LISTED_BYTES),
)
"""What is posted there says what is learned, so that its body is judged."""
_NOT_PASSED = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "upgrade",
    "forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "x-original-url",
})  # fmt: skip
"""What is of one hop, and what only a proxy may say of a request; said by an agent, it is a lie."""
_NOT_FORWARDED = _NOT_PASSED | {"transfer-encoding", "content-length", "expect", "trailer"}
FULL = "too many connections are open; close some, or try again"
_CODES = {403: "forbidden", 413: "body_too_large", 502: "engine_unavailable", 503: "engine_unavailable"}


class RequestRejected(Exception):
    """A request is not passed on. `reason` is the word it is counted by; `closing`, whether its connection ends."""

    def __init__(self, status: int, reason: str, message: str, *, closing: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.closing = closing

    def response(self) -> web.Response:
        """Return OpenAI's error object, with Retry-After where trying again may help."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "code": _CODES.get(self.status, "invalid_request"), "param": None}
        headers = {"Connection": "close"} if self.closing else {}
        headers |= {"Retry-After": "1"} if self.status >= 500 else {}
        response = web.json_response({"error": error}, status=self.status, reason="Refused", headers=headers)
        if self.closing:
            response.force_close()
        return response

    def raw(self) -> bytes:
        """Return the same reply in bytes, for a connection that ends with it."""
        response = self.response()
        assert isinstance(response.body, bytes)
        headers = {**response.headers, "Content-Length": len(response.body), "Connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} Refused\r\n{lines}\r\n".encode() + response.body


def strip_headers(headers: Iterable[tuple[str, str]], *, framing: bool) -> list[tuple[str, str]]:
    """Return the headers that go further than one hop; with those that tell where the body ends, or without."""
    kept = [(name, value, name.lower()) for name, value in headers]
    dropped = _NOT_PASSED if framing else _NOT_FORWARDED
    for _, value, lower in kept:
        if lower == "connection":
            dropped = dropped | {word.strip().lower() for word in value.split(",")}
    return [(name, value) for name, value, of in kept if of not in dropped and not of.startswith("x-forwarded")]


@dataclass(frozen=True, slots=True)
class Request:
    """What a container asks of the server, as far as it is checked."""

    method: str
    path: str
    query: str = ""
    body: Any = None
    """The parsed body of what is judged whole; None of all else."""


Admits = Callable[[Request], str | None]
"""Returns why a request is refused, in a few words that stay the same, or None when it may pass."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The swarm server behind a gateway. `token` takes the placeholder's place."""

    url: str
    token: str = field(repr=False)
    admits: Admits


class ContainerRequest(web.BaseRequest):
    """A request whose reply does not tell what serves it here."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        if response.headers.get("Server") == SERVER_SOFTWARE:
            del response.headers["Server"]


class AgentConnection(web.RequestHandler):
    """aiohttp's connection with an agent, and bounds to what an agent can hold by it.

    They rest on private names of aiohttp 3.14, and so does `ServerConnections`: pyproject.toml takes no other.
    """

    def __init__(self, server: web.Server, most: int, count: Callable[[str], None]) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_TIMEOUT_S,
            lingering_time=LINGER_S,
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            max_line_size=MOST_HEAD_BYTES,
            max_field_size=MOST_HEAD_BYTES,
            max_headers=MOST_HEADERS,
        )
        self._server, self._most, self._count = server, most, count
        self._answered = 0
        self._head_bytes = self._body_bytes = self._trailer_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._deaf = False  # what comes is not looked at any more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.connections) < self._most:
            super().connection_made(transport)
            self._deadline = self._loop.call_later(SEND_TIMEOUT_S, self._expire)
            return
        assert isinstance(transport, asyncio.Transport)
        self._deaf = True
        self._count("connections")
        transport.write(RequestRejected(503, "connections", FULL).raw())
        transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        in_head = self._request_count == 0 or (self._waiter is not None and not self._waiter.done())
        busy = self._request_count > self._answered
        over = busy and self._current_request is not None and self._current_request.content.is_eof()
        super().data_received(data)
        if not data:  # aiohttp goes on with what it has
            return
        if over and data.strip(b"\r\n"):  # a part of a head, too: the parser would keep all that follows
            self._refuse(RequestRejected(400, "pipelined", "expected one request at a time"))
            return
        broken = bool(self._messages) and not isinstance(self._messages[-1][0], RawRequestMessage)
        if len(self._messages) > 1 or (self._messages and busy):
            if not broken:
                self._refuse(RequestRejected(400, "pipelined", "expected one request at a time"))
            else:
                self._refuse(RequestRejected(400, "malformed", "expected an HTTP/1.1 request; found a broken body"))
        elif self._messages or not in_head:
            self._head_bytes = 0
            self._deaf = broken  # aiohttp answers it, and closes
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            self._bound_trailers(len(data))
        else:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(large_head())
            elif self._deadline is None:
                self._deadline = self._loop.call_later(SEND_TIMEOUT_S, self._expire)

    def _bound_trailers(self, size: int) -> None:
        """Bound what comes while a body does not grow and is not held up: the parser keeps it all."""
        request = self._current_request
        if request is None or request.content.is_eof() or self._reading_paused:
            return
        grown, self._body_bytes = request.content.total_bytes != self._body_bytes, request.content.total_bytes
        self._trailer_bytes = 0 if grown else self._trailer_bytes + size
        if self._trailer_bytes > MOST_HEAD_BYTES:
            self._refuse(large_head())

    def _expire(self) -> None:
        if self._head_bytes and not self._deaf:
            self._refuse(RequestRejected(408, "slow", "the request took too long to arrive"))
        elif self.transport is not None:
            self.transport.abort()

    def _refuse(self, refused: RequestRejected) -> None:
        """Answer in place of whatever is in progress, and end the connection; a reply that has begun is cut off."""
        self._deaf = True
        self._count(refused.reason)
        transport, request = self.transport, self._current_request
        if transport is None:
            return
        if request is not None and request.writer.output_size > 0:
            transport.abort()
            return
        transport.write(refused.raw())
        if self._messages or request is not None:
            if self._task_handler is not None:
                self._task_handler.cancel()
            self.force_close()
        else:
            transport.write_eof()
            self._deadline = self._loop.call_later(LINGER_S, transport.abort)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        self._answered += 1
        return finished

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a head that the parser refused; what else may fail is a fault of ours, which aiohttp logs."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        status, reason = (431, "head_too_large") if isinstance(exc, LineTooLong) else (400, "malformed")
        self._count(reason)
        return RequestRejected(status, reason, f"expected an HTTP/1.1 request ({message})", closing=True).response()


class ServerConnections(aiohttp.TCPConnector):
    """Connections to the server. One on which it spoke unasked, while nobody waited for a reply, is not used again."""

    async def _get(self, key: Any, traces: Any) -> Any:
        while (found := await super()._get(key, traces)) is not None:
            if found.protocol is not None and not found.protocol.should_close:
                return found
            found.close()
        return None


class ReverseProxy:
    """Passes requests on to one upstream; without one, each is refused."""

    def __init__(self, upstream: Upstream | None, count: Callable[[str], None]) -> None:
        self._count = count
        self._upstream = upstream or Upstream("http://127.0.0.1:1", "", lambda _: "no server")
        self._given = upstream is not None
        self._bytes = 0
        try:
            url = URL(self._upstream.url)
        except ValueError:
            url = URL()
        if url.scheme not in ("http", "https") or not url.host:
            expected = "expected the swarm server's address as http://HOST:PORT or https://HOST"
            raise SandboxError(f"{expected}, found {self._upstream.url!r}")
        self._url = str(url.origin()) + url.raw_path.rstrip("/")

    @asynccontextmanager
    async def serve(self, sock: socket.socket, most: int) -> AsyncIterator[None]:
        """Take at most so many connections of agents at once from a listening Unix socket."""
        tls = ssl.create_default_context() if self._url.startswith("https") else True
        async with aiohttp.ClientSession(
            connector=ServerConnections(limit=0, keepalive_timeout=MOST_IDLE_S, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        ) as self._session:
            self._session._retry_connection = False
            loop = asyncio.get_running_loop()
            server = web.Server(
                self.handle,
                handler_cancellation=True,
                request_factory=lambda head, body, protocol, writer, task: ContainerRequest(
                    head, body, protocol, writer, task, loop
                ),
            )
            listener = await loop.create_unix_server(
                lambda: AgentConnection(server, most, self._count), sock=sock, backlog=QUEUE
            )
            try:
                yield
            finally:
                listener.close()
                for connection in server.connections:
                    if connection.transport is not None:
                        connection.transport.abort()
                await server.shutdown(1.0)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._check(request)
        except RequestRejected as refused:
            self._count(refused.reason)
            refused.closing = refused.closing or (_awaits_sign(request) and not request.content.is_eof())
            return refused.response()

    async def _check(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._given:
            raise RequestRejected(403, "no_server", "no swarm server is given to this sandbox")
        length, asked = _parse_head(request)
        judged = next(
            (most for path, most in _JUDGED_WHOLE if asked.method == "POST" and path.fullmatch(asked.path)), 0
        )
        most = judged or MOST_BODY_BYTES
        if length is not None and length > most:
            raise _large_body(most)
        with self._reserve(most if length is None else length):
            if not judged:
                self._judge(asked)
            if _awaits_sign(request):
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0
            body = _read_body(request.content, most)
            if not judged and (length is None or length > COLLECTED_BYTES):
                return await self._send(request, body, length)
            if length is not None and request.content.is_eof():  # it came with its head
                whole = request.content.read_nowait()
            else:
                whole = b"".join([piece async for piece in body])
            if judged:
                try:
                    value = json.loads(whole or b"{}", object_pairs_hook=_require_unique)
                    whole = json.dumps(value).encode()  # written again: no two readers take it for different ones
                except (ValueError, RecursionError) as error:
                    raise RequestRejected(400, "body", f"expected JSON, each key once ({error})") from None
                self._judge(replace(asked, body=value))
                del value  # it takes up to twenty times the room of its bytes, and an answer may take long
            return await self._send(request, whole, len(whole))

    @contextmanager
    def _reserve(self, size: int) -> Iterator[None]:
        if self._bytes + size > MOST_BYTES_AT_ONCE:
            most = f"expected at most {MOST_BYTES_AT_ONCE} bytes of requests that are not answered yet"
            raise RequestRejected(503, "too_much_at_once", f"{most}; wait for some of the answers, then try again")
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size

    def _judge(self, asked: Request) -> None:
        try:
            reason = self._upstream.admits(asked)
        except Exception as error:  # noqa: BLE001 - whatever it was, what is not judged does not pass
            reason = f"the judge failed ({type(error).__name__})"
        if reason is not None:
            raise RequestRejected(403, f"refused: {reason}", f"this sandbox may not do that: {reason}")

    async def _send(
        self, request: web.BaseRequest, body: bytes | AsyncIterator[bytes], length: int | None
    ) -> web.StreamResponse:
        keys = {
            ("authorization", f"Bearer {PLACEHOLDER}"): f"Bearer {self._upstream.token}",
            ("x-api-key", PLACEHOLDER): self._upstream.token,
        }
        kept = strip_headers(request.headers.items(), framing=False)
        headers = [(name, keys.get((name.lower(), value), value)) for name, value in kept]
        if length is not None and (length or request.method in ("POST", "PUT", "PATCH")):
            headers.append(("Content-Length", str(length)))
        url = URL(self._url + request.raw_path, encoded=True)
        begun: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=body or None, allow_redirects=False
            ) as reply:
                if reply.status < 200:
                    reply.close()
                    raise aiohttp.ClientPayloadError("no final reply")
                if reply.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
                    raise aiohttp.ClientPayloadError("in a coding that is not read")
                head = strip_headers(reply.headers.items(), framing=False)
                size = reply.content_length
                if size is not None and size <= COLLECTED_BYTES and request.method != "HEAD":
                    data = await reply.read()
                    self._count("forwarded")
                    return web.Response(status=reply.status, reason=reply.reason, headers=head, body=data)
                response = web.StreamResponse(status=reply.status, reason=reply.reason, headers=head)
                response.content_length = size
                await response.prepare(request)
                begun = response
                self._count("forwarded")
                async for piece in reply.content.iter_any():
                    await response.write(piece)
                return response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise RequestRejected(503, "unreachable", "the swarm server cannot be reached now; try again") from None
        except (aiohttp.ClientError, OSError) as error:
            if begun is None and isinstance(error.__cause__, RequestRejected):
                raise error.__cause__ from None
            if begun is None:
                raise RequestRejected(502, "lost", "the server went away before it answered; try again") from None
            if request.transport is not None:
                request.transport.abort()
            return begun


def _parse_head(request: web.BaseRequest) -> tuple[int | None, Request]:
    """Return a body's length (None for chunks) and what is asked; RequestRejected for what might be read two ways."""
    headers, method = request.headers, request.method
    if sum(len(name) + len(value) + 4 for name, value in request.raw_headers) > MOST_HEAD_BYTES:
        raise large_head()
    if request.version not in (HttpVersion10, HttpVersion11) or "Host" not in headers:
        raise _malformed("HTTP/1.1, and a host")
    if headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
        raise _malformed("no transfer-encoding but chunked")
    length = headers.get("Content-Length", "0")
    if not _LENGTH.fullmatch(length):
        raise _malformed("a content-length of at most 18 digits")
    if not "".join(headers.values()).isascii():
        raise _malformed("headers in ASCII")
    if method not in _METHODS:
        message = f"expected one of {', '.join(sorted(_METHODS))}; found {method}"
        raise RequestRejected(405, "method", message, closing=True)
    if "Upgrade" in headers:
        raise RequestRejected(400, "upgrade", "another protocol is not spoken here", closing=True)
    if (plain := _TARGET.fullmatch(request.raw_path)) is None:
        message = "expected a plain path as /v1/models: nothing encoded, no empty or dotted parts"
        raise RequestRejected(400, "path", message)
    return None if "Transfer-Encoding" in headers else int(length), Request(method, plain[1], plain[2] or "")


async def _read_body(content: aiohttp.StreamReader, most: int) -> AsyncIterator[bytes]:
    size = 0
    while True:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                piece = await content.readany()
        except TimeoutError:
            raise RequestRejected(408, "slow", "the request took too long to arrive", closing=True) from None
        size += len(piece)
        if size > most:
            raise _large_body(most)
        if not piece:
            return
        yield piece


def _require_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _awaits_sign(request: web.BaseRequest) -> bool:
    return request.version == HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue"


def _malformed(expected: str) -> RequestRejected:
    return RequestRejected(400, "malformed", f"expected {expected}", closing=True)


def large_head() -> RequestRejected:
    return RequestRejected(431, "head_too_large", f"expected a head of {MOST_HEAD_BYTES} bytes", closing=True)


def _large_body(most: int) -> RequestRejected:
    return RequestRejected(413, "body_too_large", f"expected a body of at most {most} bytes, found more", closing=True)
