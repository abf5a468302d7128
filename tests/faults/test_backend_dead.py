"""A backend that breaks or dies: in every state the server FAILS with the reason, within a bound, and tells all why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm.client.asynchronous import NamedTask
from swarm.errors import EngineUnavailable, ServerFailed
from swarm.wire import ServerState, Status
from tests.faults.harness import DEADLINE_S, SAID, Books, Client, Server, job, moments, places, refused, running
from tests.faults.points import Fault

_ROLLING = {ServerState.ROLLING, ServerState.ROLLING_POST}
_SYNCING = {ServerState.WEIGHT_SYNCING}
ENDS = {
    Fault("boot", what="break"): {ServerState.BOOTING},
    Fault("boot", what="die"): {ServerState.BOOTING},
    Fault("before_generation", what="break"): _ROLLING,
    Fault("before_generation", what="die"): _ROLLING,
    Fault("after_generation", what="die"): _ROLLING,
    Fault("before_generation", nth=9, what="break"): _ROLLING,  # of the second step
    **{
        Fault(point, what="break"): _SYNCING
        for point in ("before_update", "after_update", "before_publish", "before_save", "before_rename")
    },
}


async def failed(client: Client) -> Status:
    async for _ in moments():
        status = await client.swarm.status()
        if status.state is ServerState.FAILED:
            return status
    raise AssertionError("unreachable")


async def players_are_told(client: Client) -> None:
    """Let clients play: each must be told that the server failed, and none may wait for ever."""
    shared = places(3)
    async with asyncio.timeout(DEADLINE_S):
        told = await asyncio.gather(*(client.play_on(shared) for _ in range(6)), return_exceptions=True)
    assert all(isinstance(error, ServerFailed) for error in told), told


def transitions(server: Server) -> list[str]:
    return [line.split("event=state ")[1] for line in server.log.splitlines() if "event=state " in line]


@pytest.mark.parametrize("fault", list(ENDS), ids=lambda fault: f"{fault.what}-{fault.point}-{fault.nth}")
async def test_a_backend_that_is_gone_fails_the_server_with_the_reason(tmp_path: Path, fault: Fault) -> None:
    async with running(tmp_path, fault) as server, Client(server, Books()) as client:
        try:
            await client.train(job())
            await players_are_told(client)
        except ServerFailed:
            assert fault.point == "boot"
        status = await failed(client)
        assert status.reason is not None
        assert f"it broke at {fault.point}" in status.reason
        assert any(transitions(server)[-1].startswith(f"from={state} to=FAILED") for state in ENDS[fault])
        error = await refused(client.swarm.begin(NamedTask("t"), wait_s=5.0))
        assert isinstance(error, ServerFailed)
        assert fault.point in error.message


async def test_an_engine_that_dies_while_a_batch_is_drained_is_noticed_there(tmp_path: Path) -> None:
    async with (
        running(tmp_path, Fault("before_generation", nth=4, what="die")) as server,
        Client(server, Books()) as client,
    ):
        await client.train(job())
        episodes = [await client.swarm.begin(NamedTask(f"t{number // 2}"), wait_s=1.0) for number in range(4)]
        assert (await client.swarm.status()).state is ServerState.ROLLING_POST
        told = await asyncio.gather(*(episode.chat(SAID) for episode in episodes), return_exceptions=True)
        assert isinstance(told[-1], ServerFailed)
        assert transitions(server)[-1].startswith("from=ROLLING_POST to=FAILED")


async def test_a_failed_server_serves_again_once_its_engine_was_stopped_and_started(tmp_path: Path) -> None:
    async with running(tmp_path, Fault("before_update", what="break")) as server, Client(server, Books()) as client:
        await client.train(job())
        await players_are_told(client)
        await client.swarm.stop()
        assert isinstance(await refused(client.swarm.begin(NamedTask("t"))), EngineUnavailable)
