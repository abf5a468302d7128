"""Exports under way at once, those that nobody takes, and a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swarm.client import AsyncSwarmClient
from swarm.errors import StoreUnavailable, Unreachable
from swarm.server import export
from swarm.server.inspection import Inspection
from swarm.wire import EpisodeRecord
from tests.swarm.server.support import Answer, Served, eventually, serving

LARGE = 64 << 20
"""Bytes that no buffer between a server and a client takes."""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as running:
        lease = await running.begin("t", kind="eval")
        assert (await running.chat(lease, "one")).status == 200
        await running.end(lease, 1.0)
        yield running


class Held:
    """While its gate is shut, exports wait for their first episode."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = 0

    async def all_places_are_taken(self) -> None:
        await eventually(lambda: self.waiting, lambda waiting: waiting == export.MOST_AT_ONCE)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found, whole = Held(), Inspection.tokens

    async def waiting(self: Inspection, name: str) -> EpisodeRecord:
        found.waiting += 1
        await found.gate.wait()
        return await whole(self, name)

    monkeypatch.setattr(Inspection, "tokens", waiting)
    return found


@contextlib.asynccontextmanager
async def asked(served: Served, form: str = "openenv") -> AsyncIterator[aiohttp.ClientResponse]:
    key = {"authorization": f"Bearer {served.admin}"}
    async with served.http.get(f"{served.url}/samples?format={form}", headers=key) as answer:
        yield answer


async def exported(served: Served) -> int:
    async with asked(served) as answer:
        await answer.read()
        return answer.status


async def refused(served: Served) -> Answer:
    return await served.call("GET", "/samples", served.admin)


def left(folder: Path, name: str) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(name)]


async def test_more_than_a_few_at_once_are_told_to_come_again(served: Served, held: Held) -> None:
    under_way = [asyncio.create_task(exported(served)) for _ in range(export.MOST_AT_ONCE)]
    await held.all_places_are_taken()
    answer = await refused(served)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "throttled", "10")
    assert "found 2" in answer.message
    held.gate.set()
    assert await asyncio.gather(*under_way) == [200, 200]
    assert await exported(served) == 200


async def test_who_leaves_while_an_export_is_made_leaves_its_place(served: Served, held: Held) -> None:
    under_way = [asyncio.create_task(exported(served)) for _ in range(export.MOST_AT_ONCE)]
    await held.all_places_are_taken()
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)
    held.gate.set()
    await eventually(lambda: exported(served), lambda status: status == 200)


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [True, False])
async def test_who_takes_nothing_of_it_loses_its_place(
    served: Served, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(export, "STALLED_S", 600.0 if leaves else 0.2)
    monkeypatch.setattr(export, "training_trace", lambda *_: {"pad": "x" * LARGE})
    async with contextlib.AsyncExitStack() as open_ones:
        for _ in range(export.MOST_AT_ONCE):
            answer = await open_ones.enter_async_context(asked(served))
            assert answer.status == 200
        if leaves:
            assert (await refused(served)).status == 429
            await open_ones.aclose()
        monkeypatch.setattr(export, "training_trace", lambda *_: {})
        await eventually(lambda: exported(served), lambda status: status == 200)


async def test_what_was_cut_short_is_no_file(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def broken(self: export.Export) -> AsyncIterator[bytes]:
        yield b"{}\n"
        raise TimeoutError

    monkeypatch.setattr(export.Export, "pieces", broken)
    async with AsyncSwarmClient(served.url, served.admin) as client:
        with pytest.raises(Unreachable, match="did not send all"):
            await client.export(tmp_path / "traces.jsonl")
    assert not left(tmp_path, "traces")


@pytest.mark.parametrize("form", ["openenv", "parquet"])
async def test_a_full_disk_is_one_error_and_nothing_stays_of_the_export(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: Any
) -> None:
    made: list[Any] = []

    def full() -> Any:
        made.append(open("/dev/full", "w+b"))  # noqa: SIM115 - the server closes it
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    async with AsyncSwarmClient(served.url, served.admin) as client:
        for _ in range(export.MOST_AT_ONCE + 1):
            with pytest.raises(StoreUnavailable, match="no room"):
                await client.export(tmp_path / "out", form)
        assert not left(tmp_path, "out")
        assert [file.closed for file in made] == [True] * len(made)
        monkeypatch.undo()
        assert await client.export(tmp_path / "out", form) > 0
