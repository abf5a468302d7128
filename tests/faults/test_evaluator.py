"""Who evaluates during training, killed, or with a server that is: each version has one evaluation, which is whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import get_environment
from swarm.environments.play import rounds
from tests.faults.harness import DEADLINE_S, Books, Client, Server, job, moments, play_to_the_end, running
from tests.faults.points import Fault

pytestmark = pytest.mark.slow

PLAYS = 6
WANTED = job(evaluate_after=(1, 2), evaluation_episodes=PLAYS)
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


async def waits(client: Client, wanted: Callable[[int], bool]) -> None:
    async for _ in moments():
        if wanted((await client.until_answered(client.swarm.status)).awaited_evaluations):
            return


async def looks_on(client: Client) -> None:
    """Ask for the status on and on: how often an evaluator does depends on how fast the machine is."""
    async for _ in moments(2 * DEADLINE_S):
        await client.until_answered(client.swarm.status)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("before_generation", nth=10),
        Fault("after_ended", nth=6),
        Fault("before_end_reply", nth=4 + PLAYS),
        Fault("before_status_reply", nth=100),
        Fault("before_batchscheduled", nth=2),
    ],
    ids=lambda fault: f"{fault.point}-{fault.nth}",
)
async def test_a_server_killed_around_an_evaluation_waits_for_it_again_and_its_evaluator_stays(
    tmp_path: Path, fault: Fault
) -> None:
    """Of four training episodes, of two calls each, the first evaluation follows."""
    async with running(tmp_path / "server", fault) as server, Client(server, Books()) as client:
        await client.train(WANTED)
        process = await evaluator(server, tmp_path)
        playing = asyncio.create_task(play_to_the_end(client))
        looking = asyncio.create_task(looks_on(client))
        await server.killed()
        await server.start()
        await playing
        assert await ended(process) == (0, "")
        looking.cancel()
        assert server.lives == 2
    check_whole(tmp_path / "during.json")


@contextlib.asynccontextmanager
async def stuck(folder: Path) -> AsyncIterator[tuple[Server, Client, asyncio.subprocess.Process]]:
    """Serve a training whose evaluator is stuck after two plays, while `stuck` is there; at the end all is played."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "stuck").touch()
    async with running(folder / "server") as server, Client(server, Books()) as client:
        await client.train(WANTED)
        process = await evaluator(server, folder, "--agent", "agent.py:agent")
        playing = asyncio.create_task(play_to_the_end(client))
        yield server, client, process
        await playing
    check_whole(folder / "during.json")


async def test_a_server_killed_while_plays_are_in_flight_gets_as_many_as_it_waits_for_and_the_evaluation_is_one(
    tmp_path: Path,
) -> None:
    async with stuck(tmp_path) as (server, client, process):
        await waits(client, lambda awaited: awaited == PLAYS - 2)
        server.signal(signal.SIGKILL)
        await server.killed()
        await server.start()
        await waits(client, lambda awaited: awaited == PLAYS)
        (tmp_path / "stuck").unlink()
        assert await ended(process) == (0, "")


async def test_after_a_killed_evaluator_another_one_plays_all_of_it(tmp_path: Path) -> None:
    async with stuck(tmp_path) as (server, client, process):
        await waits(client, lambda awaited: (tmp_path / "reached").exists() and 0 < awaited < PLAYS)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        (tmp_path / "stuck").unlink()
        assert await ended(await evaluator(server, tmp_path, "--agent", "agent.py:agent")) == (0, "")
