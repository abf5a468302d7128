from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swarm.client import AsyncSwarmClient
from swarm.job import Job
from tests.swarm.server.support import Served, job, serving


@pytest.fixture
def wanted() -> Job:
    return job(steps=3)


@pytest.fixture
async def served(tmp_path: Path, wanted: Job) -> AsyncIterator[Served]:
    async with serving(tmp_path / "server", wanted) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncSwarmClient]:
    async with AsyncSwarmClient(served.url, served.admin) as made:
        yield made
