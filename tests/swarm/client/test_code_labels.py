"""Episodes are labelled by the code that played them."""

from __future__ import annotations

import json
from pathlib import Path

from swarm.client import AsyncSwarmClient, NamedTask
from tests.swarm.factories import good
from tests.swarm.server.support import Served, job, serving

OLD, NEW = "0" * 64, "f" * 64


async def test_a_label_is_kept_exported_and_counted_in_the_step_that_trained_it(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "s", job(steps=1, episodes_per_step=4, group_size=2)) as served,
        AsyncSwarmClient(served.url, served.admin, code=OLD) as old,
        AsyncSwarmClient(served.url, served.admin, code=NEW) as new,
        AsyncSwarmClient(served.url, served.admin) as silent,
    ):
        begun = [await client.begin(NamedTask(task), wait_s=5) for client in (old, new) for task in "ab"]
        shown = {one.id: one.code for one in (await old.episodes()).episodes}
        assert shown == dict(zip([one.id for one in begun], [OLD, OLD, NEW, NEW], strict=True)), "while they are open"
        for place, episode in enumerate(begun):
            await good(episode)
            await episode.end(float(place))
        status = await served.until(finished=True)
        assert status["metrics"]["batch/codes"] == 2
        assert {one.code for one in (await silent.episodes()).episodes} == {OLD, NEW}
        assert (await silent.episode(begun[0].id)).code == OLD
        await silent.export(tmp_path / "episodes.jsonl")
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert {json.loads(line)["code"] for line in lines} == {OLD, NEW}


async def test_code_that_is_replaced_has_what_it_left_fenced_and_can_end_nothing(served: Served) -> None:
    async with (
        AsyncSwarmClient(served.url, served.admin, owner="keeper") as keeper,
        AsyncSwarmClient(served.url, served.admin, owner=keeper.owner, code=OLD) as old,
        AsyncSwarmClient(served.url, served.admin, owner="keeper", code=NEW) as new,
    ):
        mine, theirs = await old.begin(NamedTask("a")), await new.begin(NamedTask("a"))
        await good(mine)
        assert await keeper.give_up_open("code_changed") == 1
        refused = await served.end(mine.lease.model_dump())
        assert refused.code == "lease_lost"
        states = {one.id: (one.state, one.reason) for one in (await new.episodes()).episodes}
        assert states == {mine.id: ("fenced", "code_changed"), theirs.id: ("open", None)}
        assert served.server.training.rollout.counts["drop_code_changed"] == 1
