"""Tasks that go on beside connections, such as connecting: none of them outlives its proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Errands:
    """The tasks of one proxy."""

    def __init__(self) -> None:
        self._going: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start one."""
        task = asyncio.get_running_loop().create_task(work)
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return task

    async def close(self) -> None:
        """Cancel those that go on, and return once they have ended."""
        going = list(self._going)
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
