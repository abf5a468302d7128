"""A wall clock that jumps by hours: leases live and end by the time that really passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.client.asynchronous import NamedTask
from swarm.errors import LeaseLost
from tests.faults.books import check
from tests.faults.harness import Books, Client, job, moments, play_to_the_end, refused, running

HOUR_S = 3600.0
SAID = [{"role": "user", "content": "from 1 to 9"}]


@pytest.mark.parametrize("hours", [5.0, -5.0])
async def test_a_jump_of_the_clock_expires_no_lease_and_keeps_none_alive(tmp_path: Path, hours: float) -> None:
    wanted, books = job(lease_ttl_s=1.0), Books()
    async with running(tmp_path) as server, Client(server, books) as client:
        await client.train(wanted)
        kept = await client.swarm.begin(NamedTask("a"))
        silent = await client.swarm.begin(NamedTask("a"))
        server.clock.value = hours * HOUR_S
        async for _ in moments():
            await kept.heartbeat()
            if (await client.swarm.status()).open_episodes == 1:
                break
        assert isinstance(await refused(silent.heartbeat()), LeaseLost)
        await kept.chat(SAID)
        server.clock.value = 0.0
        await kept.heartbeat()
        await kept.abort()
        await play_to_the_end(client)
        await check(books, wanted, server)
