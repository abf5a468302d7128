"""A server killed at any point and started again: what was acknowledged is trained once, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from swarm.job import Job
from tests.faults.harness import (
    Books,
    Client,
    Server,
    check,
    job,
    moments,
    play_to_the_end,
    running,
)
from tests.faults.points import Fault

pytestmark = pytest.mark.slow

WANTED = job()
POINTS = (
    "before_begin_reply 2, before_generation 3, in_generation 3, before_callcaptured 3, after_callcaptured 3, "
    "before_call_reply 3, after_call_reply 3, before_ended 2, after_ended 2, before_end_reply 3, after_end_reply 3, "
    "before_batchscheduled 2, after_batchscheduled 2, before_update 2, after_update 2, before_publish 2, "
    "before_save 1, before_rename 1, after_save 1, before_checkpointsaved 1, after_checkpointsaved 1, "
    "before_batchscheduled 3, before_rename 2, after_checkpointsaved 2"
)
OVERLAPPED = (
    "before_generation 20, before_batchscheduled 2, after_batchscheduled 2, before_update 2, after_update 2, "
    "before_publish 2, before_rename 1, after_save 1, before_checkpointsaved 1, after_ended 6"
)


async def outlived(server: Server, client: Client, *later: Fault, wanted: Job = WANTED) -> None:
    """Let clients play to the end of the job while the server dies at its fault, and then at each of the later ones.
    Nobody tells a server that starts again what it was doing."""
    await client.train(wanted)
    playing = asyncio.create_task(play_to_the_end(client))
    try:
        for fault in (*later, None):
            await server.killed()
            await server.start(fault)
        await playing
    finally:
        playing.cancel()


@pytest.mark.parametrize(
    ("staleness", "place"),
    [(staleness, place) for staleness, places in enumerate((POINTS, OVERLAPPED)) for place in places.split(", ")],
)
async def test_a_server_killed_anywhere_loses_nothing_and_trains_nothing_twice(
    tmp_path: Path, staleness: int, place: str
) -> None:
    """With staleness, rollout and update overlap."""
    point, nth = place.split()
    books, wanted = Books(), job(max_staleness=staleness)
    async with running(tmp_path, Fault(point, int(nth))) as server, Client(server, books) as client:
        await outlived(server, client, wanted=wanted)
        await check(books, wanted, server)
        assert server.lives == 2


async def test_a_server_killed_again_and_again_ends_with_the_same_books(tmp_path: Path) -> None:
    books = Books()
    faults = [
        Fault("before_ended", nth=3),
        *map(Fault, ("after_batchscheduled", "after_update", "before_checkpointsaved")),
    ]
    async with running(tmp_path, faults[0]) as server, Client(server, books) as client:
        await outlived(server, client, *faults[1:])
        await check(books, WANTED, server)
        assert server.lives == len(faults) + 1


PAGES = 100
LONG = " ".join(str(number) for number in range(3000))


async def full(server: Server, client: Client, books: Books) -> asyncio.Task[None]:
    await client.train(WANTED)
    playing = asyncio.create_task(play_to_the_end(client))
    async for _ in moments():
        if "store_unavailable" in books.told:
            return playing
        assert not playing.done(), "the disk was never full"
    raise AssertionError("unreachable")


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
