"""A server killed at any point and started again: what was acknowledged is trained once, and nobody is left waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.books import check
from tests.faults.harness import Books, Client, Fault, Server, job, play_to_the_end, running

POINTS = [
    Fault("before_begin_reply", nth=2),
    Fault("before_generation", nth=3),
    Fault("in_generation", nth=3),
    Fault("before_captured", nth=3),
    Fault("after_captured", nth=3),
    Fault("before_call_reply", nth=3),
    Fault("after_call_reply", nth=3),
    Fault("before_ended", nth=2),
    Fault("after_ended", nth=2),
    Fault("before_end_reply", nth=3),
    Fault("after_end_reply", nth=3),
    Fault("before_instep", nth=2),
    Fault("after_instep", nth=2),
    Fault("before_update", nth=2),
    Fault("after_update", nth=2),
    Fault("before_save"),
    Fault("before_rename"),
    Fault("after_save"),
    Fault("before_consumed"),
    Fault("after_consumed"),
    Fault("before_instep", nth=3),
    Fault("before_rename", nth=2),
    Fault("after_consumed", nth=2),
]
WANTED = job()


async def outlived(server: Server, client: Client, *later: Fault) -> None:
    """Let clients play to the end of the job while the server dies at its fault, and then at each of the later ones.

    Nobody tells a server that starts again what it was doing.
    """
    await client.train(WANTED)
    playing = asyncio.create_task(play_to_the_end(client))
    try:
        for fault in (*later, None):
            await server.killed()
            await server.start(fault)
        await playing
    finally:
        playing.cancel()


@pytest.mark.parametrize("fault", POINTS, ids=lambda fault: f"{fault.point}-{fault.nth}")
async def test_a_server_killed_anywhere_loses_nothing_and_trains_nothing_twice(tmp_path: Path, fault: Fault) -> None:
    books = Books()
    async with running(tmp_path, fault) as server, Client(server, books) as client:
        await outlived(server, client)
        await check(books, WANTED, server)
        assert server.lives == 2


async def test_a_server_killed_again_and_again_ends_with_the_same_books(tmp_path: Path) -> None:
    books = Books()
    faults = [Fault("before_ended", nth=3), Fault("after_instep"), Fault("after_update"), Fault("before_consumed")]
    async with running(tmp_path, faults[0]) as server, Client(server, books) as client:
        await outlived(server, client, *faults[1:])
        await check(books, WANTED, server)
        assert server.lives == len(faults) + 1
