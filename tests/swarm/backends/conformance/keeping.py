"""Backends that take long to start, kept from test to test: the next one that wants the same job has one at once.

What is kept is brought back to how it was when it had started, weights, version and draws, by a checkpoint of then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swarm.backends.protocols import Backend, BackendError

MOST = 3
"""Backends that stand idle at most, for each takes gigabytes."""


class KeptBackends:
    """Started backends that nobody uses now, the one that was used last at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle: list[tuple[str, Backend]] = []
        self._first: dict[int, Path] = {}

    async def take(self, fields: Mapping[str, Any], make: Callable[[], Backend]) -> Backend:
        """Return a started backend of these fields of a job, as it is right after its start."""
        wanted = _key(fields)
        for place, (key, backend) in enumerate(self._idle):
            if key == wanted:
                del self._idle[place]
                return backend
        while len(self._idle) >= MOST:
            await self._end(self._idle.pop(0)[1])
        backend = make()
        await backend.start()
        self._first[id(backend)] = checkpoint = self._folder / f"first-{len(self._first)}"
        await asyncio.to_thread(backend.learner.save, checkpoint)
        return backend

    async def give(self, fields: Mapping[str, Any], backend: Backend) -> None:
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
        self._idle.append((_key(fields), backend))

    async def close(self) -> None:
        """End all."""
        while self._idle:
            await self._end(self._idle.pop()[1])

    async def _end(self, backend: Backend) -> None:
        self._first.pop(id(backend), None)
        await backend.stop()


def _key(fields: Mapping[str, Any]) -> str:
    return json.dumps({name: str(value) for name, value in fields.items()}, sort_keys=True)
