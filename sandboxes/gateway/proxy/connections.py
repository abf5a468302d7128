"""All connections of one proxy, with their deadlines, and the tasks beside them: none of them outlives the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

SWEEP_S = 1.0


class Watched(Protocol):
    """A connection with a deadline, in the loop's time."""

    deadline: float

    def late(self) -> None:
        """Act on a deadline that has passed."""
        ...

    def abort(self) -> None:
        """Cut the connection."""
        ...


class Connections:
    """The open connections. Deadlines are looked at every SWEEP_S, so that a request costs no timer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[Watched] = set()
        self._empty = asyncio.Event()
        self._closing = False
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether there may be no other."""
        return len(self._open) >= self._most

    def add(self, connection: Watched) -> None:
        """Watch over a connection."""
        self._open.add(connection)
        if self._closing:
            connection.abort()
        self._empty.clear()
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def discard(self, connection: Watched) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    async def close(self) -> None:
        """Cut all of them, and return once they are closed."""
        self._closing = True
        for connection in list(self._open):
            connection.abort()
        if self._open:
            await self._empty.wait()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweeping = loop.call_later(SWEEP_S, self._sweep) if self._open else None
        for connection in [connection for connection in self._open if connection.deadline <= now]:
            connection.late()


class BackgroundTasks:
    """The tasks of one proxy beside its connections, such as connecting to a server."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start one."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel those that still run, and return once they have ended."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
