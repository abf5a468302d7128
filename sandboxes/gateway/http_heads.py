"""Heads of HTTP/1.1 messages as passed on: what is left out, form, and length.

A parser (llhttp) has read the head; it is never copied through but written anew, with one framing of the body that
follows from what was read. So no two readers can take what we send for different messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

MOST_HEAD_BYTES = 64 * 1024
Header = tuple[bytes, bytes]
"""A lower-case name, and a value."""

_OF_ONE_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"content-length",
    }
)  # fmt: skip
_CLAIMED = frozenset({b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"x-original-url"})
"""What only a proxy may say of a request; said by an agent, it is a lie."""
_USUALLY_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS"})
_MOST_DIGITS = 18
_WITHOUT_BODY = frozenset({204, 304})


class RequestRejected(Exception):
    """A request is not passed on. `reason` is the word it is counted by; `closing`, whether its connection ends."""

    def __init__(self, status: int, reason: str, message: str, *, closing: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.closing = closing


class ProgressBound:
    """Counts the bytes since a parser, which bounds no head and keeps all of it, last completed a head or trailers."""

    def __init__(self) -> None:
        self._moved = False
        self._bytes = 0

    def mark_progress(self) -> None:
        self._moved = True

    def count_bytes(self, size: int, *, in_head: bool) -> bool:
        """Count `size` bytes that the parser was fed; return whether there are too many by now."""
        if self._moved:
            self._bytes = size if in_head else 0
        else:
            self._bytes += size
        self._moved = False
        return self._bytes > MOST_HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request."""

    method: bytes
    target: bytes
    headers: list[Header]
    version: str
    length: int | None = 0
    """The body's length: 0 without a body, None for one in chunks."""
    continues: bool = False
    """Whether the client waits for a sign before it sends the body."""

    @classmethod
    def parse(cls, method: bytes, target: bytes, headers: list[Header], version: str) -> Head:
        """Read a head; raise RequestRejected for what two readers might read differently."""
        told = dict(headers)
        encoding = told.get(b"transfer-encoding")
        if version not in ("1.1", "1.0"):
            raise _malformed_error("HTTP/1.1")
        if b"host" not in told or (len(told) < len(headers) and _has_duplicates(headers)):
            raise _malformed_error(f"each of {_SINGLE} once at most, and a host")
        if encoding is not None and encoding.lower() != b"chunked":
            raise _malformed_error("no transfer-encoding but chunked")
        length = told.get(b"content-length", b"0")
        if len(length) > _MOST_DIGITS:
            raise _malformed_error(f"a content-length of at most {_MOST_DIGITS} digits")
        size = None if encoding is not None else int(length)
        return cls(method, target, headers, version, size, told.get(b"expect", b"").lower() == b"100-continue")


_SINGLE = "host, content-length, transfer-encoding, expect"


def _has_duplicates(headers: list[Header]) -> bool:
    names = [name for name, _ in headers]
    return any(names.count(single.encode()) > 1 for single in _SINGLE.split(", "))


def _malformed_error(expected: str) -> RequestRejected:
    return RequestRejected(400, "malformed", f"expected {expected}", closing=True)


def strip_hop_headers(headers: Iterable[Header]) -> list[Header]:
    kept = list(headers)
    named = {name.strip().lower() for key, value in kept if key == b"connection" for name in value.split(b",")}
    return [(name, value) for name, value in kept if name not in _OF_ONE_HOP and name not in named]


def strip_claims(headers: Iterable[Header]) -> list[Header]:
    return [(name, value) for name, value in headers if name not in _CLAIMED and not name.startswith(b"x-forwarded")]


def request_head(method: bytes, target: bytes, headers: list[Header], length: int | None) -> bytes:
    """Return a request's head; `length` None is a body in chunks."""
    framing = b"" if length == 0 and method in _USUALLY_BODILESS else _framing(length)
    return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method, target, _lines(headers), framing)


@dataclass(frozen=True, slots=True)
class Framing:
    """How the end of a reply's body is told: by its length, in chunks, or (neither) by the end of the connection."""

    length: bytes | None
    chunked: bool
    none: bool
    """There is no body, whatever the head says."""

    @classmethod
    def choose(cls, status: int, headers: Iterable[Header], request: Head) -> Framing:
        length = next((value for name, value in headers if name == b"content-length"), None)
        none = status in _WITHOUT_BODY or request.method == b"HEAD"
        return cls(length, length is None and not none and request.version == "1.1", none)

    @property
    def until_closed(self) -> bool:
        return not self.chunked and not self.none and self.length is None


def reply_head(status: int, reason: bytes, headers: list[Header], framing: Framing, *, closing: bool) -> bytes:
    lines = _lines(headers)
    if framing.chunked:
        lines += b"transfer-encoding: chunked\r\n"
    elif framing.length is not None:
        lines += b"content-length: %b\r\n" % framing.length
    if closing:
        lines += b"connection: close\r\n"
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, lines)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CODES = {403: "forbidden", 413: "body_too_large", 502: "engine_unavailable", 503: "engine_unavailable"}


def refusal(refused: RequestRejected, *, closing: bool) -> bytes:
    """Return a whole reply: OpenAI's error object, with Retry-After where trying again may help."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    code = _CODES.get(refused.status, "invalid_request")
    body = json.dumps({"error": {"message": str(refused), "type": kind, "code": code, "param": None}}).encode()
    headers = [(b"content-type", b"application/json")]
    if refused.status >= 500:
        headers.append((b"retry-after", b"1"))
    framing = Framing(b"%d" % len(body), chunked=False, none=False)
    return reply_head(refused.status, b"Refused", headers, framing, closing=closing) + body


def _framing(length: int | None) -> bytes:
    return b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length


def _lines(headers: Iterable[Header]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)
