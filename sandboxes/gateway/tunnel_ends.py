"""A tunnel through the egress proxy: what comes at one end goes out at the other, until both have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandboxes.gateway.proxy import AgentConnection, Connections, Flow

IDLE_TIMEOUT_S = 300.0
"""A tunnel through which nothing went for so long is cut."""
ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"


class ConnectTunnel:
    """Two ends, and what went through."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._near = _End(self._passed_up, self._lost)
        self._far = _End(self._passed_down, self._lost)
        self._over: Callable[[], None] | None = None
        self._ends = 2
        self.deadline = float("inf")
        self.bytes_up = self.bytes_down = 0
        self.reason = ""
        """Why it was cut; empty when its ends ended it."""

    def far_end(self) -> Flow:
        """Return the end at the destination, to be connected."""
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

    def late(self) -> None:
        """Cut it: nothing went through for long."""
        self.reason = "idle"
        self.abort()

    def abort(self) -> None:
        """Cut both ends."""
        self._far.abort()
        self._near.abort()

    def _passed_up(self, size: int) -> None:
        self.bytes_up += size
        self._touch()

    def _passed_down(self, size: int) -> None:
        self.bytes_down += size
        self._touch()

    def _touch(self) -> None:
        self.deadline = asyncio.get_running_loop().time() + IDLE_TIMEOUT_S

    def _lost(self) -> None:
        self._ends -= 1
        if not self._ends and self._over is not None:
            self._connections.discard(self)
            self._over()


class _End(Flow):
    """One end."""

    def __init__(self, passed: Callable[[int], None], lost: Callable[[], None]) -> None:
        super().__init__()
        self._passed = passed
        self._lost = lost
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the other end before anything is read."""
        super().connection_made(transport)
        self.halt(True)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if self.other is not None:
            self._passed(len(data))
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end of this direction on; with the second one the tunnel is done."""
        self._ended = True
        other = self.other
        if not isinstance(other, _End) or other._ended or not other.transport.can_write_eof():
            return False
        other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """End the other one too, once it has written what it holds."""
        other = self.part()
        if other is not None:
            other.transport.close()
        self._lost()
