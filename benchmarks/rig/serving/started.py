"""A server brought to the point where episodes can begin, and training episodes begun on it."""

from __future__ import annotations

import asyncio

import aiohttp

from rig.serving.servers import ServerProcess
from swarm.job import Job

JOB = Job(backend="fake", episodes_per_step=65_536, group_size=8, max_context=1_000_000, lease_ttl_s=3600.0)


async def start(server: ServerProcess) -> None:
    """Load the job, start the engine, and wait until episodes can begin."""
    async with session(server) as http:
        await http.post("/job", data=JOB.model_dump_json())
        await http.post("/engine/start")
        while (await (await http.get("/status")).json())["state"] != "ROLLING":  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)


async def begin(server: ServerProcess, episodes: int) -> list[str]:
    """Begin training episodes, 8 of each task; return their model keys."""
    keys = []
    async with session(server) as http:
        for number in range(episodes):
            async with http.post("/episodes", json={"task_id": f"task-{number // 8}"}) as reply:
                keys.append(str((await reply.json())["api_key"]))
    return keys


def session(server: ServerProcess) -> aiohttp.ClientSession:
    """Return a client session as the server's administrator."""
    headers = {"authorization": f"Bearer {server.token}"}
    return aiohttp.ClientSession(server.url, headers=headers, raise_for_status=True)
