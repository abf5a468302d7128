"""The reverse proxy of agents to one server.

A proxy's connection with an agent: its requests, one at a time, and the replies.

An asyncio protocol around llhttp's parser, without a task of its own, so that a call costs one read and one write on
each side. It promises that

- a second request before the first is answered ends the connection;
- a head or a body that is too large, and a sender that is too slow, are refused;
- an agent that goes away takes its server with it, and a reply that was cut short never looks whole;
- every refusal is counted by its reason.

What a request may do, and where it goes, is for the `Service` to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import chain
from typing import Any, Protocol, cast

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from sandboxes.gateway.http_heads import (
    CONTINUE,
    LAST_CHUNK,
    MOST_HEAD_BYTES,
    Framing,
    Head,
    Header,
    ProgressBound,
    RequestRejected,
    chunk,
    refusal,
    reply_head,
    strip_hop_headers,
)

SWEEP_S = 1.0


class TimedConnection(Protocol):
    """A connection with a deadline, in the loop's time."""

    deadline: float

    def expire(self) -> None: ...

    def abort(self) -> None: ...


class Connections:
    """The open connections. Deadlines are looked at every SWEEP_S, so that a request costs no timer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[TimedConnection] = set()
        self._empty = asyncio.Event()
        self._closing = False
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        return len(self._open) >= self._most

    def add(self, connection: TimedConnection) -> None:
        self._open.add(connection)
        if self._closing:
            connection.abort()
        self._empty.clear()
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def discard(self, connection: TimedConnection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    async def close(self) -> None:
        self._closing = True
        for connection in list(self._open):
            connection.abort()
        if self._open:
            await self._empty.wait()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweeping = loop.call_later(SWEEP_S, self._sweep) if self._open else None
        for connection in [connection for connection in self._open if connection.deadline <= now]:
            connection.expire()


class BackgroundTasks:
    """The tasks of one proxy beside its connections, such as connecting to a server."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Flow(asyncio.Protocol):
    """A connection whose `other` is not read while this one does not take what it is written: memory is bounded."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.other: Flow | None = None
        self.halted = False
        """Whether it is not being read."""
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._full = True
        if self.other is not None:
            self.other.halt(True)

    def resume_writing(self) -> None:
        self._full = False
        if self.other is not None:
            self.other.halt(False)

    def halt(self, halted: bool) -> None:
        if halted is self.halted or self.transport.is_closing():
            return
        self.halted = halted
        if halted:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pair(self, other: Flow) -> None:
        self.other, other.other = other, self
        self.halt(other._full)
        other.halt(self._full)

    def unpair(self) -> Flow | None:
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            other.halt(False)
            self.halt(False)
        return other

    def on_peer_lost(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.transport.abort()


MOST_HEADERS = 100
MOST_BODY_BYTES = 16 * 1024 * 1024
SEND_TIMEOUT_S = 20.0
"""To send a head, and between two pieces of a body."""
IDLE_TIMEOUT_S = 300.0
"""Between two requests; longer than clients keep idle connections, so that none is closed under a request."""
LINGER_S = 2.0
"""What still comes after the last reply is read for so long, so that the reply is not lost with the connection."""


class Service(Protocol):
    """Decides what the requests of all agents of one proxy may do, and where each goes."""

    def count(self, what: str) -> None: ...

    def buffer_limit(self, agent: AgentConnection, head: Head) -> int:
        """Return up to how many bytes a body is collected before `begin`; 0 if it streams. Raises RequestRejected."""
        ...

    def begin(self, agent: AgentConnection, head: Head, body: bytes | None) -> None:
        """Send a request on: `agent.send` its head, then `agent.attach` a server, now or later; or RequestRejected."""
        ...

    def finish(self, agent: AgentConnection) -> None:
        """Learn that the present request has ended, however it did; called once for each that `buffer_limit` saw."""
        ...


class AgentConnection(Flow):
    """A connection of an agent."""

    def __init__(self, service: Service, connections: Connections) -> None:
        super().__init__()
        self._service = service
        self._connections = connections
        self._parser = HttpRequestParser(self)
        self.deadline = float("inf")
        self.head: Head | None = None
        """The request in progress, from its head until both it and its reply are whole."""
        self.sent_whole = False
        self.bytes_up = self.bytes_down = 0
        """What was passed on for the present request."""
        self._url = b""
        self._headers: list[Header] = []
        self._in_head = False
        self._bound = ProgressBound()
        self._body_bytes = 0
        self._most_body = MOST_BODY_BYTES
        self._body: bytearray | None = None  # not a list: a piece may be a byte, and there may be very many
        self._up = bytearray()
        self._down: list[bytes] = []
        self._framing: Framing | None = None  # of the reply, once that has begun
        self._rest = b""  # what came after a request for a tunnel
        self._begun = False
        self._answered = False
        self._last = False  # the connection ends with the present reply
        self._deaf = False  # what comes is not looked at any more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait(SEND_TIMEOUT_S)
        if self._connections.full:
            self._service.count("connections")
            refused = RequestRejected(503, "connections", "too many connections are open; close some, or try again")
            self.transport.write(refusal(refused, closing=True))
            self._deaf = True
            self.transport.close()
            return
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        other = self.unpair()
        if other is not None:
            other.abort()
        self._finish()

    def expire(self) -> None:
        if self._deaf:
            self.abort()
        elif self.halted:  # it is not the agent that is slow
            self._wait(SEND_TIMEOUT_S)
        elif self._in_head or (self.head is not None and not self._answered):
            self.refuse(RequestRejected(408, "slow", "the request took too long to arrive", closing=True))
        else:
            self.abort()

    def _wait(self, seconds: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + seconds

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._rest = data[upgrade.args[0] :]
        except HttpParserCallbackError:
            raise
        except HttpParserError as error:
            self.refuse(RequestRejected(400, "malformed", f"expected an HTTP/1.1 request ({error})", closing=True))
        if self._bound.count_bytes(len(data), in_head=self._in_head):
            self.refuse(_large_head())
        elif self.head is not None and not self.sent_whole and not self._deaf:
            self._wait(SEND_TIMEOUT_S)
        self.flush()

    def on_message_begin(self) -> None:
        if self._deaf:
            return
        if self.head is not None:
            self.refuse(RequestRejected(400, "pipelined", "expected one request at a time", closing=True))
            return
        self._in_head = True
        self._bound.mark_progress()
        self._url, self._headers = b"", []
        self._wait(SEND_TIMEOUT_S)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is dropped."""
        if self._deaf or not self._in_head:
            return
        self._headers.append((name.lower(), value))
        if len(self._headers) > MOST_HEADERS:
            self.refuse(_large_head())

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        parser = self._parser
        self._in_head = self.sent_whole = self._answered = False
        self._last = not parser.should_keep_alive()
        self._bound.mark_progress()
        self._body_bytes = self.bytes_up = self.bytes_down = 0
        try:
            self.head = Head.parse(parser.get_method(), self._url, self._headers, parser.get_http_version())
            self._judge(self.head)
        except RequestRejected as refused:
            self.refuse(refused)

    def _judge(self, head: Head) -> None:
        size = len(head.target) + sum(map(len, chain.from_iterable(head.headers)))
        if size > MOST_HEAD_BYTES:
            raise _large_head()
        if head.method != b"CONNECT" and self._parser.should_upgrade():
            raise RequestRejected(400, "upgrade", "another protocol is not spoken here", closing=True)
        self._begun = True
        whole = self._service.buffer_limit(self, head)
        self._most_body = whole or MOST_BODY_BYTES
        if (head.length or 0) > self._most_body:
            raise _large_body(self._most_body)
        self._body = bytearray() if whole else None
        if not whole:
            self._service.begin(self, head, None)
        if head.continues:
            self._write(CONTINUE)

    def on_body(self, data: bytes) -> None:
        self._bound.mark_progress()
        self._body_bytes += len(data)
        if self._deaf or self.head is None:
            return
        if self._body_bytes > self._most_body:
            self.refuse(_large_body(self._most_body))
        elif self._answered:
            return
        elif self._body is not None:
            self._body += data
        else:
            self.send(data if self.head.length is not None else chunk(data))

    def on_message_complete(self) -> None:
        if self._deaf or self.head is None:
            return
        self.sent_whole = True
        if self._answered:
            self._reset()
            return
        self.deadline = float("inf")
        if self._body is not None:
            self._begin_request(self.head, bytes(self._body))
        elif self.head.length is None:
            self.send(LAST_CHUNK)

    def _begin_request(self, head: Head, body: bytes) -> None:
        self._body = None
        try:
            self._service.begin(self, head, body)
        except RequestRejected as refused:
            self.refuse(refused)

    def send(self, data: bytes) -> None:
        self.bytes_up += len(data)
        self._up += data

    def send_first(self, data: bytes) -> None:
        """Pass bytes to the server before what came of the body meanwhile."""
        self.bytes_up += len(data)
        self._up[:0] = data

    def hand_over(self, flow: Flow) -> bytes:
        """Give the connection to another protocol; return what came already that is for it."""
        self._deaf = True
        self._begun = False
        self._connections.discard(self)
        self.transport.set_protocol(flow)
        flow.halted = self.halted
        flow.connection_made(self.transport)
        return self._rest

    def attach(self, server: Flow) -> None:
        self.pair(server)
        self.flush()

    def reply(self, status: int, reason: bytes, headers: list[Header]) -> bool:
        """Pass the head of a reply on; return whether that is all of it."""
        assert self.head is not None
        self._framing = Framing.choose(status, headers, self.head)
        self._last = self._last or self._framing.until_closed
        self._write(reply_head(status, reason, strip_hop_headers(headers), self._framing, closing=self._last))
        self._service.count("forwarded")
        return self.head.method == b"HEAD"

    def reply_piece(self, data: bytes) -> None:
        self._write(chunk(data) if self._framing is not None and self._framing.chunked else data)

    def end_reply(self) -> None:
        if self._framing is not None and self._framing.chunked:
            self._write(LAST_CHUNK)
        self._close_reply()

    def on_peer_lost(self) -> None:
        """Answer in place of a server that went away; an incomplete reply is cut off."""
        if self._framing is not None:
            self.abort()
        else:
            self.refuse(RequestRejected(502, "lost", "the server went away before it answered; try again"))

    def refuse(self, refused: RequestRejected) -> None:
        """Answer the present request with an error; a reply that has begun is cut off instead."""
        if self._deaf:
            return
        self._service.count(refused.reason)
        if self._framing is not None:
            self.abort()
            return
        if self._answered:
            self._hang_up()
            return
        server = self.unpair()
        if server is not None:
            server.abort()
        waits = self.head is not None and self.head.continues and not self.sent_whole
        self._last = self._last or refused.closing or waits
        self._down = [refusal(refused, closing=self._last)]
        self._close_reply()

    def _close_reply(self) -> None:
        self._up = bytearray()
        self._finish()
        self.flush()
        self._answered, self._framing = True, None
        if self._last:
            self._hang_up()
        elif self.sent_whole:
            self._reset()

    def _hang_up(self) -> None:
        self._deaf = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait(LINGER_S)

    def _reset(self) -> None:
        self.head = self._body = None
        self._answered = False
        self._wait(IDLE_TIMEOUT_S)

    def abort(self) -> None:
        """Cut the connection; what else came with it is not looked at."""
        self._deaf = True
        super().abort()

    def _finish(self) -> None:
        if self._begun:
            self._begun = False
            self._service.finish(self)

    def _write(self, data: bytes) -> None:
        self.bytes_down += len(data)
        self._down.append(data)

    def flush(self) -> None:
        if self._up and self.other is not None:
            data, self._up = self._up, bytearray()
            self.other.transport.write(data)
        if self._down:
            said, self._down = b"".join(self._down), []
            self.transport.write(said)


def _large_head() -> RequestRejected:
    what = f"expected at most {MOST_HEADERS} headers of {MOST_HEAD_BYTES} bytes together"
    return RequestRejected(431, "head_too_large", what, closing=True)


def _large_body(most: int) -> RequestRejected:
    return RequestRejected(413, "body_too_large", f"expected a body of at most {most} bytes, found more", closing=True)


class Requester(Protocol):
    """Whose request is answered."""

    @property
    def sent_whole(self) -> bool: ...

    def reply(self, status: int, reason: bytes, headers: list[Header]) -> bool: ...

    def reply_piece(self, data: bytes) -> None: ...

    def end_reply(self) -> None: ...

    def flush(self) -> None: ...


class ServerConnection(Flow):
    """A connection to a server. Between two agents it waits in `pool`; without one it serves a single request."""

    def __init__(self, pool: list[ServerConnection] | None = None) -> None:
        super().__init__()
        self._pool = pool
        self._parser = HttpResponseParser(self)
        self._headers: list[Header] = []
        self._reason = b""
        self._answering = False
        self._sized = False
        self._bound = ProgressBound()
        self._in_head = False
        self.idle_since = 0.0
        """When it began to wait in the pool, in the loop's time."""

    @property
    def _requester(self) -> Requester | None:
        return cast("Requester | None", self.other)

    def connection_lost(self, error: Exception | None) -> None:
        if self._pool is not None and self in self._pool:
            self._pool.remove(self)
        agent = self.unpair()
        if agent is not None:
            agent.on_peer_lost()

    def eof_received(self) -> bool:
        """End a reply that only this ends; what else is unfinished is lost with the connection."""
        if self._answering and not self._sized:
            self._finish(reusable=False)
        return False

    def data_received(self, data: bytes) -> None:
        requester = self._requester
        if requester is None:  # no request is in flight
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except HttpParserCallbackError:
            raise
        except (HttpParserError, HttpParserUpgrade):
            self.abort()
        if self._bound.count_bytes(len(data), in_head=self._in_head):
            self.abort()
        requester.flush()

    def on_message_begin(self) -> None:
        self._headers, self._reason = [], b""
        self._in_head = True
        self._bound.mark_progress()
        if self.other is None:
            self.abort()

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._answering:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Pass the head on, unless the real one is still to come."""
        self._in_head = False
        self._bound.mark_progress()
        status, requester = self._parser.get_status_code(), self._requester
        if status < 200 or requester is None:
            return
        told = dict(self._headers)
        if told.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self.abort()
            return
        self._answering = True
        self._sized = b"content-length" in told or b"transfer-encoding" in told
        if requester.reply(status, self._reason, self._headers):
            self._finish(reusable=False)

    def on_body(self, data: bytes) -> None:
        self._bound.mark_progress()
        if self._answering and self._requester is not None:
            self._requester.reply_piece(data)

    def on_message_complete(self) -> None:
        if self._answering:
            self._finish(reusable=self._parser.should_keep_alive())

    def _finish(self, *, reusable: bool) -> None:
        requester = self._requester
        self._answering = False
        self.unpair()
        if requester is None:
            return
        reusable = reusable and requester.sent_whole
        requester.end_reply()
        if reusable and self._pool is not None and not self.transport.is_closing():
            self.idle_since = asyncio.get_running_loop().time()
            self._pool.append(self)
        else:
            self.abort()  # not close(), which waits for a server to take what nobody needs any more
