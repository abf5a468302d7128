"""A replica with a clock: when orders reach it, when their last token is there, and what a token costs on its way."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import (
    Any,
    ClassVar,
)

from swarm.backends.protocols import Finish, Sampling
from swarm.backends.verl.replica import RayReplica, Replica, RequestRunner
from swarm.backends.verl.types import Delivery, GenerateCommand, Piece

Moments = dict[int, float]
"""Seconds of the monotonic clock, by an order's key."""


class _Ready:
    """A `TokenStream` whose tokens are there at once: what is left is the way from vLLM to the outbox."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    async def stream(self, name: str, ids: Sequence[int], sampling: Sampling, salt: str) -> AsyncIterator[Piece]:
        for _ in range(self._tokens):
            yield Piece((1,), (-1.0,))

    async def abort(self, names: Sequence[str]) -> None:
        """There is nothing to stop."""


class TimedReplica(Replica):
    """What runs in an actor."""

    async def boot(self) -> None:
        """See `Replica`."""
        await super().boot()
        self._arrived: Moments = {}
        self._finished: Moments = {}
        outbox = self._require_runner().outbox
        add = outbox.add

        def noted(key: int, version: int, piece: Piece, finish: Finish | None) -> None:
            add(key, version, piece, finish)
            if finish is not None:
                self._finished[key] = time.perf_counter()

        outbox.add = noted  # type: ignore[method-assign]

    def submit(self, order: GenerateCommand) -> None:
        """See `Replica`."""
        self._arrived[order.key] = time.perf_counter()
        super().submit(order)

    def moments(self) -> tuple[Moments, Moments]:
        """Return when orders arrived and when their last token was there, since the last time."""
        found = self._arrived, self._finished
        self._arrived, self._finished = {}, {}
        return found

    async def relayed(self, orders: int, tokens: int) -> float:
        """Return the seconds that this process takes for each token between vLLM and whoever takes, vLLM left out."""
        segments = RequestRunner(_Ready(tokens))
        begun = time.perf_counter()
        for key in range(orders):
            segments.begin(GenerateCommand(key, (1, 2), Sampling(max_tokens=tokens), 2 + tokens))
        taken = 0
        while taken < orders * tokens:
            await segments.outbox.wait(1.0)
            taken += sum(len(each.chunk.ids) for each in segments.outbox.take() if each.chunk)
        return (time.perf_counter() - begun) / taken


class TimedHandle(RayReplica):
    """What the driver holds of it: `RayReplica` that notes when it sends an order and when its last token comes."""

    made: ClassVar[list[TimedHandle]] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent: Moments = {}
        self._came: Moments = {}

    async def boot(self) -> None:
        """See `RayReplica`."""
        TimedHandle.made.append(self)
        await super().boot()

    def submit(self, order: GenerateCommand) -> None:
        """See `RayReplica`."""
        self._sent[order.key] = time.perf_counter()
        super().submit(order)

    async def take(self) -> Sequence[Delivery]:
        """See `RayReplica`."""
        found = await super().take()
        now = time.perf_counter()
        self._came.update({each.key: now for each in found if each.chunk is not None and each.chunk.finish})
        return found

    def latencies(self) -> list[float]:
        """Return, for each call since the last time, the seconds on the way to the replica and back."""
        import ray

        arrived, finished = ray.get(self._actor.moments.remote())
        found = [
            arrived[key] - self._sent[key] + self._came[key] - finished[key] for key in self._came if key in finished
        ]
        self._sent.clear()
        self._came.clear()
        return found

    def relayed(self, orders: int, tokens: int) -> float:
        """See `TimedReplica`."""
        import ray

        return float(ray.get(self._actor.relayed.remote(orders, tokens)))
