"""The way to the Internet: a forward proxy with an allow-list, a resolver of our side, and a log.

It takes `CONNECT host:port`, for what is encrypted (and stays so), and plain requests in absolute form. It promises
that

- only what an entry of the list covers is reached; names are resolved here, and an address that is not of the public
  Internet is left out, unless the entry is that very address (`sandboxes.gateway.destinations`);
- the address that was checked is the address that is connected to: no name is resolved twice;
- each request is a line of the log, refused or not, with how much went each way, and with nothing of what was said.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

from sandboxes.gateway.destinations import Address, Destination, host_of, not_public, port_of, split
from sandboxes.gateway.egress_log import EgressLog
from sandboxes.gateway.proxy import (
    AgentConnection,
    BackgroundTasks,
    Connections,
    Flow,
    Head,
    RequestRejected,
    ServerConnection,
)
from sandboxes.gateway.proxy.heads import passed_on, request_head, without_claims
from sandboxes.gateway.tunnel_ends import ConnectTunnel

__all__ = ["Destination", "Egress", "Resolve", "resolve_here"]

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
class _Asked:
    """Where a request wants to go; `line` is what it asks there, None for a tunnel."""

    host: str | Address
    port: int
    line: bytes | None = None

    @classmethod
    def of(cls, head: Head) -> _Asked:
        """Read the target of a request; raise RequestRejected."""
        try:
            if head.method == b"CONNECT":
                return cls(*split(head.target.decode("latin-1")))
            return cls._absolute(head.target)
        except ValueError as error:
            reason = f"expected CONNECT host:port, or http://host/...; {error}"
            raise RequestRejected(400, "malformed", reason, closing=True) from None

    @classmethod
    def _absolute(cls, target: bytes) -> _Asked:
        if (found := _ABSOLUTE.fullmatch(target)) is None:
            raise ValueError("the target of the request is neither")
        authority = found[1].decode("latin-1")
        host, colon, port = authority.rpartition(":")
        if not colon or authority.endswith("]"):
            host, port = authority, "80"
        return cls(host_of(host), port_of(port), (found[2] or b"/") + (found[3] or b""))

    @property
    def authority(self) -> bytes:
        """Host and port as a Host header names them."""
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else str(self.host)
        return (host if self.port == 80 else f"{host}:{self.port}").encode()


@dataclass(slots=True)
class _Outgoing:
    """A request on its way: what the log will say of it."""

    asked: _Asked
    began: float
    verdict: Verdict = "failed"
    reason: str = "the agent went away"
    task: asyncio.Task[None] | None = None


async def resolve_here(name: str, port: int) -> Sequence[Address]:
    """Return the addresses of a name, as this machine sees it."""
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
        self._outgoing: dict[AgentConnection, _Outgoing] = {}

    def count(self, what: str) -> None:
        """Count what was refused; what is allowed is counted when it begins."""
        if what != "forwarded":
            self._count(f"egress {what}")

    def wants_whole(self, agent: AgentConnection, head: Head) -> int:
        """Collect nothing."""
        return 0

    def begin(self, agent: AgentConnection, head: Head, body: bytes | None) -> None:
        """Check a request's destination against the allow-list, and connect to it."""
        asked = _Asked.of(head)
        outgoing = self._outgoing[agent] = _Outgoing(asked, time.monotonic())
        if not any(entry.covers(asked.host, asked.port) for entry in self._allow):
            raise self._refused(outgoing, "not on the list", f"{asked.host}:{asked.port} is not on the allow-list")
        agent.halt(True)
        outgoing.task = self._tasks.start(self._connect(agent, head, outgoing))

    def over(self, agent: AgentConnection) -> None:
        """Log how a request ended, and stop connecting for it."""
        outgoing = self._outgoing.pop(agent, None)
        if outgoing is None:
            return
        if outgoing.task is not None and outgoing.task is not asyncio.current_task():
            outgoing.task.cancel()
        self._write(outgoing, agent.bytes_up, agent.bytes_down)

    async def close(self) -> None:
        """Stop connecting."""
        await self._tasks.close()

    async def _connect(self, agent: AgentConnection, head: Head, outgoing: _Outgoing) -> None:
        asked = outgoing.asked
        tunnel = ConnectTunnel(self._connections) if asked.line is None else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                addresses = await self._addresses(outgoing)
                server = await _connected(addresses, asked.port, ServerConnection if tunnel is None else tunnel.far_end)
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
            self._ask(agent, head, asked, server)
        else:
            del self._outgoing[agent]
            tunnel.open(agent, lambda: self._tunnelled(outgoing, tunnel))

    def _ask(self, agent: AgentConnection, head: Head, asked: _Asked, server: Flow) -> None:
        assert asked.line is not None
        kept = [header for header in without_claims(passed_on(head.headers)) if header[0] != b"host"]
        headers = [(b"host", asked.authority), *kept, (b"connection", b"close")]
        agent.send_first(request_head(head.method, asked.line, headers, head.length))
        agent.attach(server)

    def _tunnelled(self, outgoing: _Outgoing, tunnel: ConnectTunnel) -> None:
        outgoing.reason = tunnel.reason
        self._write(outgoing, tunnel.bytes_up, tunnel.bytes_down)

    async def _addresses(self, outgoing: _Outgoing) -> Sequence[Address]:
        """Return the addresses that may be connected to. Raises RequestRejected, and OSError when the name has none."""
        host = outgoing.asked.host
        if not isinstance(host, str):
            return [host]  # covered, so an entry is this very address
        found = await self._resolve(host, outgoing.asked.port)
        if not found:
            raise OSError("no address")
        barred = {address: not_public(address) or _ours(address) for address in found}
        public = [address for address, why in barred.items() if why is None]
        if not public:
            raise self._refused(outgoing, str(barred[found[0]]), f"the name {host} stands for what is not public")
        return public

    def _refused(self, outgoing: _Outgoing, reason: str, message: str) -> RequestRejected:
        outgoing.verdict, outgoing.reason = "refused", reason
        return RequestRejected(403, f"refused: {reason}", f"this sandbox may not go there: {message}", closing=True)

    def _write(self, outgoing: _Outgoing, up: int, down: int) -> None:
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


def _ours(address: Address) -> str | None:
    """Return why an address may not be reached by a name: it may be public, and this machine's own. Sends nothing."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return None
        return "this machine" if ipaddress.ip_address(probe.getsockname()[0]) == address else None


async def _connected(addresses: Sequence[Address], port: int, make: Callable[[], Flow]) -> Flow:
    """Connect to the first of the addresses that takes a connection; raise OSError if none does."""
    loop = asyncio.get_running_loop()
    last: OSError = ConnectionRefusedError()
    for address in addresses:
        try:
            return (await loop.create_connection(make, str(address), port))[1]
        except OSError as error:
            last = error
    raise last
