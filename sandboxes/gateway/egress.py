"""The way to the Internet: a forward proxy with an allow-list, a resolver and a log.

It takes `CONNECT host:port` and plain requests in absolute form.
- Only what an entry covers is reached. Names are resolved here, and may mean anything their owner likes, so an address
  that is not of the public Internet (this machine, its network, a cloud's metadata service, one written within another)
  is refused unless the entry is that very address.
- The address that was checked is the address that is connected to: no name is resolved twice.
- Each request is a line of the log, refused or not, with how much went each way and nothing of what was said.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Self

from sandboxes.gateway.http_heads import Head, RequestRejected, request_head, strip_claims, strip_hop_headers
from sandboxes.gateway.proxy import AgentConnection, BackgroundTasks, Connections, Flow, ServerConnection
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


def parse_host(text: str) -> str | Address:
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


def parse_port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
        raise ValueError(f"{text[:20]!r} is no port from 1 to 65535")
    return int(text)


def parse_address(text: str) -> tuple[str | Address, int]:
    """Return host and port of `host:port`; raise ValueError. An IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text[:80]!r} is not of the form host:port")
    return parse_host(host), parse_port(port)


@dataclass(frozen=True, slots=True)
class Destination:
    """An entry of an allow-list: one port of a host, of an address, or of every name below a name."""

    host: str | Address
    port: int
    below: bool = False
    """Whether it means all names below `host`, and not `host` itself."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `api.example.com:443`, `*.example.com:443`, `192.0.2.7:80` or `[2001:db8::7]:443`; else SandboxError."""
        below = text.startswith("*.")
        try:
            host, port = parse_address(text[2:] if below else text)
        except ValueError as error:
            raise SandboxError(f"expected a destination like {_EXAMPLES}; {error}") from None
        if below and (not isinstance(host, str) or "." not in host):
            raise SandboxError(f"expected a name of at least two parts after `*.`, found {text[:80]!r}")
        return cls(host, port, below)

    def covers(self, host: str | Address, port: int) -> bool:
        if port != self.port:
            return False
        if self.below:
            return isinstance(host, str) and host.endswith(f".{self.host}")
        return host == self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else str(self.host)
        return f"{'*.' if self.below else ''}{host}:{self.port}"


_EXAMPLES = "api.example.com:443, *.example.com:443 or 192.0.2.7:80"


def why_not_public(address: Address) -> str | None:
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


LOG_BYTES = 1 << 20
"""Size at which the file is turned over, to FILE.1: the latest lines are kept."""


class EgressLog:
    """Appends to `path`. A line that cannot be written is counted through `lost`, and stops nothing."""

    def __init__(self, path: Path, lost: Callable[[], None]) -> None:
        self._path = path
        self._lost = lost

    def write(self, entry: Mapping[str, object]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        try:
            with open(self._path, "ab") as file:
                file.write(line)
                full = file.tell() >= LOG_BYTES
            if full:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        except OSError:
            self._lost()


IDLE_TIMEOUT_S = 300.0
"""A tunnel through which nothing went for so long is cut."""
ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"


class ConnectTunnel:
    """Two ends, and what went through."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._near = _TunnelEnd(self._count_up, self._close_end)
        self._far = _TunnelEnd(self._count_down, self._close_end)
        self._over: Callable[[], None] | None = None
        self._ends = 2
        self.deadline = float("inf")
        self.bytes_up = self.bytes_down = 0
        self.reason = ""
        """Why it was cut; empty when its ends ended it."""

    def far_end(self) -> Flow:
        return self._far

    def open(self, agent: AgentConnection, over: Callable[[], None]) -> None:
        """Take over an agent's connection; `over` is called once, when both ends are gone."""
        self._over = over
        rest = agent.hand_over(self._near)
        self._connections.add(self)
        self._touch()
        self._near.transport.write(ESTABLISHED)
        self._near.pair(self._far)
        if rest:
            self._near.data_received(rest)
        if self._far.transport.is_closing():
            self._near.transport.close()

    def expire(self) -> None:
        self.reason = "idle"
        self.abort()

    def abort(self) -> None:
        self._far.abort()
        self._near.abort()

    def _count_up(self, size: int) -> None:
        self.bytes_up += size
        self._touch()

    def _count_down(self, size: int) -> None:
        self.bytes_down += size
        self._touch()

    def _touch(self) -> None:
        self.deadline = asyncio.get_running_loop().time() + IDLE_TIMEOUT_S

    def _close_end(self) -> None:
        self._ends -= 1
        if not self._ends and self._over is not None:
            self._connections.discard(self)
            self._over()


class _TunnelEnd(Flow):
    """One end."""

    def __init__(self, passed: Callable[[int], None], lost: Callable[[], None]) -> None:
        super().__init__()
        self._passed = passed
        self._lost = lost
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.halt(True)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self._passed(len(data))
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end of this direction on; with the second one the tunnel is done."""
        self._ended = True
        other = self.other
        if not isinstance(other, _TunnelEnd) or other._ended or not other.transport.can_write_eof():
            return False
        other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        other = self.unpair()
        if other is not None:
            other.transport.close()
        self._lost()


CONNECT_TIMEOUT_S = 10.0
"""To resolve a name, and to connect to one of its addresses."""
MOST_LOOKUPS = 8
"""Names being resolved at once. A thread that resolves cannot be stopped, so an agent that goes away leaves it behind:
they are threads of their own, for those that everything else shares would soon be used up."""
_LOOKUPS = ThreadPoolExecutor(MOST_LOOKUPS, "names")

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
Verdict = Literal["allowed", "refused", "failed"]

_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp]://([^/?#@]+)(/[^#]*)?(\?[^#]*)?")


@dataclass(frozen=True, slots=True)
class _RequestTarget:
    """Where a request wants to go; `line` is what it asks there, None for a tunnel."""

    host: str | Address
    port: int
    line: bytes | None = None

    @classmethod
    def parse(cls, head: Head) -> _RequestTarget:
        try:
            if head.method == b"CONNECT":
                return cls(*parse_address(head.target.decode("latin-1")))
            return cls._parse_absolute(head.target)
        except ValueError as error:
            reason = f"expected CONNECT host:port, or http://host/...; {error}"
            raise RequestRejected(400, "malformed", reason, closing=True) from None

    @classmethod
    def _parse_absolute(cls, target: bytes) -> _RequestTarget:
        if (found := _ABSOLUTE.fullmatch(target)) is None:
            raise ValueError("the target of the request is neither")
        authority = found[1].decode("latin-1")
        host, colon, port = authority.rpartition(":")
        if not colon or authority.endswith("]"):
            host, port = authority, "80"
        return cls(parse_host(host), parse_port(port), (found[2] or b"/") + (found[3] or b""))

    @property
    def authority(self) -> bytes:
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else str(self.host)
        return (host if self.port == 80 else f"{host}:{self.port}").encode()


@dataclass(slots=True)
class _OutgoingRequest:
    """A request on its way: what the log will say of it."""

    asked: _RequestTarget
    began: float
    verdict: Verdict = "failed"
    reason: str = "the agent went away"
    task: asyncio.Task[None] | None = None


async def resolve_here(name: str, port: int) -> Sequence[Address]:
    look = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look)
    return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


class Egress:
    """The service that passes requests on to what `allow` covers."""

    def __init__(
        self,
        allow: Sequence[Destination],
        log: EgressLog,
        count: Callable[[str], None],
        connections: Connections,
        resolve: Resolve,
    ) -> None:
        self._allow = tuple(allow)
        self._log = log
        self._count = count
        self._connections = connections
        self._resolve = resolve
        self._tasks = BackgroundTasks()
        self._outgoing: dict[AgentConnection, _OutgoingRequest] = {}

    def count(self, what: str) -> None:
        """Count what was refused; what is allowed is counted when it begins."""
        if what != "forwarded":
            self._count(f"egress {what}")

    def buffer_limit(self, agent: AgentConnection, head: Head) -> int:
        return 0

    def begin(self, agent: AgentConnection, head: Head, body: bytes | None) -> None:
        asked = _RequestTarget.parse(head)
        outgoing = self._outgoing[agent] = _OutgoingRequest(asked, time.monotonic())
        if not any(entry.covers(asked.host, asked.port) for entry in self._allow):
            raise self._reject(outgoing, "not on the list", f"{asked.host}:{asked.port} is not on the allow-list")
        agent.halt(True)
        outgoing.task = self._tasks.start(self._connect(agent, head, outgoing))

    def finish(self, agent: AgentConnection) -> None:
        outgoing = self._outgoing.pop(agent, None)
        if outgoing is None:
            return
        if outgoing.task is not None and outgoing.task is not asyncio.current_task():
            outgoing.task.cancel()
        self._write(outgoing, agent.bytes_up, agent.bytes_down)

    async def close(self) -> None:
        await self._tasks.close()

    async def _connect(self, agent: AgentConnection, head: Head, outgoing: _OutgoingRequest) -> None:
        asked = outgoing.asked
        tunnel = ConnectTunnel(self._connections) if asked.line is None else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                addresses = await self._find_addresses(outgoing)
                end = ServerConnection if tunnel is None else tunnel.far_end
                server = await _connect_first(addresses, asked.port, end)
        except RequestRejected as refused:
            agent.halt(False)
            agent.refuse(refused)
            return
        except OSError as error:  # TimeoutError is one
            agent.halt(False)
            outgoing.reason = type(error).__name__
            what = f"{asked.host}:{asked.port} cannot be reached ({outgoing.reason})"
            agent.refuse(RequestRejected(502, "failed", what, closing=True))
            return
        outgoing.verdict, outgoing.reason = "allowed", ""
        self.count("allowed")
        if tunnel is None:
            self._send_request(agent, head, asked, server)
        else:
            del self._outgoing[agent]
            tunnel.open(agent, lambda: self._log_tunnel(outgoing, tunnel))

    def _send_request(self, agent: AgentConnection, head: Head, asked: _RequestTarget, server: Flow) -> None:
        assert asked.line is not None
        kept = [header for header in strip_claims(strip_hop_headers(head.headers)) if header[0] != b"host"]
        headers = [(b"host", asked.authority), *kept, (b"connection", b"close")]
        agent.send_first(request_head(head.method, asked.line, headers, head.length))
        agent.attach(server)

    def _log_tunnel(self, outgoing: _OutgoingRequest, tunnel: ConnectTunnel) -> None:
        outgoing.reason = tunnel.reason
        self._write(outgoing, tunnel.bytes_up, tunnel.bytes_down)

    async def _find_addresses(self, outgoing: _OutgoingRequest) -> Sequence[Address]:
        """Return the addresses that may be connected to. Raises RequestRejected, and OSError when the name has none."""
        host = outgoing.asked.host
        if not isinstance(host, str):
            return [host]  # covered, so an entry is this very address
        found = await self._resolve(host, outgoing.asked.port)
        if not found:
            raise OSError("no address")
        barred = {address: why_not_public(address) or _why_own_address(address) for address in found}
        public = [address for address, why in barred.items() if why is None]
        if not public:
            raise self._reject(outgoing, str(barred[found[0]]), f"the name {host} stands for what is not public")
        return public

    def _reject(self, outgoing: _OutgoingRequest, reason: str, message: str) -> RequestRejected:
        outgoing.verdict, outgoing.reason = "refused", reason
        return RequestRejected(403, f"refused: {reason}", f"this sandbox may not go there: {message}", closing=True)

    def _write(self, outgoing: _OutgoingRequest, up: int, down: int) -> None:
        self._log.write(
            {
                "at": round(time.time(), 3),
                "host": str(outgoing.asked.host),
                "port": outgoing.asked.port,
                "verdict": outgoing.verdict,
                "reason": outgoing.reason,
                "bytes_up": up,
                "bytes_down": down,
                "seconds": round(time.monotonic() - outgoing.began, 3),
            }
        )


def _why_own_address(address: Address) -> str | None:
    """Return why an address may not be reached by a name: it may be public, and this machine's own. Sends nothing."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return None
        return "this machine" if ipaddress.ip_address(probe.getsockname()[0]) == address else None


async def _connect_first(addresses: Sequence[Address], port: int, make: Callable[[], Flow]) -> Flow:
    loop = asyncio.get_running_loop()
    last: OSError = ConnectionRefusedError()
    for address in addresses:
        try:
            return (await loop.create_connection(make, str(address), port))[1]
        except OSError as error:
            last = error
    raise last
