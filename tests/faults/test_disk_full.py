"""A store whose disk is full: nothing is acknowledged that was not written, and work goes on once there is room."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.faults.books import check
from tests.faults.harness import Books, Client, Server, job, moments, play_to_the_end, running

WANTED = job()
PAGES = 100
LONG = " ".join(str(number) for number in range(3000))


async def full(server: Server, client: Client, books: Books) -> asyncio.Task[None]:
    """Let clients play until they are told that nothing can be written; return their task."""
    await client.train(WANTED)
    playing = asyncio.create_task(play_to_the_end(client))
    async for _ in moments():
        if "store_unavailable" in books.told:
            return playing
        assert not playing.done(), "the disk was never full"
    raise AssertionError("unreachable")


async def test_clients_of_a_full_disk_are_told_and_go_on_once_there_is_room(tmp_path: Path) -> None:
    books = Books()
    async with running(tmp_path, pages=PAGES) as server, Client(server, books, text=LONG) as client:
        playing = await full(server, client, books)
        server.signal(signal.SIGUSR1)
        await playing
        await check(books, WANTED, server)
        assert "database or disk is full" in server.log


async def test_a_server_killed_while_its_disk_is_full_recovers_what_it_acknowledged(tmp_path: Path) -> None:
    books = Books()
    async with running(tmp_path, pages=PAGES) as server, Client(server, books, text=LONG) as client:
        playing = await full(server, client, books)
        server.signal(signal.SIGKILL)
        await server.killed()
        await server.start()
        await client.train(WANTED)
        await playing
        await check(books, WANTED, server)
