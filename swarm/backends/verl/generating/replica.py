"""A replica: an engine in an actor's process, its open requests, and how it comes by new weights.

Promises: weights change only while nothing generates, all of them or, with an error, none that is served; prefixes of
older weights are not found afterwards; one that rests gives its memory back, keeps its requests, and takes memory again
with the next weights; where the engine's processes are gone, whoever takes is told so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from swarm.backends.protocols import NO_ROOM, BackendError, NoRoom
from swarm.backends.verl.generating.engines import vllm
from swarm.backends.verl.generating.engines.spec import ReplicaDied, ReplicaSpec
from swarm.backends.verl.generating.orders import Delivery, Order
from swarm.backends.verl.generating.segments import Segments
from swarm.backends.verl.processes.output import ChildOutput
from swarm.backends.verl.processes.own_time import OwnTime
from swarm.backends.verl.processes.surroundings import forget_secrets

_log = logging.getLogger(__name__)

TAKE_S: Final = 2.0
"""Seconds after which `take` returns though there is nothing: that is a replica's sign of life."""
GATHER_S: Final = 0.02
"""Seconds within which tokens are gathered into one answer."""
_SHARED: Final = Path("/dev/shm")
_SPARE: Final = 1 << 30
ROOM_S: Final = 120.0
"""Seconds that weights which are half loaded wait for room."""
_AGAIN_S: Final = 1.0


class Replica:
    """What runs in an actor; its methods are called from elsewhere, all on the actor's event loop."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        self._model: vllm.VllmStream | None = None
        self._output: ChildOutput
        self._segments: Segments | None = None
        self._resting = False

    async def boot(self) -> None:
        """Load the model; BackendError says why it could not."""
        vllm.check()
        forget_secrets()
        vllm.surround(self._spec)
        vllm.require_servable(self._spec)
        self._output = ChildOutput()
        try:
            with self._output.taken():
                self._model = vllm.VllmStream(self._spec)
        except Exception as error:
            raise vllm.boot_error(error, self._output.lines(wait_s=1.0), self._spec) from error
        self._segments = Segments(self._model)

    def submit(self, order: Order) -> None:
        """Generate for an order."""
        self._running().begin(order)

    def cancel(self, key: int) -> None:
        """Forget an order."""
        self._running().cancel([key])

    async def take(self) -> list[Delivery]:
        """Return what was generated; ReplicaDied where the engine's processes are gone."""
        outbox = self._running().outbox
        await outbox.wait(TAKE_S)
        await asyncio.sleep(GATHER_S)
        if self._served().dead:
            raise ReplicaDied(f"the engine's process ended; it said last: {self._output.quoted()}")
        return outbox.take()

    def health(self) -> dict[str, Any]:
        """Return its process, the version that it serves, its open requests, and whether the engine's are gone."""
        running = self._running()
        return {"pid": os.getpid(), "version": running.version, "open": running.count, "dead": self._served().dead}

    async def rest(self) -> None:
        """Stop all that generates, keeping what it has, and give memory back until the next `load`."""
        await self._running().pause()
        await self._served().sleep()
        self._resting = True

    async def score(self, rows: Sequence[Sequence[int]]) -> tuple[int, list[list[float]]]:
        """Return the version that it serves, and the log-probs that each row's ids but the first have under it.

        Raise BackendError while it rests: it has no weights then.
        """
        if self._resting:
            raise BackendError("it rests, as the learner has its device: a colocated replica has no weights then")
        model, most = self._served(), self._spec.max_context - 1
        found = [await model.score(f"score-{number}", ids[:most]) for number, ids in enumerate(rows)]
        return self._running().version, found

    async def load(self, version: int, buckets: Sequence[Any]) -> int:
        """Load weights from references to buckets, and serve them as `version`, which is returned.

        Raise NoRoom, with nothing changed, where there is none for the first; ReplicaDied where others find none.
        """
        running, model = self._running(), self._served()
        first = await asyncio.to_thread(_written, await buckets[0]) if buckets else None
        await running.pause()
        if self._resting:
            await model.wake("weights")
        await model.begin_weights()
        if first is not None:
            await _load_from(model, first)
        for bucket in buckets[1:]:
            await _load_from(model, await _written_at_last(await bucket))
        if missing := await model.finish_weights():
            raise BackendError(
                f"expected all weights of {self._spec.folder}, found none named {', '.join(missing[:3])}"
            )
        if self._resting:  # only now, when nothing that loading took beside the weights is there any more
            await model.wake("kv_cache")
            self._resting = False
        await model.forget_prefixes()
        running.resume(version)
        return version

    def _running(self) -> Segments:
        if self._segments is None:
            raise ReplicaDied("it was not booted")
        return self._segments

    def _served(self) -> vllm.VllmStream:
        if self._model is None:
            raise ReplicaDied("it was not booted")
        return self._model


_BUCKET: Final = "bucket.pt"


async def _load_from(model: vllm.VllmStream, folder: Path) -> None:
    try:
        await model.load_bucket(str(folder / _BUCKET))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _written_at_last(bucket: dict[str, Any]) -> Path:
    """Write a bucket, however often there is no room for it within `ROOM_S`; ReplicaDied then: half is loaded."""
    patience = OwnTime(ROOM_S)
    while True:
        try:
            return await asyncio.to_thread(_written, bucket)
        except NoRoom as error:
            _log.warning("event=weights_wait reason=%r", str(error))
            if not patience.spend():
                raise ReplicaDied(str(error)) from error
            await asyncio.sleep(_AGAIN_S)


def _written(bucket: dict[str, Any]) -> Path:
    """Write a bucket where workers of this machine can map it, in memory if there is room; return its folder.

    NoRoom, with nothing left, where no disk has any.
    """

    import torch

    size = sum(weight.numel() * weight.element_size() for weight in bucket.values())
    in_memory = _SHARED.is_dir() and shutil.disk_usage(_SHARED).free > size + _SPARE
    place = _SHARED if in_memory else Path(tempfile.gettempdir())
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="ajet-weights-", dir=place))
        with (folder / _BUCKET).open("wb") as file:
            torch.save(dict(bucket), file)  # workers read plain types alone
    except BaseException as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise NoRoom(
                f"{place} has no room for {size:,} bytes of weights that a replica is to load: free space there, "
                "or let TMPDIR name a folder that has it"
            ) from error
        raise
    return folder
