"""The places of an engine's replicas: who is in one, what it has open, and how often one died there.

Promises: a request belongs to one life of a replica, and ends with it; deaths are counted within `WINDOW_S` alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from swarm.backends.protocols import BackendError, Chunk
from swarm.backends.verl.generating.handle import ReplicaHandle
from swarm.backends.verl.generating.orders import Delivery
from swarm.backends.verl.processes.own_time import Silence

WINDOW_S: Final = 900.0
"""Seconds that a replica must have served for the deaths before it to be forgiven."""


LOOK_S: Final = 90.0
"""Seconds at most between two looks at a replica's silence: more have passed only where this process did not run."""


class Mailbox:
    """Chunks of one request until who asked takes them; used on the event loop alone."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Chunk | BackendError] = asyncio.Queue()

    def put(self, found: Chunk | BackendError) -> None:
        """Deliver a chunk, or the error that ends the request."""
        self._queue.put_nowait(found)

    async def take(self) -> Chunk:
        """Return the next chunk; raise the error that stands in its place."""
        found = await self._queue.get()
        if isinstance(found, BackendError):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class Published:
    """A version's weights, as references to buckets that every replica can fetch."""

    version: int
    buckets: Sequence[Any]


@dataclass(slots=True, eq=False)
class Life:
    """A replica from its boot to its death. `silence`: since it last brought something, or had nothing to bring."""

    handle: ReplicaHandle
    open: dict[int, Mailbox] = field(default_factory=dict)
    silence: Silence = field(default_factory=Silence)
    published: Published | None = None
    loading: bool = False
    resting: bool = False
    """Whether it has given its memory back, and so brings nothing until it has loaded weights."""

    def deliver(self, found: Delivery, lost: type[BackendError]) -> None:
        """Hand over to who asked, if somebody still waits."""
        if mailbox := self.open.get(found.key):
            mailbox.put(found.chunk if found.chunk is not None else lost(found.lost))

    def end(self, error: BackendError) -> None:
        """Fail all that is open."""
        for mailbox in self.open.values():
            mailbox.put(error)
        self.open.clear()

    def silent(self, patience: float) -> bool:
        """Return whether requests have waited longer than `patience` seconds for anything to come."""
        if not self.open or self.loading or self.resting:
            self.silence.end()
        return self.silence.lasts(LOOK_S) > patience


@dataclass(slots=True, eq=False)
class ReplicaPlace:
    """Where one replica at a time lives; `serving` while it takes requests."""

    number: int
    life: Life | None = None
    serving: bool = False
    lives: int = 0
    gone: str = ""
    """Why nobody will live here any more."""
    served_since: float | None = None
    deaths: int = 0

    def die(self) -> int:
        """Count a death; return how many there were since one of them served for `WINDOW_S`."""
        now = time.monotonic()
        if self.served_since is not None and now - self.served_since > WINDOW_S:
            self.deaths = 0
        self.served_since = None
        self.deaths += 1
        return self.deaths
