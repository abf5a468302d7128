"""The relay: ports of the container's loopback that lead to sockets of the exchange folder.

It is all that a container has of a network, and works in one daemon thread of PID 1.

- A side that ends its sending (half-close) ends it on the other side too, after the last byte; no byte is changed.
- What one side does not take stops the reading from the other: memory is bounded by BUFFER_BYTES per direction.
- A socket that is absent, or that nobody serves, is tried again for PATIENCE_S, so that an agent does not notice a
  gateway that is started anew; after that the agent's connection is reset, and the next one may succeed.

Standard library only, any Python from 3.9 on; nothing is ever printed, for the standard error of PID 1 has one use.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping

BUFFER_BYTES = 1 << 16
MOST_CONNECTIONS = 400
"""Two descriptors each: they fit into 1024 open files beside those of PID 1."""
PATIENCE_S = 5.0
RETRY_S = 0.02
QUEUE = 1024

_RESET = struct.pack("ii", 1, 0)
_NOT_NOW = frozenset({errno.EAGAIN, errno.ENOENT, errno.ECONNREFUSED})
"""A queue that is full, a socket that is absent, one that nobody serves."""


class _SinkClosed(Exception):
    """What takes the bytes of a flow is closed."""


class _Flow:
    """One direction of a connection: what `source` sends goes to `sink`."""

    __slots__ = ("back", "ended", "from_agent", "held", "sink", "sink_gone", "source")

    back: _Flow

    def __init__(self, source: socket.socket, sink: socket.socket, from_agent: bool) -> None:
        self.from_agent = from_agent
        self.source = source
        self.sink = sink
        self.held = b""
        self.ended = False
        self.sink_gone = False

    def read(self, buffer: memoryview) -> None:
        """Pass on what has arrived, and hold what the sink does not take. Raises OSError when the source is gone."""
        try:
            size = self.source.recv_into(buffer)
        except BlockingIOError:
            return
        if size == 0:
            self.end()
        if self.ended or self.sink_gone:
            return
        sent = self._send(buffer[:size])
        if sent < size:
            self.held = bytes(buffer[sent:size])

    def end(self) -> None:
        self.ended = True
        if not self.sink_gone:
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError as error:
                self.sink_gone = True
                raise _SinkClosed from error

    def flush(self) -> None:
        self.held = self.held[self._send(memoryview(self.held)) :]

    @property
    def wanted(self) -> int:
        """The events of `source` that matter now: what it sends, and room for what is held for it."""
        reads = 0 if self.ended or self.held else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if self.back.held else 0)

    def _send(self, data: memoryview) -> int:
        try:
            return self.sink.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.sink_gone = True
            raise _SinkClosed from error


class _Relay:
    """The loop over all connections; only its own thread touches it once that has started."""

    def __init__(self, listeners: Mapping[socket.socket, str]) -> None:
        self._selector = selectors.DefaultSelector()
        self._listeners = listeners
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._waiting: deque[tuple[socket.socket, str, float]] = deque()
        """Agents' connections whose Unix sockets did not take one yet, with the paths and the ends of patience."""
        self._retry_at = 0.0
        self._open = 0
        self._accepting = False

    def run(self) -> None:
        while True:
            if not self._accepting and self._open < MOST_CONNECTIONS:
                self._accepting = True
                for listener in self._listeners:
                    self._selector.register(listener, selectors.EVENT_READ, listener)
            for key, events in self._selector.select(RETRY_S if self._waiting or not self._accepting else None):
                if isinstance(key.data, _Flow):
                    self._work(key.data, events)
                else:
                    self._accept(key.data)
            if self._waiting and time.monotonic() >= self._retry_at:
                for _ in range(len(self._waiting)):
                    self._settle(*self._waiting.popleft())
                self._retry_at = time.monotonic() + RETRY_S

    def _pause(self) -> None:
        if self._accepting:
            for listener in self._listeners:
                self._selector.unregister(listener)
            self._accepting = False

    def _accept(self, listener: socket.socket) -> None:
        try:
            agent, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is free
            self._pause()
            time.sleep(RETRY_S)
            return
        self._open += 1
        if self._open >= MOST_CONNECTIONS:
            self._pause()
        agent.setblocking(False)
        agent.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._settle(agent, self._listeners[listener], time.monotonic() + PATIENCE_S)

    def _settle(self, agent: socket.socket, path: str, deadline: float) -> None:
        try:
            gateway = _connect(path)
        except OSError as error:
            if error.errno in _NOT_NOW and time.monotonic() < deadline:
                self._waiting.append((agent, path, deadline))
            else:
                agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                agent.close()
                self._open -= 1
            return
        up, down = _Flow(agent, gateway, True), _Flow(gateway, agent, False)
        up.back, down.back = down, up
        self._watch(up)

    def _work(self, flow: _Flow, events: int) -> None:
        if flow.source.fileno() < 0:  # closed by an event of the same round
            return
        flushed = bool(events & selectors.EVENT_WRITE and flow.back.held)
        try:
            if flushed:
                flow.back.flush()
            if events & selectors.EVENT_READ and not flow.ended and not flow.held:
                flow.read(self._buffer)
        except _SinkClosed:  # what is for a side that is gone is dropped; a gateway may have answered before
            from_agent = flow if flow.from_agent else flow.back
            if from_agent.back.sink_gone or (flow.ended and flow.back.ended):
                self._close(flow)
            else:
                from_agent.held = b""
                self._watch(flow)
        except OSError:
            self._on_source_closed(flow)
        else:
            if flow.ended and flow.back.ended:
                self._close(flow)
            elif flow.ended or flow.held or flushed:
                self._watch(flow)

    def _on_source_closed(self, flow: _Flow) -> None:
        """End what comes from a side that is gone. A gateway that did not read all it was sent is one, and no more."""
        if flow.from_agent or flow.back.ended:
            self._close(flow)
            return
        try:
            flow.end()
        except _SinkClosed:
            self._close(flow)
        else:
            self._watch(flow)

    def _watch(self, flow: _Flow) -> None:
        for each in (flow, flow.back):
            side, wanted = each.source, each.wanted
            known = self._selector.get_map().get(side)
            if known is None and wanted:
                self._selector.register(side, wanted, each)
            elif known is not None and not wanted:
                self._selector.unregister(side)
            elif known is not None and known.events != wanted:
                self._selector.modify(side, wanted, each)

    def _close(self, flow: _Flow) -> None:
        for side in (flow.source, flow.sink):
            if side in self._selector.get_map():
                self._selector.unregister(side)
            side.close()
        self._open -= 1


def _connect(path: str) -> socket.socket:
    gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        gateway.setblocking(False)
        gateway.connect(path)
    except OSError:
        gateway.close()
        raise
    return gateway


def serve(ports: Mapping[int, str]) -> None:
    """Lead each port of 127.0.0.1 to its Unix socket from now on; returns once all of them listen."""
    listeners = {socket.create_server(("127.0.0.1", port), backlog=QUEUE): path for port, path in ports.items()}
    for listener in listeners:
        listener.setblocking(False)
    if listeners:
        threading.Thread(target=_Relay(listeners).run, name="relay", daemon=True).start()
