"""The way to the Internet: a forward proxy with an allow-list, a resolver and a log.

It takes `CONNECT host:port` and plain requests in absolute form.
- Only what an entry covers is reached. Names are resolved here, and may mean anything their owner likes, so an address
  that is not of the public Internet (this machine, its network, a cloud's metadata service, one written within another)
  is refused unless the entry is that very address.
- The address that was checked is the address that is connected to: no name is resolved twice.
- Each request is a line of the log, refused or not, with how much went each way and nothing of what was said.
"""

import asyncio
import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Self

from sandboxes.gateway import reverse_proxy
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


MOST_LOOKUPS = 8
"""Names being resolved at once. A thread that resolves cannot be stopped, so an agent that goes away leaves it behind:
they are threads of their own, for those that everything else shares would soon be used up."""
_LOOKUPS = ThreadPoolExecutor(MOST_LOOKUPS, "names")
PIECE_BYTES = 64 * 1024

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_HEAD = re.compile(rb"([A-Z]{1,20}) ([!-~]+) (HTTP/1\.[01])\r\n((?:[\w!#$%&'*+.^`|~-]+:[^\0\r\n]*\r\n)*)\r\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_ABSOLUTE = re.compile(r"http://([^/?#@]+)(/[^#]*)?(\?[^#]*)?", re.IGNORECASE)


async def resolve_here(name: str, port: int) -> Sequence[Address]:
    look = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look)
    return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


@dataclass(slots=True)
class OutgoingConnection:
    """A connection that was asked for: where to, what is sent there first, and what the log says of it."""

    host: str | Address
    port: int
    head: bytes | None
    """What a plain request sends first; None for a tunnel."""
    length: int = 0
    """Of the body of a plain request."""
    verdict: Literal["allowed", "refused", "failed"] = "failed"
    reason: str = "the agent went away"
    bytes_up: int = 0
    bytes_down: int = 0
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the head of a request; raise RequestRejected for what two readers might read differently."""
        try:
            if (head := _HEAD.fullmatch(data)) is None:
                raise ValueError("the head is malformed")
            method, target, version = (head[group].decode() for group in (1, 2, 3))
            if method == "CONNECT":
                return cls(*parse_address(target), None)
            if (plain := _ABSOLUTE.fullmatch(target)) is None:
                raise ValueError("the target of the request is neither")
            host, colon, port = plain[1].rpartition(":")
            if not colon or plain[1].endswith("]"):
                host, port = plain[1], "80"
            found = cls(parse_host(host), parse_port(port), b"")
        except ValueError as error:
            reason = f"expected CONNECT host:port, or http://host/...; {error}"
            raise reverse_proxy.RequestRejected(400, "malformed", reason) from None
        pairs = [line.split(":", 1) for line in head[4].decode("latin-1").split("\r\n")[:-1]]
        if len(pairs) > reverse_proxy.MOST_HEADERS:
            raise reverse_proxy.RequestRejected(
                431, "head_too_large", f"expected at most {reverse_proxy.MOST_HEADERS} headers"
            )
        given = [(name, value.strip(" \t")) for name, value in pairs if name.lower() != "host"]
        framing = [(name, value) for name, value in given if name.lower() in ("content-length", "transfer-encoding")]
        for name, value in framing:
            if len(framing) > 1 or name.lower() != "content-length" or not _LENGTH.fullmatch(value):
                expected = "expected one content-length; a body in chunks goes out through CONNECT alone"
                raise reverse_proxy.RequestRejected(400, "malformed", expected)
            found.length = int(value)
        headers = [pair for pair in reverse_proxy.strip_headers(given, framing=True) if pair not in framing]
        lines = [("Host", plain[1]), *headers, *framing, ("Connection", "close")]
        first = f"{method} {plain[2] or '/'}{plain[3] or ''} {version}\r\n"
        found.head = (first + "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n").encode("latin-1")
        return found

    def refuse(self, reason: str, message: str) -> reverse_proxy.RequestRejected:
        self.verdict, self.reason = "refused", reason
        return reverse_proxy.RequestRejected(403, f"refused: {reason}", f"this sandbox may not go there: {message}")

    def to_json(self) -> dict[str, object]:
        return {
            "at": round(time.time(), 3), "host": str(self.host), "port": self.port, "verdict": self.verdict,
            "reason": self.reason, "bytes_up": self.bytes_up, "bytes_down": self.bytes_down,
            "seconds": round(time.monotonic() - self.began, 3),
        }  # fmt: skip


class Egress:
    """Connects agents with what `allow` covers, `most` at once; each connection serves one request."""

    def __init__(
        self, allow: Sequence[Destination], log: Path, count: Callable[[str], None], most: int, resolve: Resolve
    ) -> None:
        self._allow, self._log, self._count, self._most, self._resolve = tuple(allow), log, count, most, resolve
        self._open: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self, sock: socket.socket) -> AsyncIterator[None]:
        listener = await asyncio.start_unix_server(
            self._accept, sock=sock, backlog=reverse_proxy.QUEUE, limit=reverse_proxy.MOST_HEAD_BYTES
        )
        try:
            yield
        finally:
            listener.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) < self._most:
            task = asyncio.create_task(self._serve(reader, writer))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        else:
            self._count("egress connections")
            writer.write(reverse_proxy.RequestRejected(503, "connections", reverse_proxy.FULL).raw())
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._handle((reader, writer))
        except reverse_proxy.RequestRejected as refused:
            self._count(f"egress {refused.reason}")
            writer.write(refused.raw())
            with suppress(OSError):  # a timeout, too: whoever does not go is cut off
                writer.write_eof()
                async with asyncio.timeout(reverse_proxy.LINGER_S):
                    while await reader.read(PIECE_BYTES):
                        pass
        finally:
            writer.transport.abort()

    def _write(self, outgoing: OutgoingConnection) -> None:
        try:
            with open(self._log, "ab") as file:
                file.write(json.dumps(outgoing.to_json()).encode() + b"\n")
                full = file.tell() >= LOG_BYTES
            if full:
                os.replace(self._log, self._log.with_name(self._log.name + ".1"))
        except OSError:
            self._count("egress log lost")

    async def _handle(self, agent: Ends) -> None:
        try:
            async with asyncio.timeout(reverse_proxy.SEND_TIMEOUT_S):
                head = await agent[0].readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise reverse_proxy.large_head() from None
        except TimeoutError:
            raise reverse_proxy.RequestRejected(408, "slow", "the request took too long to arrive") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the agent went away
        outgoing = OutgoingConnection.parse(head)
        early = asyncio.create_task(agent[0].read(PIECE_BYTES))
        try:
            if (server := await self._reach(outgoing, early)) is not None:
                await _splice(outgoing, agent, server, early)
        finally:
            self._write(outgoing)
            early.cancel()
            await asyncio.gather(early, return_exceptions=True)  # nobody else may read before

    async def _reach(self, outgoing: OutgoingConnection, early: asyncio.Task[bytes]) -> Ends | None:
        if not any(entry.covers(outgoing.host, outgoing.port) for entry in self._allow):
            raise outgoing.refuse("not on the list", f"{outgoing.host}:{outgoing.port} is not on the allow-list")
        connecting = asyncio.create_task(self._connect(outgoing))
        try:
            await asyncio.wait({connecting, early}, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done() and (early.exception() is not None or not early.result()):
                return None
            server = await connecting
        except OSError as error:  # TimeoutError is one
            outgoing.reason = type(error).__name__
            what = f"{outgoing.host}:{outgoing.port} cannot be reached ({outgoing.reason})"
            raise reverse_proxy.RequestRejected(502, "failed", what) from None
        finally:
            connecting.cancel()
        outgoing.verdict, outgoing.reason = "allowed", ""
        self._count("egress allowed")
        return server

    async def _connect(self, outgoing: OutgoingConnection) -> Ends:
        last: OSError = ConnectionRefusedError()
        async with asyncio.timeout(reverse_proxy.CONNECT_TIMEOUT_S):
            for address in await self._find_addresses(outgoing):
                try:
                    return await asyncio.open_connection(str(address), outgoing.port)
                except OSError as error:
                    last = error
        raise last

    async def _find_addresses(self, outgoing: OutgoingConnection) -> Sequence[Address]:
        host = outgoing.host
        if not isinstance(host, str):
            return [host]  # covered, so an entry is this very address
        found = await self._resolve(host, outgoing.port)
        if not found:
            raise OSError("no address")
        barred = {address: why_not_public(address) or _why_own_address(address) for address in found}
        public = [address for address, why in barred.items() if why is None]
        if not public:
            raise outgoing.refuse(str(barred[found[0]]), f"the name {host} stands for what is not public")
        return public


def _why_own_address(address: Address) -> str | None:
    """Return why an address may not be reached by a name: it may be public, and this machine's own. Sends nothing."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return None
        return "this machine" if ipaddress.ip_address(probe.getsockname()[0]) == address else None


async def _splice(outgoing: OutgoingConnection, agent: Ends, server: Ends, early: asyncio.Task[bytes]) -> None:
    """Pass on what each end says until both have ended, or one is lost, or nothing went for too long.

    A plain request is over with its reply, whose end the server tells by its own; what an agent sends after the body
    that it announced goes nowhere, for it may be meant for another host.
    """
    loop = asyncio.get_running_loop()
    plain = outgoing.head is not None

    async def said(source: asyncio.StreamReader, *, up: bool) -> AsyncIterator[bytes]:
        data = await early if up else await source.read(PIECE_BYTES)
        while data:
            yield data
            data = await source.read(PIECE_BYTES)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, up: bool) -> None:
        pieces = said(source, up=up)
        try:
            async for data in _announced(pieces, outgoing.length) if plain and up else pieces:
                idle.reschedule(loop.time() + reverse_proxy.IDLE_TIMEOUT_S)
                outgoing.bytes_up += len(data) if up else 0
                outgoing.bytes_down += 0 if up else len(data)
                sink.write(data)
                await sink.drain()
            if not plain or (up and await anext(pieces, None) is None):
                sink.write_eof()
        except reverse_proxy.RequestRejected:
            sink.transport.abort()
            raise
        except OSError:  # one end is lost: what the other was sent still arrives, then it ends
            if up or not plain or outgoing.bytes_down:
                sink.close()

    idle = asyncio.timeout(reverse_proxy.IDLE_TIMEOUT_S)
    up = asyncio.create_task(pump(agent[0], server[1], up=True))
    down = asyncio.create_task(pump(server[0], agent[1], up=False))
    try:
        async with idle:
            if outgoing.head is None:
                agent[1].write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
            else:
                server[1].write(outgoing.head)
                outgoing.bytes_up += len(outgoing.head)
            await down
            if outgoing.head is None:
                await up
            elif not outgoing.bytes_down:
                if up.done():
                    await up  # it may have been refused
                outgoing.reason = "the server went away"
                raise reverse_proxy.RequestRejected(502, "lost", "the server went away before it answered; try again")
            for _, writer in (agent, server):
                writer.close()
                with suppress(OSError):  # it is lost, and so closed
                    await writer.wait_closed()
    except TimeoutError:
        outgoing.reason = "idle"
    finally:
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        server[1].transport.abort()


async def _announced(pieces: AsyncIterator[bytes], length: int) -> AsyncIterator[bytes]:
    while length:
        if (piece := await anext(pieces, None)) is None:
            raise reverse_proxy.RequestRejected(400, "malformed", "the body ended early")
        yield piece[:length]
        length -= min(length, len(piece))
