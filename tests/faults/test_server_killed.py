"""A server killed at any point and started again: what was acknowledged is trained once, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import get_environment
from swarm.environments.play import rounds
from swarm.job import Job
from tests.faults.harness import (
    DEADLINE_S,
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


PLAYS = 6
EVALUATED = job(evaluate_after=(1, 2), evaluation_episodes=PLAYS)


async def evaluator(server: Server, folder: Path, *more: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swarm.environments", "evaluate", "--during", "--environment", "guess",
        "--server", server.url, "--out", str(folder / "during.json"), "--episodes", str(PLAYS), "--seed", "7", *more,
        env={**os.environ, "AJET_TOKEN": server.token}, cwd=folder, stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(DEADLINE_S):
        _, said = await process.communicate()
    return process.returncode, said.decode()


def check_whole(path: Path) -> list[dict[str, Any]]:
    """Check that each version has its evaluation, of the tasks that its seed draws; return them."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["evaluations"]
    assert [each["policy_version"] for each in found] == [1, 2]
    for each in found:
        (chosen,) = rounds(get_environment("guess").tasks("hidden"), PLAYS, 7 + each["policy_version"])
        assert [episode["task_id"] for episode in each["episodes"]] == [task.id for task in chosen]
    return found


@pytest.mark.parametrize(
    "fault",
    [
        Fault("before_generation", nth=10),
        Fault("after_ended", nth=6),
        Fault("before_batchscheduled", nth=2),
    ],
    ids=lambda fault: f"{fault.point}-{fault.nth}",
)
async def test_a_server_killed_around_an_evaluation_waits_for_it_again_and_its_evaluator_stays(
    tmp_path: Path, fault: Fault
) -> None:
    """Of four training episodes, of two calls each, the first evaluation follows."""
    async with running(tmp_path / "server", fault) as server, Client(server, Books()) as client:
        await client.train(EVALUATED)
        process = await evaluator(server, tmp_path)
        playing = asyncio.create_task(play_to_the_end(client))
        await server.killed()
        await server.start()
        await playing
        assert await ended(process) == (0, "")
        assert server.lives == 2
    check_whole(tmp_path / "during.json")
