"""A network that repeats, delays, reorders and loses: verbs are idempotent, so the books balance all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.books import check
from tests.faults.harness import Books, Client, job, play_to_the_end, running
from tests.faults.proxy import Proxy


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_repeated_reordered_and_lost_requests_count_once(tmp_path: Path, seed: int) -> None:
    wanted, books = job(lease_ttl_s=0.4, drain_timeout_s=0.4), Books()
    async with running(tmp_path) as server:
        proxy = Proxy(server.url, seed)
        async with proxy.open() as url, Client(server, books, url=url) as client:
            await client.train(wanted)
            await play_to_the_end(client, workers=6)
            await check(books, wanted, server)
    assert min(proxy.done[what] for what in ("delayed", "repeated", "lost")) > 0
