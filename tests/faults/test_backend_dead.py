"""A backend that breaks or dies: in every state the server FAILS with the reason, and tells all why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swarm.client import AsyncSwarmClient, NamedTask
from swarm.errors import ServerFailed
from swarm.wire import ServerState
from tests.faults.harness import SAID, asks_twice, job
from tests.faults.points import Fault, FaultyBackend, Points
from tests.swarm.server.support import Served, serving

TASKS = [NamedTask(f"task-{number}") for number in range(3)]
_ROLLING = {ServerState.ROLLING, ServerState.ROLLING_POST}
ENDS = {
    Fault("boot", what="break"): {ServerState.BOOTING},
    Fault("boot", what="die"): {ServerState.BOOTING},
    Fault("before_generation", what="break"): _ROLLING,
    Fault("before_generation", what="die"): _ROLLING,
    Fault("after_generation", what="die"): _ROLLING,
    Fault("before_generation", nth=9, what="break"): _ROLLING,  # of the second step
    **{
        Fault(point, what="break"): {ServerState.WEIGHT_SYNCING}
        for point in ("before_update", "after_update", "before_publish", "before_save", "before_rename")
    },
}


@contextlib.asynccontextmanager
async def dying(folder: Path, fault: Fault) -> AsyncIterator[tuple[Served, AsyncSwarmClient]]:
    points = Points(fault)
    async with (
        serving(folder, start=False, backend=lambda loaded: FaultyBackend(loaded, points=points)) as served,
        AsyncSwarmClient(served.url, served.admin) as client,
    ):
        yield served, client


def transition(caplog: pytest.LogCaptureFixture) -> str:
    return [line for line in caplog.messages if "event=state " in line][-1].split("event=state ")[1]


async def train(client: AsyncSwarmClient) -> None:
    await client.ensure_training(job())
    await client.rollout(asks_twice, TASKS, concurrency=6)


@pytest.mark.parametrize("fault", list(ENDS), ids=lambda fault: f"{fault.what}-{fault.point}-{fault.nth}")
async def test_a_backend_that_is_gone_fails_the_server_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level("INFO")
    async with dying(tmp_path, fault) as (served, client):
        with pytest.raises(ServerFailed) as failed:
            await train(client)
        status = await served.until(state="FAILED")
        assert f"it broke at {fault.point}" in status["reason"]
        assert fault.point in failed.value.message
        assert any(transition(caplog).startswith(f"from={state} to=FAILED") for state in ENDS[fault])
        with pytest.raises(ServerFailed, match=fault.point):
            await client.begin(NamedTask("t"), wait_s=5.0)


async def test_an_engine_that_dies_while_a_batch_is_drained_is_noticed_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with dying(tmp_path, Fault("before_generation", nth=4, what="die")) as (_, client):
        await client.ensure_training(job())
        episodes = [await client.begin(NamedTask(f"t{number // 2}"), wait_s=1.0) for number in range(4)]
        assert (await client.status()).state is ServerState.ROLLING_POST
        told = await asyncio.gather(*(episode.chat(SAID) for episode in episodes), return_exceptions=True)
        assert isinstance(told[-1], ServerFailed)
        assert transition(caplog).startswith("from=ROLLING_POST to=FAILED")
