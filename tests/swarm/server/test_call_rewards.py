"""Rewards of single calls and agents: refused where there are none such, else kept, shown and given to the learner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import CallReward
from swarm.store import open_store
from swarm.training.metrics import make_batch
from tests.swarm.server.support import Served, job, serving


async def played(served: Served) -> dict[str, Any]:
    """Begin an episode in which a solver, a critic and somebody call."""
    lease = await served.begin("t")
    critic = {"x_ajet_agent": "critic", "x_ajet_train": "false"}
    for text, headers in (("one", {"x_ajet_agent": "solver"}), ("two", critic), ("three", {})):
        assert (await served.chat(lease, text, headers=headers)).status == 200
    return lease


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"by_call": {"3": 1.0}}, "none of the episode's calls: 0, 1, 2"),
        ({"by_agent": {"nobody": 1.0}}, "critic, solver"), ({"by_call": {"0": None}}, "by_call"),
        ({"by_call": {"0": 1e99}}, "by_call"), ({"by_call": {"-1": 1.0}}, "by_call"),
        ({"by_agent": {"solver": "much"}}, "by_agent"),
    ],
)  # fmt: skip
async def test_what_is_not_there_is_refused_and_the_episode_stays_open(
    served: Served, fields: dict[str, Any], said: str
) -> None:
    lease = await played(served)
    answer = await served.end(lease, 1.0, **fields)
    assert (answer.status, said in answer.message) == (400, True), answer.message
    assert (await served.end(lease, 1.0)).body["state"] == "ended"


async def test_they_are_shown_survive_a_restart_and_reach_the_learner(tmp_path: Path) -> None:
    wanted = job(episodes_per_step=4, group_size=4)
    async with serving(tmp_path, wanted) as served:
        lease = await played(served)
        ended = await served.end(lease, 0.25, by_call={"2": 2.0}, by_agent={"solver": -1.0, "critic": 5.0})
        assert ended.status == 200
        name = lease["episode_id"]
        record = (await served.get(f"/episodes/{name}"))["record"]
        assert [(c.get("agent"), c["reward"]) for c in record] == [("solver", -1.0), ("critic", 5.0), (None, 2.0)]
        plain = await served.play("t")
        (call,) = (await served.get(f"/episodes/{plain}"))["record"]
        assert not {"reward", "agent"} & set(call)
    store, recovered = await asyncio.to_thread(
        open_store, f"sqlite:///{tmp_path / 'store.sqlite3'}", wanted, (tmp_path / "installation").read_text()
    )
    await store.close()
    found = {sample.episode: sample for sample in recovered.pool}
    assert found[plain].call_rewards == ()
    (episode,) = make_batch(1, [found[name]]).episodes
    assert episode.call_rewards == (CallReward(0, -1.0, "solver"), CallReward(2, 2.0))
    assert {call for row in episode.rows for call in row.calls} == {-1, 0, 2}
    for asked in (False, True):
        (episode,) = make_batch(1, [found[plain]], by_call=asked).episodes
        assert episode.call_rewards == ()
        assert {call for row in episode.rows for call in row.calls} == ({-1, 0} if asked else set())


async def test_of_a_team_they_are_prepared_and_committed(served: Served) -> None:
    lease = await played(served)
    prepared = await served.verb(lease, "prepare", {"reward": 1.0, "by_agent": {"solver": 0.5}})
    assert prepared.body["state"] == "prepared"
    assert (await served.verb(lease, "commit")).body["state"] == "ended"
    record = (await served.get(f"/episodes/{lease['episode_id']}"))["record"]
    assert [call["reward"] for call in record] == [0.5, 1.0, 1.0]
