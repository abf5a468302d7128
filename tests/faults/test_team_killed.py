"""A server of a team killed in either phase: all episodes of the team are ended, or none."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from swarm.client import AsyncSwarmClient
from swarm.client.async_client import NamedTask
from swarm.client.teams import Team
from swarm.errors import EpisodeEnded, LeaseLost, TeamAborted
from swarm.wire import EpisodeSummary
from tests.faults.harness import (
    DEADLINE_S,
    SAID,
    Books,
    Client,
    Server,
    job,
    moments,
    newest_weights,
    running,
    stored_episodes,
)
from tests.faults.points import Fault

pytestmark = pytest.mark.slow

WANTED = job(steps=1)
ENDED = {"ended", "in_step", "consumed", "dropped"}
TEAMS = 4
"""As many as the one batch of each server has places: a team that comes to nothing is replaced."""


async def play_team(clients: dict[str, Client], task: str) -> dict[str, str]:
    while True:
        episodes = {}
        try:
            for role, client in clients.items():
                begin = partial(client.swarm.begin, NamedTask(task), wait_s=1.0)
                episodes[role] = await client.until_answered(begin)
                await client.until_answered(partial(episodes[role].chat, SAID))
            await Team(episodes, decider="decider", patience_s=DEADLINE_S).end(dict.fromkeys(clients, 1.0))
        except (TeamAborted, LeaseLost, EpisodeEnded):
            for episode in episodes.values():
                await asyncio.gather(episode.abort("its team came to nothing"), return_exceptions=True)
            continue
        return {role: episode.id for role, episode in episodes.items()}


async def written(server: Server) -> dict[str, EpisodeSummary]:
    async with AsyncSwarmClient(server.url, server.token) as client:
        async for _ in moments():
            if (await client.status()).finished:
                break
        await client.stop()
    return stored_episodes(server.directory)


@pytest.mark.parametrize("role", ["decider", "other"])
@pytest.mark.parametrize("point", ["before_episodeprepared", "after_episodeprepared", "before_ended", "after_ended"])
async def test_a_team_ends_whole_whichever_server_dies(tmp_path: Path, role: str, point: str) -> None:
    faults = {role: Fault(point, nth=2)}
    async with (
        running(tmp_path / "decider", faults.get("decider")) as decider,
        running(tmp_path / "other", faults.get("other")) as other,
        Client(decider, Books()) as first,
        Client(other, Books()) as second,
    ):
        servers, clients = {"decider": decider, "other": other}, {"decider": first, "other": second}
        await asyncio.gather(*(client.train(WANTED) for client in clients.values()))
        teams = [asyncio.create_task(play_team(clients, f"task-{number // 2}")) for number in range(TEAMS)]
        await servers[role].killed()
        await servers[role].start()
        async with asyncio.timeout(DEADLINE_S):
            played = await asyncio.gather(*teams)
        books = {name: await written(server) for name, server in servers.items()}
        for team in played:
            states = {name: books[name][episode].state for name, episode in team.items()}
            assert set(states.values()) <= ENDED, states
        ended = {name: sum(episode.state in ENDED for episode in found.values()) for name, found in books.items()}
        assert ended == {"decider": TEAMS, "other": TEAMS}  # an episode ended without its team
        for name, server in servers.items():
            assert len(newest_weights(server.directory).step_of) == TEAMS, name
