"""Tests of egress."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.gateway.egress import Address, Destination, why_not_public
from sandboxes.spec import SandboxError


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
