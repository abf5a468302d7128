"""Requests of a container to the swarm server: checked, given the run's token, and passed on."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from sandboxes.gateway.http_heads import Head, Header, RequestRejected, request_head, strip_claims, strip_hop_headers
from sandboxes.gateway.proxy import MOST_BODY_BYTES, AgentConnection, BackgroundTasks, ServerConnection
from sandboxes.spec import SandboxError

PLACEHOLDER = "sandbox"
"""The key that stands for the run's token inside of a container."""
MOST_JUDGED_BYTES = 64 * 1024
"""Most bytes of a body that is held, to be judged whole; each connection may have one."""
MOST_LISTED_BYTES = 8 * 1024 * 1024
"""The same of a task list."""
MOST_BYTES_AT_ONCE = 128 * 1024 * 1024
"""Most bytes of the bodies of all requests that are not answered yet; one of no stated length counts as the largest."""
CONNECT_TIMEOUT_S = 10.0
MOST_IDLE_S = 30.0
"""A connection that waited longer is not used again: the server may be about to close it."""

_PART = r"[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]*"
_TARGET = re.compile(rf"(/(?:{_PART}(?:/{_PART})*)?)(?:\?([!-\"$-~]*))?")
"""Paths that every reader reads alike: nothing encoded, no empty or dotted parts."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_JUDGED_WHOLE = (
    (re.compile(rb"/episodes(?:/[^/]+/end)?"), MOST_JUDGED_BYTES),
    (re.compile(rb"/streams/tasks"), MOST_LISTED_BYTES),
)
"""What is posted there says what is learned, so that its body is judged."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a container asks of the server, as far as it is checked."""

    method: str
    path: str
    query: str = ""
    body: Any = None
    """The parsed body of `POST /episodes`, of an end and of `POST /streams/tasks`; None of all else."""


Admits = Callable[[Request], str | None]
"""Returns why a request is refused, in a few words that stay the same, or None when it may pass."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The swarm server behind a gateway. `token` takes the placeholder's place."""

    url: str
    token: str = field(repr=False)
    admits: Admits


class Forwarder:
    """The service that passes requests on to one upstream, over connections that are used again."""

    def __init__(self, upstream: Upstream, count: Callable[[str], None]) -> None:
        self.count = count
        self._admits = upstream.admits
        self._host, self._port, self._prefix, self._tls = _address(upstream.url)
        bearer, token = f"Bearer {PLACEHOLDER}".encode(), upstream.token.encode()
        self._keys = {(b"authorization", bearer): b"Bearer " + token, (b"x-api-key", PLACEHOLDER.encode()): token}
        self._idle: list[ServerConnection] = []
        self._bytes: dict[AgentConnection, int] = {}
        self._tasks = BackgroundTasks()
        self._connecting: dict[AgentConnection, asyncio.Task[None]] = {}

    def buffer_limit(self, agent: AgentConnection, head: Head) -> int:
        """Collect the bodies that are checked, as far as there is room for them."""
        path = head.target.partition(b"?")[0]
        found = (most for pattern, most in _JUDGED_WHOLE if head.method == b"POST" and pattern.fullmatch(path))
        most = next(found, 0)
        self._reserve_bytes(agent, most if head.length is None else min(most, head.length))
        return most

    def begin(self, agent: AgentConnection, head: Head, body: bytes | None) -> None:
        """Check a request and send it on; a body that was checked is written again from its value."""
        judged, data = (None, b"") if body is None else _parse_body(body)
        if (reason := self._find_refusal(_parse_request(head, judged))) is not None:
            raise RequestRejected(403, f"refused: {reason}", f"this sandbox may not do that: {reason}")
        length = head.length if body is None else len(data)
        self._reserve_bytes(agent, MOST_BODY_BYTES if length is None else length)
        target = self._prefix + head.target
        agent.send(request_head(head.method, target, self._headers(head), length) + data)
        self._serve(agent)

    def finish(self, agent: AgentConnection) -> None:
        self._bytes.pop(agent, None)
        if (task := self._connecting.pop(agent, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        await self._tasks.close()
        for server in list(self._idle):
            server.abort()

    def _reserve_bytes(self, agent: AgentConnection, size: int) -> None:
        """Count the bytes of an agent's present request; raise RequestRejected where all requests have too many."""
        self._bytes[agent] = size
        if sum(self._bytes.values()) > MOST_BYTES_AT_ONCE:
            most = f"expected at most {MOST_BYTES_AT_ONCE} bytes of requests that are not answered yet"
            raise RequestRejected(503, "too_much_at_once", f"{most}; wait for some of the answers, then try again")

    def _find_refusal(self, request: Request) -> str | None:
        try:
            return self._admits(request)
        except Exception as error:  # noqa: BLE001 - whatever it was, what is not judged does not pass
            return f"the judge failed ({type(error).__name__})"

    def _headers(self, head: Head) -> list[Header]:
        kept = strip_claims(strip_hop_headers(head.headers))
        return [(name, self._keys.get((name, value), value)) for name, value in kept]

    def _serve(self, agent: AgentConnection) -> None:
        if (server := self._take_idle()) is not None:
            agent.attach(server)
            return
        agent.halt(True)
        self._connecting[agent] = self._tasks.start(self._connect(agent))

    def _take_idle(self) -> ServerConnection | None:
        fresh_since = asyncio.get_running_loop().time() - MOST_IDLE_S
        while self._idle:
            server = self._idle.pop()
            if server.idle_since >= fresh_since and not server.transport.is_closing():
                return server
            server.abort()
        return None

    async def _connect(self, agent: AgentConnection) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                made = partial(ServerConnection, self._idle)
                _, server = await loop.create_connection(made, self._host, self._port, ssl=self._tls)
        except OSError:  # TimeoutError is one, and so is a certificate that proves nothing
            self._connecting.pop(agent, None)
            agent.halt(False)
            agent.refuse(RequestRejected(503, "unreachable", "the swarm server cannot be reached now; try again"))
        else:
            self._connecting.pop(agent, None)
            agent.attach(server)


class NoUpstream:
    """The service of a sandbox that is given no swarm server."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self.count = count

    def buffer_limit(self, agent: AgentConnection, head: Head) -> int:
        return 0

    def begin(self, agent: AgentConnection, head: Head, body: bytes | None) -> None:
        raise RequestRejected(403, "no_server", "no swarm server is given to this sandbox")

    def finish(self, agent: AgentConnection) -> None:
        """Do nothing: there is nothing to stop."""

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _address(url: str) -> tuple[str, int, bytes, ssl.SSLContext | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unusable_error(url) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _unusable_error(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/").encode(), tls


def _unusable_error(url: str) -> SandboxError:
    return SandboxError(f"expected the swarm server's address as http://HOST:PORT or https://HOST, found {url!r}")


def _parse_request(head: Head, body: Any) -> Request:
    method, target = head.method.decode(), head.target.decode("latin-1")
    if method not in _METHODS:
        raise RequestRejected(
            405, "method", f"expected one of {', '.join(sorted(_METHODS))}; found {method}", closing=True
        )
    if (plain := _TARGET.fullmatch(target)) is None:
        raise RequestRejected(
            400, "path", "expected a plain path as /v1/models: nothing encoded, no empty or dotted parts"
        )
    return Request(method, plain[1], plain[2] or "", body)


def _parse_body(body: bytes) -> tuple[Any, bytes]:
    """Return a body's value, and the body written again from it: no two readers can take it for different ones."""
    try:
        judged = json.loads(body or b"{}", object_pairs_hook=_require_unique)
        return judged, json.dumps(judged).encode()
    except (ValueError, RecursionError) as error:
        raise RequestRejected(400, "body", f"expected JSON, each key once ({error})") from None


def _require_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found
