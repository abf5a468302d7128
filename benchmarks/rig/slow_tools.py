"""Agents whose tools take long, in client processes of their own, and how close a server comes to the tools' own time.

An episode is a call, a tool that takes `TOOL_S`, and a second call. All episodes of a batch can be played at once, so a
step takes `TOOL_S` at least: that is the bound. The server waits less than that for silent agents (`PATIENT_S`), so it
has to tell one whose client lives from one that is gone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rig.servers import ServerProcess
from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.job import Job

TOOL_S = 4.0
PATIENT_S = 1.0
TASKS = 64
CLIENTS = 4


def slow_tools(server: ServerProcess, steps: int) -> dict[str, Any]:
    """Train some steps with several clients of one stream; return steps per hour, the bound, and what was played."""
    job = Job(
        backend="fake", episodes_per_step=64, group_size=8, steps=steps, max_context=100_000,
        drain_timeout_s=PATIENT_S, lease_ttl_s=2 * PATIENT_S,
    )  # fmt: skip
    with ProcessPoolExecutor(CLIENTS, multiprocessing.get_context("spawn")) as pool:
        for ready in [pool.submit(_ready, server.url, server.token) for _ in range(CLIENTS)]:
            ready.result()
        asyncio.run(_start(server, job))
        began = time.perf_counter()
        each = job.episodes_per_step // CLIENTS
        found = [pool.submit(_play, server.url, server.token, each) for _ in range(CLIENTS)]
        played = [task for client in found for task in client.result()]
    seconds = time.perf_counter() - began
    begun = steps * job.episodes_per_step
    return {
        "tool, s": TOOL_S,
        "drain_timeout_s": PATIENT_S,
        "client processes": CLIENTS,
        "steps per hour over the tools' own bound": round(steps * TOOL_S / seconds, 3),
        "episodes played over those trained": round(len(played) / begun, 3),
        "tasks of the pass that were played, of those that fit": round(
            len(set(played)) / min(TASKS, begun // job.group_size), 3
        ),
    }


async def _start(server: ServerProcess, job: Job) -> None:
    async with AsyncSwarmClient(server.url, server.token) as client:
        await client.ensure_training(job)


def _ready(url: str, token: str) -> None:
    """Have a process begun and everything imported, which is no part of a training."""

    async def look() -> None:
        async with AsyncSwarmClient(url, token) as client:
            await client.status()

    asyncio.run(look())
    time.sleep(0.5)  # busy for so long, so that the others get a process of their own


def _play(url: str, token: str, concurrency: int) -> list[str]:
    return asyncio.run(_played(url, token, concurrency))


async def _played(url: str, token: str, concurrency: int) -> list[str]:
    """Play until the job is finished; return the task of each episode that ended."""
    tasks = [NamedTask(f"task {number}") for number in range(TASKS)]
    played: list[str] = []

    async def agent(episode: Episode[Any]) -> float:
        question = [{"role": "user", "content": "which tool?"}]
        reply = await episode.chat(question)
        await asyncio.sleep(TOOL_S)
        told = {"role": "user", "content": "it says 7"}
        await episode.chat([*question, {"role": "assistant", "content": reply.content}, told])
        played.append(episode.task.id)
        return 1.0

    async with AsyncSwarmClient(url, token) as client:
        await client.rollout(agent, tasks, concurrency=concurrency)
    return played
