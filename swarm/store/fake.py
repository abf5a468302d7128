"""The fake store: keeps the changes in a list, forgets them with the process; for tests of what is written when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from swarm.errors import StoreRefused, StoreUnavailable
from swarm.store.tables.records import Change, Kept
from swarm.wire import EpisodeList, EpisodeRecord


class FakeStore:
    """`changes` holds all that was written, in order. `hold()` makes writes wait; `fail` makes them raise.

    `broken` is what it says of itself, and makes every write be refused for good.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.fail: str | None = None
        self.broken: str | None = None
        self._released = asyncio.Event()
        self._released.set()

    def hold(self) -> None:
        """Make every write wait for `release`."""
        self._released.clear()

    def release(self) -> None:
        """Let held writes go on."""
        self._released.set()

    async def write(self, *changes: Change) -> None:
        """Keep the changes; raise StoreUnavailable with `fail` where that is set."""
        await self._released.wait()
        if self.broken is not None:
            raise StoreRefused(self.broken)
        if self.fail is not None:
            raise StoreUnavailable(self.fail)
        self.changes += changes

    def note(self, *changes: Change) -> None:
        """Keep the changes."""
        self.changes += changes

    async def episodes(self, limit: int) -> EpisodeList:
        """Return no episodes: nothing is read back from a fake."""
        return EpisodeList(episodes=())

    async def episode(self, episode: str) -> EpisodeRecord | None:
        """Return None."""
        return None

    async def kept(self) -> Kept:
        """Return no episodes."""
        return Kept()

    async def history(
        self, after: int, most: int, *, newest: bool = False
    ) -> Sequence[tuple[int, Mapping[str, float]]]:
        """Return nothing."""
        return ()

    def failure(self) -> str | None:
        """Return `broken`."""
        return self.broken

    async def close(self) -> None:
        """Nothing to let go of."""
