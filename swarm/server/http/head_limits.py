"""HTTP/1.1 over uvicorn's httptools protocol, with an end to how large the head of a request may grow.

httptools itself sets none: one connection could fill the memory with headers before any key is looked at. What is
no HTTP, or too much of it, is answered with the error object and the connection is closed.
"""

from __future__ import annotations

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from swarm.errors import InvalidRequest

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100


class LimitedHttp(HttpToolsProtocol):
    """One connection."""

    _head: int = 0
    _in_head: bool = True
    _begun: bool = False

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that is too large by then ends the connection."""
        self._begun = False
        super().data_received(data)
        self._head = len(data) if self._begun else self._head + len(data)
        if self._in_head and self._head > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("head")

    def on_message_begin(self) -> None:
        """Begin to count anew."""
        self._in_head = self._begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer; raising here is how httptools is told to stop."""
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Judge the whole head."""
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            raise ValueError("the head of the request is too large")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request of ours, and close."""
        error = InvalidRequest(
            f"expected an HTTP/1.1 request with at most {MAX_HEADERS} headers of {MAX_HEAD_BYTES} bytes together"
        )
        body = to_json(error.to_wire())
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
