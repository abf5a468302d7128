"""Tests of egress."""

from __future__ import annotations

import ipaddress

import pytest
from httptools import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.gateway.egress import Address, Destination, why_not_public
from sandboxes.gateway.http_heads import (
    Framing,
    Head,
    Header,
    RequestRejected,
    refusal,
    request_head,
    strip_hop_headers,
)
from sandboxes.spec import SandboxError

TOKENS = st.from_regex(rb"[a-z0-9!#$%&'*+.^_`|~-]{1,12}", fullmatch=True)
VALUES = st.from_regex(rb"([!-~]([ -~]{0,12}[!-~])?)?", fullmatch=True)
HEADERS = st.lists(st.tuples(TOKENS, VALUES), max_size=8)
OF_ONE_HOP = [b"connection", b"keep-alive", b"te", b"upgrade", b"transfer-encoding", b"content-length", b"expect"]


class Read:
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
    kept = strip_hop_headers([*headers, (hop, value)])
    read = Read(request_head(b"POST", b"/a", kept, len(body)) + body)
    assert (read.heads, read.messages, read.body) == (1, 1, body)
    assert [header for header in read.headers if header[0] != b"content-length"] == kept
    assert hop not in [name for name, _ in kept]


@given(HEADERS, TOKENS)
def test_a_header_named_by_connection_goes_no_further(headers: list[Header], name: bytes) -> None:
    asked = [*headers, (b"connection", b"Keep-Alive, " + name.upper()), (name, b"x")]
    assert name not in [kept for kept, _ in strip_hop_headers(asked)]


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
    found = Framing.choose(status, headers, Head(method, b"/", [], version))
    assert found == framing
    assert found.until_closed is (version == "1.0")


@pytest.mark.parametrize(("status", "again"), [(400, False), (403, False), (413, False), (502, True), (503, True)])
def test_a_refusal_says_when_to_try_again(status: int, again: bool) -> None:
    assert (b"retry-after: 1\r\n" in refusal(RequestRejected(status, "word", "why"), closing=False)) is again


@pytest.mark.parametrize(
    ("entry", "covered", "not_covered"),
    [
        (
            "api.example.com:443",
            ["API.example.com:443", "api.example.com.:443"],
            ["example.com:443", "x.api.example.com:443", "api.example.com:80", "api.example.com.evil:443"],
        ),
        (
            "*.example.com:443",
            ["a.example.com:443", "a.b.example.com:443"],
            ["example.com:443", "aexample.com:443", "a.example.com:444", "a.example.com.evil:443"],
        ),
        ("192.0.2.7:80", ["192.0.2.7:80"], ["192.0.2.8:80", "[::ffff:192.0.2.7]:80"]),
        ("[2001:db8::7]:443", ["[2001:db8:0:0::7]:443"], ["[2001:db8::8]:443"]),
    ],
)  # fmt: skip
def test_an_entry_covers_its_host_and_port_and_no_more(entry: str, covered: list[str], not_covered: list[str]) -> None:
    parsed = Destination.parse(entry)
    assert str(parsed) == entry
    for text in covered:
        asked = Destination.parse(text)
        assert parsed.covers(asked.host, asked.port)
    for text in not_covered:
        asked = Destination.parse(text)
        assert not parsed.covers(asked.host, asked.port)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:4 43",
        "example.com:+1",
        "example.com:٤٤٣", "https://example.com:443", "user@example.com:443", "ex ample.com:443", "-a.com:443",
        "a..b:443",
        "2001:db8::7:443", "[192.0.2.7]:80", "[::1:80", "*:443", "*.com:443", "*.192.0.2.7:80", "a.*.com:443",
        "**.a.com:443",
        "127.1:80", "2130706433:80", "0x7f000001:80", "0177.0.0.1:80", "1.2.3.4.5:80", "a" * 64 + ".com:443",
        "é.com:443",
        "a.b" * 90 + ":443", "example.com/x:443", "example.com\r\n:443",
    ],
)  # fmt: skip
def test_what_is_no_destination_is_refused_with_examples(text: str) -> None:
    with pytest.raises(SandboxError, match="expected a") as refused:
        Destination.parse(text)
    assert len(str(refused.value)) < 300


NOT_OF_THE_INTERNET = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/29",
    "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32",
    "2001:db8::/32", "2002::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
]  # fmt: skip
NETWORKS = [ipaddress.ip_network(text) for text in NOT_OF_THE_INTERNET]


@given(st.sampled_from(NETWORKS), st.integers(0, 2**128 - 1))
def test_no_address_of_a_network_that_is_not_the_internets_is_public(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, number: int
) -> None:
    assert why_not_public(network[number % network.num_addresses]) is not None


@given(st.ip_addresses(v=4))
def test_an_address_that_embeds_another_is_not_public_whatever_it_embeds(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    for outer in (0xFFFF << 32, 0x64FF9B << 96, 0x2002 << 112, 0x20010000 << 96, 0):
        shift = 80 if outer == 0x2002 << 112 else 0
        assert why_not_public(ipaddress.IPv6Address(outer | (number << shift))) is not None


@given(st.ip_addresses())
def test_what_is_public_is_global_to_pythons_mind_too(address: Address) -> None:
    if why_not_public(address) is None:
        assert address.is_global
        assert not any([address.is_private, address.is_loopback, address.is_link_local, address.is_multicast])


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450::1"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert why_not_public(ipaddress.ip_address(address)) is None
