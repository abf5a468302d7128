"""Backends that take long to start, kept from test to test: the next one that wants the same job has one at once.

What is kept is brought back to how it was when it had started, weights, version and draws, by a checkpoint of then.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from swarm.backends.protocols import BackendError
from swarm.backends.verl.backend import VerlBackend


class KeptBackends:
    """Started backends that nobody uses now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle: list[VerlBackend] = []
        self._first: dict[int, Path] = {}
        self._numbers = count()

    async def take(self, backend: VerlBackend) -> VerlBackend:
        """Return this backend, started now, or one of the same job that is kept, as it was right after its start."""
        for place, kept in enumerate(self._idle):
            if kept.job == backend.job:
                return self._idle.pop(place)
        await backend.start()
        self._first[id(backend)] = checkpoint = self._folder / f"first-{next(self._numbers)}"
        await asyncio.to_thread(backend.learner.save, checkpoint)
        return backend

    async def give(self, backend: VerlBackend) -> None:
        """Bring a backend back to its beginning and keep it; end one that its test stopped or broke."""
        if backend.failure() is not None:
            await self._end(backend)
            return
        try:
            await asyncio.to_thread(backend.learner.load, self._first[id(backend)])
            await asyncio.to_thread(backend.publish)
        except BackendError:
            await self._end(backend)
            return
        self._idle.append(backend)

    async def close(self) -> None:
        """End all."""
        while self._idle:
            await self._end(self._idle.pop())

    async def _end(self, backend: VerlBackend) -> None:
        self._first.pop(id(backend), None)
        await backend.stop()
