"""HTTP/1.1 over uvicorn's httptools protocol, with limits on what strangers can hold.

httptools itself sets none: one connection could fill the memory with headers before any key is looked at, and
connections that say nothing take every descriptor of the process. What is no HTTP, or too much of it, is answered with
the error object and the connection is closed. One that says nothing, or half of a request, is closed after
`PATIENCE_S`; where there are too many, the one that waits longest makes room, so that who speaks at once is let in.
"""

import asyncio
import ipaddress
import logging
import resource
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

from pydantic_core import to_json
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from swarm.errors import EngineUnavailable, InvalidRequest, SwarmError, Throttled

log = logging.getLogger(__name__)
logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its line for each piece of nonsense would fill the disk
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
PATIENCE_S, TICK_S = 30.0, 5.0
"""How long half of a request is waited for. It is counted in ticks, because one that comes after a stall of the server
has been read by the next one."""
LEAST_RATE = 16 * 1024
"""Bytes a second that buy a body more time."""
MOST_WAITING = 4096
"""Most connections that wait for a request: with `MAX_HEAD_BYTES` it bounds their memory."""
MOST_FILES = 1 << 16
FAILURES = 100
"""A server with a new secret meets the old keys of all its clients at once; their 401 must reach them."""
REFILL_S = 2.0
MOST_PEERS = 4096
_TOLD_S = 60.0


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each episode in flight has a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def most_connections() -> int:
    """Return for how many connections there are descriptors; a quarter is kept for the store and checkpoints."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft * 3 // 4


CYCLE, GONE = "ajet.cycle", "ajet.gone"
"""Where a request's scope has uvicorn's side of it, and what is called when its client goes away."""


class LimitedHttp(HttpToolsProtocol):
    """One connection."""

    _waiting: "dict[LimitedHttp, None]"
    """The connections of this server that have no request under way, those that wait longest first."""
    _dropped: ClassVar[Counter[str]] = Counter()
    _told_at: ClassVar[float] = float("-inf")

    _head: int = 0
    _in_head: bool = True
    _begun: bool = False
    _waited_s: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; where there are too many, the one that waits longest goes, and failing that this one. Of
        many that wait it is one without a whole head yet: an SDK that pauses between two calls keeps its connection."""
        super().connection_made(transport)
        self._waiting = vars(self.server_state).setdefault("waiting", {})
        full = len(self.connections) > most_connections()
        if self._waiting and full:
            next(iter(self._waiting))._drop("crowded")
        elif len(self._waiting) >= MOST_WAITING and (
            silent := next((one for one in self._waiting if one.cycle is None), None)
        ):
            silent._drop("crowded")
        elif full:
            self._count("refused")
            self._refuse(EngineUnavailable("too many connections are open; try again"), HTTPStatus.SERVICE_UNAVAILABLE)
        self._waiting[self] = None
        self._ticking = self.loop.call_later(TICK_S, self._tick)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        self._ticking.cancel()
        super().connection_lost(exc)
        scope: Any = {} if self.cycle is None else self.cycle.scope
        if gone := scope.pop(GONE, None):
            gone()

    def data_received(self, data: bytes) -> None:
        self._begun = False
        super().data_received(data)
        self._head = len(data) if self._begun else self._head + len(data)
        if self._in_head and self._head > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("head")

    def on_message_begin(self) -> None:
        self._in_head = self._begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer; raising here is how httptools is told to stop."""
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            raise ValueError("the head of the request is too large")
        self._waiting.pop(self, None)
        self._waited_s = 0.0
        super().on_headers_complete()
        scope: Any = self.scope
        scope[CYCLE] = weakref.proxy(self.cycle)  # which has the scope: garbage is looked for too rarely

    def on_body(self, body: bytes) -> None:
        self._waited_s = max(0.0, self._waited_s - len(body) / LEAST_RATE)
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._waited_s = 0.0
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._waiting[self] = None

    def send_400_response(self, msg: str) -> None:
        self._count("no_http")
        expected = f"expected an HTTP/1.1 request with at most {MAX_HEADERS} headers of {MAX_HEAD_BYTES} bytes together"
        self._refuse(InvalidRequest(expected), HTTPStatus.BAD_REQUEST)

    def _refuse(self, error: SwarmError, status: HTTPStatus) -> None:
        body = to_json(error.to_wire())
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _tick(self) -> None:
        if self.cycle is None or self.transport.is_closing():
            its_turn = True
        elif self.cycle.response_complete:
            its_turn = self.timeout_keep_alive_task is None
        else:
            its_turn = self.cycle.more_body and not self.flow.read_paused
        self._waited_s += TICK_S if its_turn else 0.0
        if self._waited_s > PATIENCE_S:
            self._drop("silent")
        else:
            self._ticking = self.loop.call_later(TICK_S, self._tick)

    def _drop(self, why: str) -> None:
        self._waiting.pop(self, None)
        self._count(why)
        self.transport.abort()

    def _count(self, why: str) -> None:
        self._dropped[why] += 1
        if self.loop.time() > LimitedHttp._told_at + _TOLD_S:
            LimitedHttp._told_at = self.loop.time()
            log.warning("event=connections_dropped open=%d since_start=%r", len(self.connections), dict(self._dropped))


class FailureLimiter:
    """A bucket of allowed failures per peer. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def wait_s(self, peer: str) -> float:
        return max(0.0, (1.0 - self._count_allowed(peer)) * REFILL_S) if peer in self._left else 0.0

    def find_refusal(self, peer: str) -> Throttled | None:
        wait_s = self.wait_s(peer)
        said = f"too many wrong keys came from {peer}; wait {wait_s:.1f} s"
        return Throttled(said, retry_after=wait_s) if wait_s > 0 else None

    def note(self, peer: str) -> None:
        self._left[peer] = (max(0.0, self._count_allowed(peer) - 1.0), self._clock())
        self._left.move_to_end(peer)
        if len(self._left) > MOST_PEERS:
            self._left.popitem(last=False)

    def _count_allowed(self, peer: str) -> float:
        left, at = self._left.get(peer, (float(FAILURES), 0.0))
        return min(float(FAILURES), left + (self._clock() - at) / REFILL_S)


def peer_of(scope: Scope) -> str:
    """Return who asks: an address, or the network of 64 bits around one of IPv6."""
    host = (scope.get("client") or ("unknown", 0))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if isinstance(address, ipaddress.IPv4Address):
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((address, 64), strict=False))
