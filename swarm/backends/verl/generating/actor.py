"""A replica as an actor of Ray, and what its driver holds of it. The only module here that touches Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from swarm.backends.protocols import BackendError
from swarm.backends.verl.generating.engines.spec import ReplicaDied, ReplicaSpec
from swarm.backends.verl.generating.orders import Delivery, Order
from swarm.backends.verl.generating.replica import TAKE_S, Replica
from swarm.backends.verl.processes.own_time import ready_within, within

BOOT_S: Final = 1800.0
"""Seconds within which a replica must have loaded its model."""
LOAD_S: Final = 1800.0
"""Seconds within which a replica must serve new weights."""
REST_S: Final = 300.0
"""Seconds within which a replica must have given its device's memory back."""
_SILENCE_S: Final = 60.0
"""Seconds without a sign of life, beyond `TAKE_S`, after which a replica counts as dead."""
_CALLS: Final = 1000
"""Calls of one actor that may be under way at once; what generates is none of them."""
_SEEDS: Final = 1_000_003


class RayReplica:
    """Implements `ReplicaHandle` by an actor. `options` are Ray's, for where it is placed."""

    def __init__(self, spec: ReplicaSpec, number: int, life: int, options: Mapping[str, Any]) -> None:
        self._spec = replace(spec, seed=(spec.seed * _SEEDS + number * 1009 + life) % (1 << 31))
        self._options = options
        self._actor: Any = None

    async def boot(self) -> None:
        """Make the actor and load the model; ReplicaDied where it dies meanwhile, BackendError where it cannot."""
        import ray

        made = ray.remote(Replica).options(max_restarts=0, max_concurrency=_CALLS, **self._options)
        self._actor = made.remote(self._spec)
        await self._awaited(self._actor.boot.remote(), BOOT_S, "did not load its model")

    def submit(self, order: Order) -> None:
        """Send an order."""
        self._actor.submit.remote(order)

    def cancel(self, key: int) -> None:
        """Send that nobody waits for an order any more."""
        self._actor.cancel.remote(key)

    async def take(self) -> Sequence[Delivery]:
        """Return what came; ReplicaDied where the actor is gone or silent."""
        found: Sequence[Delivery] = await self._awaited(self._actor.take.remote(), TAKE_S + _SILENCE_S, "was silent")
        return found

    async def health(self) -> dict[str, Any]:
        """Return what the replica says of itself."""
        found: dict[str, Any] = await self._awaited(self._actor.health.remote(), _SILENCE_S, "was silent")
        return found

    def load(self, version: int, buckets: Sequence[Any]) -> None:
        """Have it load references to buckets; return once it confirmed the version."""
        confirmed = self._done(self._actor.load.remote(version, list(buckets)), f"did not load version {version}")
        if confirmed != version:
            raise BackendError(f"expected a replica to confirm version {version}, it confirmed {confirmed}")

    def rest(self) -> None:
        """Have it rest; see `ReplicaHandle`."""
        self._done(self._actor.rest.remote(), "did not give its memory back", REST_S)

    def score(self, rows: Sequence[Sequence[int]], seconds: float) -> tuple[int, Sequence[Sequence[float]]]:
        """Have it score rows; see `ReplicaHandle`."""
        found: tuple[int, Sequence[Sequence[float]]]
        found = self._done(self._actor.score.remote(rows), "did not score", seconds)
        return found

    def kill(self) -> None:
        """End the actor; its engine's processes see that and end."""
        import ray

        if self._actor is not None:
            ray.kill(self._actor, no_restart=True)

    async def _awaited(self, reference: Any, seconds: float, otherwise: str) -> Any:
        try:
            return await within(asyncio.wrap_future(reference.future()), seconds)
        except TimeoutError:
            raise ReplicaDied(f"it {otherwise} within {seconds:.0f} s") from None
        except Exception as error:
            raise _told(error) from error

    def _done(self, reference: Any, otherwise: str, seconds: float = LOAD_S) -> Any:
        import ray

        if not ready_within(ray, reference, seconds):
            raise ReplicaDied(f"it {otherwise} within {seconds:.0f} s")
        try:
            return ray.get(reference)
        except Exception as error:
            raise _told(error) from error


def _told(error: Exception) -> Exception:
    """Return what an error that came over Ray says: the replica's own, or that its process is gone."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, BackendError | ReplicaDied):
            return type(cause)(str(cause))
        return BackendError(f"{type(cause).__name__}: {cause}")
    if isinstance(error, ray.exceptions.ActorUnschedulableError):
        return BackendError(f"Ray has no place for a replica: {error}")
    if isinstance(error, ray.exceptions.RayActorError):
        return ReplicaDied("its process ended")
    return error if isinstance(error, BackendError | ReplicaDied) else ReplicaDied(f"{type(error).__name__}: {error}")
