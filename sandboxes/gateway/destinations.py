"""Destinations on the Internet: what a user names as reachable, and which addresses no name may stand for.

A name is resolved on our side and may mean anything its owner likes, so an address that is not of the public
Internet (this machine, its network, a cloud's metadata service, one written within another) is refused, whatever
name led to it; only an entry that is that very address opens it. Pure functions of values.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from sandboxes.spec import SandboxError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""What some resolvers take for an address, in one of its older spellings."""
_MOST_NAME = 253

_WITHIN = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("::ffff:0:0/96", "an IPv4 address within an IPv6 one"),
        ("::ffff:0:0:0/96", "an IPv4 address within an IPv6 one"),
        ("::/96", "an IPv4 address within an IPv6 one"),
        ("64:ff9b::/96", "a NAT64 address"),
        ("64:ff9b:1::/48", "a NAT64 address"),
        ("2002::/16", "a 6to4 address"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("2001::/32", "a Teredo address"),
        ("fec0::/10", "a private address"),
    )
)


def host_of(text: str) -> str | Address:
    """Return a host as an address or as a lower-case name; raise ValueError for what is neither."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        address = None
    if address is not None and (address.version == 6 or bare == text):
        return address
    name = text.lower().removesuffix(".")
    if len(name) > _MOST_NAME or not _NAME.fullmatch(name) or _NUMERIC.fullmatch(name):
        raise ValueError(f"{text[:80]!r} is neither a host name nor an address")
    return name


def port_of(text: str) -> int:
    """Return a port; raise ValueError for what is none."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
        raise ValueError(f"{text[:20]!r} is no port from 1 to 65535")
    return int(text)


def split(text: str) -> tuple[str | Address, int]:
    """Return host and port of `host:port`; raise ValueError. An IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text[:80]!r} is not of the form host:port")
    return host_of(host), port_of(port)


@dataclass(frozen=True, slots=True)
class Destination:
    """An entry of an allow-list: one port of a host, of an address, or of every name below a name."""

    host: str | Address
    port: int
    below: bool = False
    """Whether it means all names below `host`, and not `host` itself."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `api.example.com:443`, `*.example.com:443`, `192.0.2.7:80` or `[2001:db8::7]:443`.

        Raises SandboxError for anything else.
        """
        below = text.startswith("*.")
        try:
            host, port = split(text[2:] if below else text)
        except ValueError as error:
            raise SandboxError(f"expected a destination like {_EXAMPLES}; {error}") from None
        if below and (not isinstance(host, str) or "." not in host):
            raise SandboxError(f"expected a name of at least two parts after `*.`, found {text[:80]!r}")
        return cls(host, port, below)

    def covers(self, host: str | Address, port: int) -> bool:
        """Return whether a host and port asked for are of this entry."""
        if port != self.port:
            return False
        if self.below:
            return isinstance(host, str) and host.endswith(f".{self.host}")
        return host == self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else str(self.host)
        return f"{'*.' if self.below else ''}{host}:{self.port}"


_EXAMPLES = "api.example.com:443, *.example.com:443 or 192.0.2.7:80"


def not_public(address: Address) -> str | None:
    """Return why an address is not one of the public Internet; None if it is."""
    for network, what in _WITHIN:
        if address.version == network.version and address in network:
            return what if int(address) > 1 else "this machine"
    if address.is_loopback or address.is_unspecified:
        return "this machine"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    return None if address.is_global and not address.is_reserved else "a private address"
