"""A replica that is no model: a fake, for what the engine does with replicas. Its ids and log-probs are made up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from swarm.backends.protocols import BackendError, Chunk, NoRoom
from swarm.backends.verl.generating.engines.spec import ReplicaDied
from swarm.backends.verl.generating.orders import Delivery, Order


class FakeReplica:
    """Answers each order with id 1, its number and its life, when told to (`answer`)."""

    def __init__(self, number: int, life: int) -> None:
        self.number, self.life = number, life
        self.version = 0
        self.orders: dict[int, Order] = {}
        self.cancelled: list[int] = []
        self.loaded: list[int] = []
        self.unbootable = self.dead = self.unloadable = False
        self.full = 0
        self.booted = self.resting = self.restless = False
        self.asleep_until: asyncio.Event | None = None
        self._found: asyncio.Queue[Delivery | None] = asyncio.Queue()

    async def boot(self) -> None:
        if self.asleep_until:
            await self.asleep_until.wait()
        if self.unbootable:
            raise BackendError("no memory for it")
        self.booted = True

    def submit(self, order: Order) -> None:
        self.orders[order.key] = order

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)
        self.orders.pop(key, None)

    def answer(self, *, finish: bool = True) -> None:
        assert not self.resting
        for key in list(self.orders):
            chunk = Chunk((1, self.number, self.life), (-1.0,) * 3, self.version, "stop" if finish else None)
            self._found.put_nowait(Delivery(key, chunk))
            if finish:
                del self.orders[key]

    def lose(self, reason: str) -> None:
        for key in list(self.orders):
            self._found.put_nowait(Delivery(key, None, reason))
            del self.orders[key]

    def die(self) -> None:
        self.dead = True
        self._found.put_nowait(None)

    async def take(self) -> Sequence[Delivery]:
        found = await self._found.get()
        if found is None or self.dead:
            raise ReplicaDied("it was shot")
        return [found]

    def load(self, version: int, buckets: Sequence[Any]) -> None:
        if self.dead:
            raise ReplicaDied("it was shot")
        if self.full:
            self.full -= 1
            raise NoRoom("/tmp has no room: free space there")
        if self.unloadable:
            raise BackendError("expected all weights, missed lm_head")
        self.version = version
        self.resting = False
        self.loaded.append(version)

    def rest(self) -> None:
        if self.dead:
            raise ReplicaDied("it was shot")
        if self.restless:
            raise BackendError("vLLM could not sleep")
        self.resting = True

    def score(self, rows: Sequence[Sequence[int]], seconds: float) -> tuple[int, Sequence[Sequence[float]]]:
        if self.dead:
            raise ReplicaDied("it was shot")
        if self.resting:
            raise BackendError("it rests")
        return self.version, [[-1.0] * (len(row) - 1) for row in rows]

    def kill(self) -> None:
        self.dead = True
