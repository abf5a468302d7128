"""A proxy's connection to a server: it carries the requests of one agent at a time, and may be used again."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

from sandboxes.gateway.proxy.flow import Flow
from sandboxes.gateway.proxy.heads import Header, ProgressBound


class Requester(Protocol):
    """Whose request is answered."""

    @property
    def sent_whole(self) -> bool:
        """Whether all of its request was passed on."""
        ...

    def reply(self, status: int, reason: bytes, headers: list[Header]) -> bool:
        """Take the head of the reply; return whether that is all of it."""
        ...

    def reply_piece(self, data: bytes) -> None:
        """Take a piece of the reply's body."""
        ...

    def reply_ended(self) -> None:
        """Take the end of the reply."""
        ...

    def flush(self) -> None:
        """Write what is buffered."""
        ...


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
        """Tell the agent that the server is gone."""
        if self._pool is not None and self in self._pool:
            self._pool.remove(self)
        agent = self.part()
        if agent is not None:
            agent.other_lost()

    def eof_received(self) -> bool:
        """End a reply that only this ends; what else is unfinished is lost with the connection."""
        if self._answering and not self._sized:
            self._finish(reusable=False)
        return False

    def data_received(self, data: bytes) -> None:
        """Parse what the server sends, and pass it on."""
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
        if self._bound.passed(len(data), in_head=self._in_head):
            self.abort()
        requester.flush()

    def on_message_begin(self) -> None:
        """Begin a reply."""
        self._headers, self._reason = [], b""
        self._in_head = True
        self._bound.moved()
        if self.other is None:
            self.abort()

    def on_status(self, reason: bytes) -> None:
        """Take (a part of) the reason."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is dropped."""
        if not self._answering:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Pass the head on, unless the real one is still to come."""
        self._in_head = False
        self._bound.moved()
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
        """Pass a piece on."""
        self._bound.moved()
        if self._answering and self._requester is not None:
            self._requester.reply_piece(data)

    def on_message_complete(self) -> None:
        """End the reply."""
        if self._answering:
            self._finish(reusable=self._parser.should_keep_alive())

    def _finish(self, *, reusable: bool) -> None:
        requester = self._requester
        self._answering = False
        self.part()
        if requester is None:
            return
        reusable = reusable and requester.sent_whole
        requester.reply_ended()
        if reusable and self._pool is not None and not self.transport.is_closing():
            self.idle_since = asyncio.get_running_loop().time()
            self._pool.append(self)
        else:
            self.abort()  # not close(), which waits for a server to take what nobody needs any more
