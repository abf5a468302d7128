from __future__ import annotations

import pytest
from httptools import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.gateway.http_heads import (
    Framing,
    Head,
    Header,
    RequestRejected,
    passed_on,
    refusal,
    request_head,
    without_claims,
)

TOKENS = st.from_regex(rb"[a-z0-9!#$%&'*+.^_`|~-]{1,12}", fullmatch=True)
VALUES = st.from_regex(rb"([!-~]([ -~]{0,12}[!-~])?)?", fullmatch=True)
HEADERS = st.lists(st.tuples(TOKENS, VALUES), max_size=8)
OF_ONE_HOP = [b"connection", b"keep-alive", b"te", b"upgrade", b"transfer-encoding", b"content-length", b"expect"]


class Read:
    """What llhttp makes of bytes."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[Header] = []
        self.heads = self.messages = 0
        self.body = b""
        self.parser = HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.heads += 1

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.messages += 1


@given(HEADERS, st.sampled_from(OF_ONE_HOP), VALUES, st.binary(max_size=40))
def test_what_is_written_is_read_as_one_request_with_just_the_headers_that_pass(
    headers: list[Header], hop: bytes, value: bytes, body: bytes
) -> None:
    kept = passed_on([*headers, (hop, value)])
    read = Read(request_head(b"POST", b"/a", kept, len(body)) + body)
    assert (read.heads, read.messages, read.body) == (1, 1, body)
    assert [header for header in read.headers if header[0] != b"content-length"] == kept
    assert hop not in [name for name, _ in kept]


@given(HEADERS, TOKENS)
def test_a_header_named_by_connection_goes_no_further(headers: list[Header], name: bytes) -> None:
    asked = [*headers, (b"connection", b"Keep-Alive, " + name.upper()), (name, b"x")]
    assert name not in [kept for kept, _ in passed_on(asked)]


@pytest.mark.parametrize("name", [b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"via", b"x-real-ip"])
def test_a_claim_about_who_asks_goes_no_further(name: bytes) -> None:
    assert without_claims([(name, b"x"), (b"x-kept", b"y")]) == [(b"x-kept", b"y")]


@pytest.mark.parametrize(
    ("method", "version", "status", "headers", "framing"),
    [
        (b"GET", "1.1", 200, [(b"content-length", b"3")], Framing(b"3", chunked=False, none=False)),
        (b"GET", "1.1", 200, [], Framing(None, chunked=True, none=False)),
        (b"GET", "1.0", 200, [], Framing(None, chunked=False, none=False)),
        (b"HEAD", "1.1", 200, [(b"content-length", b"3")], Framing(b"3", chunked=False, none=True)),
        (b"GET", "1.1", 204, [], Framing(None, chunked=False, none=True)),
    ],
)
def test_the_end_of_a_reply_is_told_in_one_way(
    method: bytes, version: str, status: int, headers: list[Header], framing: Framing
) -> None:
    found = Framing.of(status, headers, Head(method, b"/", [], version))
    assert found == framing
    assert found.until_closed is (version == "1.0")


@pytest.mark.parametrize(("status", "again"), [(400, False), (403, False), (413, False), (502, True), (503, True)])
def test_a_refusal_says_when_to_try_again(status: int, again: bool) -> None:
    assert (b"retry-after: 1\r\n" in refusal(RequestRejected(status, "word", "why"), closing=False)) is again
