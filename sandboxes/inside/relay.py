"""The relay: ports of the container's loopback that lead to sockets of the exchange folder.

It is all that a container has of a network, and works in one daemon thread of PID 1.

- A side that ends its sending (half-close) ends it on the other side too, after the last byte; no byte is changed.
- What one side does not take stops the reading from the other: memory is bounded by BUFFER_BYTES per direction.
- A socket that is absent, or that nobody serves, is tried again for PATIENCE_S, so that an agent does not notice a
  gateway that is started anew; after that the agent's connection is reset, and the next one may succeed.

Standard library only, any Python from 3.9 on; nothing is ever printed, for the standard error of PID 1 has one use.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

BUFFER_BYTES = 1 << 16
MOST_CONNECTIONS = 400
"""Two descriptors each: they fit into 1024 open files beside those of PID 1."""
PATIENCE_S = 5.0
RETRY_S = 0.02
QUEUE = 1024

_RESET = struct.pack("ii", 1, 0)
_NOT_NOW = frozenset({errno.EAGAIN, errno.ENOENT, errno.ECONNREFUSED})
"""A queue that is full, a socket that is absent, one that nobody serves."""


async def _serve(listener: socket.socket, path: str, open_: set[asyncio.Task[None]]) -> None:
    """Take connections for the socket at `path`, as long as less than MOST_CONNECTIONS are `open_` in all."""
    loop = asyncio.get_running_loop()
    while True:
        while len(open_) >= MOST_CONNECTIONS:
            await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED)
        try:
            agent, _ = await loop.sock_accept(listener)
        except OSError:  # it went away by itself, or no descriptor is free
            await asyncio.sleep(RETRY_S)
            continue
        passing = loop.create_task(_lead(agent, path))
        open_.add(passing)
        passing.add_done_callback(open_.discard)


async def _lead(agent: socket.socket, path: str) -> None:
    """Lead an agent's connection to the socket at `path` until both have ended or the agent is gone."""
    with agent, suppress(OSError):
        agent.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            gateway = await _connect(path)
        except OSError:
            agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise
        with gateway:
            ways = [asyncio.ensure_future(_pass_up(agent, gateway)), asyncio.ensure_future(_pass_down(gateway, agent))]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)  # the loop has let go of both sockets before they are closed


async def _connect(path: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            gateway.setblocking(False)
            gateway.connect(path)
            return gateway
        except OSError as error:
            gateway.close()
            if error.errno not in _NOT_NOW or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(RETRY_S)


async def _pass_up(agent: socket.socket, gateway: socket.socket) -> None:
    """Pass on what an agent sends. What is for a gateway that is gone is dropped: it may have answered before."""
    loop, there = asyncio.get_running_loop(), True
    while data := await loop.sock_recv(agent, BUFFER_BYTES):
        try:
            if there:
                await loop.sock_sendall(gateway, data)
        except OSError:
            there = False
    with suppress(OSError):
        gateway.shutdown(socket.SHUT_WR)


async def _pass_down(gateway: socket.socket, agent: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        data = b""
        with suppress(OSError):  # a gateway that did not read all it was sent ends so
            data = await loop.sock_recv(gateway, BUFFER_BYTES)
        if not data:
            break
        await loop.sock_sendall(agent, data)
    agent.shutdown(socket.SHUT_WR)


def serve(ports: Mapping[int, str]) -> None:
    """Lead each port of 127.0.0.1 to its Unix socket from now on; returns once all of them listen."""
    listeners = [(socket.create_server(("127.0.0.1", port), backlog=QUEUE), path) for port, path in ports.items()]
    for listener, _ in listeners:
        listener.setblocking(False)

    async def serve_all() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        open_: set[asyncio.Task[None]] = set()
        await asyncio.gather(*(_serve(listener, path, open_) for listener, path in listeners))

    if listeners:
        threading.Thread(target=lambda: asyncio.run(serve_all()), name="relay", daemon=True).start()
