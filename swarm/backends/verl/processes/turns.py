"""Whose turn it is on devices that a learner shares with what generates, of which each takes most of the memory.

Promises: nobody begins to boot in a learner's turn, and a learner's turn begins once nobody boots any more; what is
waited for has a bound. Does not know who learns, nor what boots.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from swarm.backends.protocols import BackendError
from swarm.backends.verl.processes.own_time import OwnTime


class DeviceTurns:
    """The turns of one training; a learner's begins and ends on any thread, and boots are of one event loop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._booting = 0
        self._learning = False

    def begin(self, seconds: float) -> None:
        """Begin the learner's turn; raise BackendError where somebody boots for so long. Blocks."""
        patience = OwnTime(seconds)
        with self._changed:
            self._learning = True  # or boots that follow one another could keep it off for ever
            while self._booting:
                self._changed.wait(patience.slice)
                if self._booting and not patience.spend():
                    raise BackendError(f"expected what boots beside the learner to be up within {seconds:.0f} s")

    def end(self) -> None:
        """End the learner's turn, if it is one."""
        with self._changed:
            self._learning = False

    @asynccontextmanager
    async def booting(self, seconds: float) -> AsyncIterator[None]:
        """Boot within; BackendError where the learner's turn, which is waited for first, lasts for so long."""
        patience = OwnTime(seconds)
        while not self._boots():
            await asyncio.sleep(patience.slice)  # it ends on another thread
            if not patience.spend():
                raise BackendError(f"expected the learner's turn to end within {seconds:.0f} s")
        try:
            yield
        finally:
            with self._changed:
                self._booting -= 1
                self._changed.notify_all()

    def _boots(self) -> bool:
        with self._changed:
            self._booting += not self._learning
            return not self._learning
