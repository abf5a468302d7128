"""Erasing: what a front may not keep is deleted on the swarm server too, again and again until it is gone there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from swarm.client import AsyncSwarmClient
from swarm.errors import SwarmError
from swarm.passive.records import Records
from swarm.wire import MOST_ERASED, Erasure

log = logging.getLogger(__name__)
AGAIN_S = 5.0
"""Seconds until what could not be erased is tried again."""


class Eraser:
    """Erases what the records say is to be erased; `secret` proves whose the episodes are."""

    def __init__(self, client: AsyncSwarmClient, records: Records, secret: str) -> None:
        self._client = client
        self._records = records
        self._secret = secret
        self.waits_for: str | None = None
        """Why what was tried last is not erased yet; None where all of it is."""
        self._woken = asyncio.Event()
        self._one = asyncio.Lock()

    def wake(self) -> None:
        """There is something new to erase."""
        self._woken.set()

    async def run(self) -> None:
        """Erase for ever."""
        while True:
            with suppress(TimeoutError):  # nothing new: what is left from before is tried again
                async with asyncio.timeout(AGAIN_S):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001 - a full disk, a server away: whatever it was, it is tried again
                self.waits_for = str(error) or type(error).__name__
                log.warning("event=not_erased_yet reason=%s", type(error).__name__)
            await asyncio.sleep(0.1)  # what fails does not spin

    async def _round(self) -> None:
        if found := self._records.to_erase(MOST_ERASED):
            await self.erase(found)
            if len(found) == MOST_ERASED:
                self._woken.set()

    async def erase(self, episodes: Sequence[str]) -> None:
        """Erase these now as far as the server does; what it does not stays to be erased. Raises SwarmError."""
        async with self._one:
            for start in range(0, len(episodes), MOST_ERASED):
                part = episodes[start : start + MOST_ERASED]
                try:
                    done = await self._client.erase(self._secret, part)
                except SwarmError as error:
                    self.waits_for = error.message
                    raise
                self.waits_for = _why(done)
                self._records.tried(part, done.erased)


def _why(found: Erasure) -> str | None:
    """Return why some were left, None where none were."""
    left = f"{len(found.left)} episodes wait for a checkpoint that holds their batch, or for their team's decision"
    unknown = (
        f"{len(found.unknown)} episodes are not known to the swarm server: they were played on another one, or its "
        "store was replaced"
    )
    return "; ".join([*([left] if found.left else []), *([unknown] if found.unknown else [])]) or None
