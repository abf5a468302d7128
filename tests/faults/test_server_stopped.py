"""A server process that is stopped for longer than a lease, and goes on: nobody who lived loses an episode."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from swarm.client import AsyncSwarmClient, Episode, NamedTask
from tests.faults.harness import job, moments, running

STALL_S = 2.5
SAID = [{"role": "user", "content": "from 1 to 9"}]


async def test_a_stall_of_the_server_fences_no_episode_whose_heartbeats_wait_in_its_sockets(tmp_path: Path) -> None:
    """Four plays, with agents that only send heartbeats meanwhile; the batch is full, so both clocks would run."""
    wanted = job(steps=1, lease_ttl_s=1.0, drain_timeout_s=1.0)
    begun, over = asyncio.Queue[str](), asyncio.Event()

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(SAID)
        begun.put_nowait(episode.id)
        if begun.qsize() > 2:  # the first two end at once: the others are stragglers
            await over.wait()
        return 1.0

    async with running(tmp_path) as server, AsyncSwarmClient(server.url, server.token) as client:
        await client.ensure_training(wanted)
        playing = asyncio.create_task(client.rollout(agent, [NamedTask("a"), NamedTask("b")], concurrency=4))
        async for _ in moments():
            if begun.qsize() == 4 and (await client.status()).open_episodes == 2:
                break
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        server.signal(signal.SIGCONT)
        assert (await client.status()).open_episodes == 2
        over.set()
        summary = await playing
    assert (summary.episodes, summary.dropped) == (4, {})
    assert "event=fence" not in server.log
