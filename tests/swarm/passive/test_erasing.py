"""What is to be erased is tried until it is gone, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarm.passive import erasing
from swarm.passive.erasing import Eraser
from swarm.wire import Erasure


class FullDisk:
    """Records of one episode, whose first note finds no room."""

    def __init__(self) -> None:
        self.left, self.gone, self.failures = ["e1"], asyncio.Event(), 1

    def to_erase(self, most: int) -> list[str]:
        return self.left[:most]

    def tried(self, episodes: Sequence[str], erased: Sequence[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.left = [each for each in self.left if each not in erased]
        self.gone.set()


async def test_a_full_disk_ends_no_eraser(monkeypatch: pytest.MonkeyPatch) -> None:
    async def erase(secret: str, episodes: Sequence[str]) -> Any:
        return Erasure(erased=tuple(episodes), left=(), unknown=())

    monkeypatch.setattr(erasing, "AGAIN_S", 0.01)
    records = FullDisk()
    eraser = Eraser(cast(Any, SimpleNamespace(erase=erase)), cast(Any, records), "secret")
    running = asyncio.create_task(eraser.run())
    await asyncio.wait_for(records.gone.wait(), 20)
    assert not running.done()
    assert records.left == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
