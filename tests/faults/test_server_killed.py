"""A server killed at any point and started again: what was acknowledged is trained once, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.environments import get_environment
from swarm.environments.play import rounds
from swarm.errors import SwarmError
from swarm.job import Job
from tests.faults.harness import (
    DEADLINE_S,
    Books,
    Client,
    Server,
    asks_twice,
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


async def asks_by_its_own_means(episode: Episode[Any]) -> float:
    """An agent with an HTTP client of its own, whose errors say nothing to us."""
    try:
        return await asks_twice(episode)
    except SwarmError as error:
        raise RuntimeError("connection error") from error


@pytest.mark.parametrize(
    ("point", "agent"),
    [
        ("before_begin_reply", asks_twice),
        ("in_generation", asks_twice),
        ("in_generation", asks_by_its_own_means),
        ("after_ended", asks_twice),
    ],
)
async def test_a_rollout_rides_out_a_restart(tmp_path: Path, point: str, agent: Any) -> None:
    wanted = job(steps=2, episodes_per_step=80)
    tasks = [NamedTask(str(number)) for number in range(40)]
    async with running(tmp_path, Fault(point, nth=70)) as server, AsyncSwarmClient(server.url, server.token) as client:
        await client.ensure_training(wanted)
        playing = asyncio.create_task(client.rollout(agent, tasks, concurrency=80))
        await server.killed()
        await server.start()
        summary = await playing
        status = await client.status()
        assert status.finished
        assert summary.episodes == status.metrics["lease/trained"] == 160  # who played it knows that it counts


PAGES = 100
LONG = " ".join(str(number) for number in range(3000))
LONGEST_S = 0.05
"""Longest delay of a request; requests overtake each other because each has its own."""


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


class Proxy:
    """A network that repeats, delays and reorders control-plane requests, and loses replies, by a seeded stream."""

    def __init__(self, target: str, seed: int) -> None:
        self.target = target
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._session: Any = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path.startswith("/v1/") or request.method == "GET":
            return await self._forward(request, body)
        await self._delay()
        if self._random.random() < 0.4:
            self.done["repeated"] += 1
            replies = await asyncio.gather(*(self._late(request, body) for _ in range(2)))
            return self._random.choice(replies)
        reply = await self._forward(request, body)
        if self._random.random() < 0.2:
            self.done["lost"] += 1
            assert request.transport is not None
            request.transport.abort()
        return reply

    async def _late(self, request: web.Request, body: bytes) -> web.Response:
        await self._delay()
        return await self._forward(request, body)

    async def _delay(self) -> None:
        self.done["delayed"] += 1
        await asyncio.sleep(self._random.uniform(0.0, LONGEST_S))

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
        async with self._session.request(
            request.method, self.target + request.path_qs, data=body, headers=headers
        ) as reply:
            kept = {name: reply.headers[name] for name in ("content-type", "retry-after") if name in reply.headers}
            return web.Response(body=await reply.read(), status=reply.status, headers=kept)


async def test_repeated_reordered_and_lost_requests_count_once(tmp_path: Path) -> None:
    wanted, books = job(lease_ttl_s=0.4, drain_timeout_s=0.4), Books()
    async with running(tmp_path) as server:
        proxy = Proxy(server.url, seed=1)
        async with proxy.open() as url, Client(server, books, url=url) as client:
            await client.train(wanted)
            await play_to_the_end(client, workers=6)
            await check(books, wanted, server)
    assert min(proxy.done[what] for what in ("delayed", "repeated", "lost")) > 0


PLAYS = 6
EVALUATED = job(evaluate_after=(1, 2), evaluation_episodes=PLAYS)
AGENT = """
import asyncio
from pathlib import Path

async def agent(episode):
    while Path("stuck").exists() and len(list(Path().glob("play-*"))) >= 2:
        Path("reached").touch()
        await asyncio.sleep(0.01)
    Path(f"play-{episode.id}").touch()
    await episode.chat([{"role": "user", "content": "hi"}])
    return 1.0, True
"""


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


async def test_after_a_killed_evaluator_another_one_plays_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "stuck").touch()
    async with running(tmp_path / "server") as server, Client(server, Books()) as client:
        await client.train(EVALUATED)
        process = await evaluator(server, tmp_path, "--agent", "agent.py:agent")
        playing = asyncio.create_task(play_to_the_end(client))
        async for _ in moments():
            awaited = (await client.until_answered(client.swarm.status)).awaited_evaluations
            if (tmp_path / "reached").exists() and 0 < awaited < PLAYS:
                break
        process.send_signal(signal.SIGKILL)
        await process.wait()
        (tmp_path / "stuck").unlink()
        assert await ended(await evaluator(server, tmp_path, "--agent", "agent.py:agent")) == (0, "")
        await playing
    check_whole(tmp_path / "during.json")
