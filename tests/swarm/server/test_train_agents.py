"""Agents named by header or key, of whom the job trains some: the others' calls are context, and counted as such."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.client.rollout import MOST_MISPLAYS, AgentMisplays
from swarm.errors import InvalidRequest
from tests.swarm.conformance.support import saying
from tests.swarm.server.support import Served, job, serving

HEADER, KEY, BOTH = "header", "key", "both"
SAYS = ("first", "second", "third", "fourth")
TRAINS_SOLVER = job(max_tokens=50, train_agents=["solver"])
Turns = Sequence[tuple[str, bool]]
"""Who makes each call, and whether it goes on with the conversation or begins one."""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, TRAINS_SOLVER, script=saying(*SAYS)) as running:
        yield running


async def ask(served: Served, lease: dict[str, Any], agent: str, way: str = KEY, **sent: Any) -> tuple[int, Any]:
    key = lease["api_key"] + (f"/{agent}" if agent and way in (KEY, BOTH) else "")
    headers = {"x-ajet-agent": agent} if way in (HEADER, BOTH) else {}
    answer = await served.chat({"api_key": key}, "ask", headers=headers, **sent)
    return answer.status, answer.body


@pytest.mark.parametrize("way", [HEADER, KEY, BOTH])
async def test_only_the_named_agents_calls_are_trained_however_it_is_named(served: Served, way: str) -> None:
    leases = [await served.begin(task) for task in "ttuu"]
    for lease in leases:
        for agent in ("solver", "critic", ""):
            assert (await ask(served, lease, agent, way))[0] == 200
        assert (await served.end(lease, 1.0)).status == 200
    status = await served.until(step=1)
    record = (await served.get(f"/episodes/{leases[0]['episode_id']}"))["record"]
    assert [(c.get("agent"), c["trained"]) for c in record] == [("solver", True), ("critic", False), (None, False)]
    (batch,) = served.backend.learner.batches
    assert {call for episode in batch.episodes for row in episode.rows for call in row.calls} <= {-1, 0}
    assert [sum(row.sampled) for episode in batch.episodes for row in episode.rows] == [len(b"first") + 1] * 4
    metrics = status["metrics"]
    assert (metrics["agent/solver/calls"], metrics["calls/untrained"], metrics["num_turns/mean"]) == (4.0, 8.0, 1.0)
    assert served.rollout.counts["calls_untrained"] == 8


async def test_an_agent_that_is_not_trained_is_sampled_as_it_likes(served: Served) -> None:
    lease = await served.begin()
    assert (await ask(served, lease, "solver", temperature=0))[0] == 400
    assert (await ask(served, lease, "critic", temperature=0))[0] == 200


async def test_an_episode_without_a_call_of_those_that_are_trained_is_refused_and_stays_open(served: Served) -> None:
    """A name that is wrong would have the training wait for ever."""
    lease = await served.begin()
    await ask(served, lease, "Solver")
    for verb in ("end", "prepare"):
        answer = await served.verb(lease, verb, {"reward": 1.0})
        assert (answer.status, answer.body["error"]["param"]) == (400, "train_agents")
        assert [name in answer.message for name in ("`train_agents`", "'solver'", "'Solver'")] == [True] * 3
    await ask(served, lease, "solver")
    assert (await served.end(lease)).status == 200


async def test_a_name_is_said_once_and_is_a_name(served: Served) -> None:
    lease = await served.begin()
    answer = await served.chat({"api_key": f"{lease['api_key']}/critic"}, headers={"x-ajet-agent": "solver"})
    assert answer.status == 400
    assert [name in answer.message for name in ("x-ajet-agent", "'solver'", "'critic'")] == [True] * 3
    for name in ("x" * 65, "two%0Alines"):
        assert (await ask(served, lease, name))[0] == 400


@pytest.mark.parametrize("name", ["solver", "a/b", "the solver", "Löser", "100%"])
async def test_a_client_names_an_agent_by_key(served: Served, name: str) -> None:
    async with AsyncSwarmClient(served.url, served.server.keys.role_key("client")) as client:
        episode = await client.begin(NamedTask("t"), kind="eval")
        await episode.chat([{"role": "user", "content": "ask"}], agent=name)
        openai = AsyncOpenAI(base_url=episode.base_url, api_key=episode.key_of(name))
        async with openai:
            await openai.chat.completions.create(model=episode.model, messages=[{"role": "user", "content": "ask"}])
        await episode.end(1.0)
        found = await client.episode(episode.id)
    assert [call.agent for call in found.record] == [name, name]


async def test_an_agent_whose_name_is_wrong_is_refused_after_a_few_plays(served: Served) -> None:
    async def play(episode: Episode[NamedTask]) -> float:
        await episode.chat([{"role": "user", "content": "ask"}], agent="slover")
        return 1.0

    async with AsyncSwarmClient(served.url, served.server.keys.role_key("client")) as client:
        with pytest.raises(AgentMisplays, match=rf"'slover'.*\({MOST_MISPLAYS} times"):
            await client.rollout(play, [NamedTask("t")], concurrency=1)
        episode = await client.begin(NamedTask("other"))
        await episode.chat([{"role": "user", "content": "ask"}])
        with pytest.raises(InvalidRequest, match="says its name"):
            await episode.end(1.0)
