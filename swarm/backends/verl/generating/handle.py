"""What the engine asks of a replica, wherever that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from swarm.backends.verl.generating.orders import Delivery, Order


class ReplicaHandle(Protocol):
    """One life of a replica: it is booted once, and once it is dead or killed another takes its place.

    Whatever waits has a bound. ReplicaDied says that this life is over; BackendError, that another would not do either.
    """

    async def boot(self) -> None:
        """Load the model; return once it could answer."""
        ...

    def submit(self, order: Order) -> None:
        """Have it generate; what comes of it is in `take`."""
        ...

    def cancel(self, key: int) -> None:
        """Have it forget an order."""
        ...

    async def take(self) -> Sequence[Delivery]:
        """Return what it generated; empty after some seconds in which there was nothing."""
        ...

    def load(self, version: int, buckets: Sequence[Any]) -> None:
        """Give it weights, and return once it serves them as `version`. Blocks, off or on the event loop.

        One that rests takes its device's memory again for them, and goes on with what waits.
        """
        ...

    def rest(self) -> None:
        """Have it stop, keep what is open, and give its device's memory back until the next `load`. Blocks."""
        ...

    def score(self, rows: Sequence[Sequence[int]], seconds: float) -> tuple[int, Sequence[Sequence[float]]]:
        """Return the version that it serves, and log-probs of each row's ids but the first at temperature 1. Blocks.

        Of a row as long as the context it leaves the last id out. BackendError where it rests.
        """
        ...

    def kill(self) -> None:
        """End it at once; safe to call twice."""
        ...
