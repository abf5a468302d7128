"""Erasing: an owner's tokens go, whatever has become of the episodes, and nobody else's do."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.wire import fingerprint
from tests.swarm.server.support import Served, eventually, job, serving

SECRET, OTHER = "a" * 64, "b" * 64
OWNER = f"front:{fingerprint(SECRET)}:x"


async def played(served: Served, task: str, owner: str = OWNER, reward: float | None = 1.0) -> str:
    lease = await served.begin(task, owner=owner)
    assert (await served.chat(lease)).status == 200
    if reward is not None:
        assert (await served.end(lease, reward)).status == 200
    return str(lease["episode_id"])


async def erase(served: Served, *episodes: str, secret: str = SECRET) -> dict[str, list[str]]:
    answer = await served.post("/owners/erase", served.admin, {"secret": secret, "episodes": episodes})
    assert answer.status == 200, answer
    return dict(answer.body)


async def state_of(served: Served, episode: str) -> tuple[str, str | None, bool]:
    found = await served.get(f"/episodes/{episode}")
    return found["state"], found["reason"], bool(found["record"])


async def test_open_and_pooled_episodes_are_given_up_and_their_tokens_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path, job(episodes_per_step=8, steps=1)) as served:
        opened, pooled = await played(served, "a", reward=None), await played(served, "b")
        others = await played(served, "c", owner="somebody")
        assert await erase(served, opened, pooled) == {"erased": [opened, pooled], "left": [], "unknown": []}
        assert await state_of(served, opened) == ("aborted", "erased", False)
        assert await state_of(served, pooled) == ("dropped", "erased", False)
        assert await state_of(served, others) == ("ended", None, True)
        counts = served.rollout.counts
        assert (counts["aborted"], counts["drop_erased"], counts["begun"]) == (1, 1, 3)
        assert (await erase(served, opened))["erased"] == [opened]  # again: the same


async def test_nobody_erases_what_is_not_theirs(served: Served) -> None:
    episode = await played(served, "a")
    assert await erase(served, episode, "none", secret=OTHER) == {
        "erased": [], "left": [], "unknown": [episode, "none"],
    }  # fmt: skip
    assert (await state_of(served, episode))[0] == "ended"
    viewer = served.server.keys.role_key("viewer")
    assert (await served.post("/owners/erase", viewer, {"secret": SECRET, "episodes": [episode]})).status == 403


@pytest.mark.slow
async def test_what_may_have_to_be_learned_again_waits_for_its_checkpoint(tmp_path: Path) -> None:
    wanted = job(group_size=2, episodes_per_step=2, steps=2, checkpoint_every=2)
    async with serving(tmp_path, wanted) as served:
        first = await played(served, "a")
        await played(served, "a", owner="somebody", reward=0.0)
        await served.until(step=1)
        assert await erase(served, first) == {"erased": [], "left": [first], "unknown": []}
        assert await state_of(served, first) == ("in_step", None, True)
        await served.server.stop()  # a restart has to learn it again, and can
        assert await erase(served, first) == {"erased": [], "left": [first], "unknown": []}
    async with serving(tmp_path, wanted) as served:
        assert served.server.training.step == 1
        await played(served, "b", reward=0.0)
        await played(served, "b")
        await served.until(finished=True)
        await eventually(lambda: state_of(served, first), lambda found: found[0] == "consumed")
        assert (await erase(served, first))["erased"] == [first]
        assert not (await state_of(served, first))[2]
    async with serving(tmp_path, wanted) as served:
        assert served.server.training.step == 2


ROOMY = {"group_size": 2, "episodes_per_step": 8, "steps": 1}
"""No batch is full, so what is pooled stays pooled."""


@pytest.mark.parametrize("other_job", [False, True], ids=["engine off", "another job"])
async def test_what_a_training_left_that_does_not_run_is_erased_and_it_goes_on(tmp_path: Path, other_job: bool) -> None:
    wanted = job(**ROOMY)
    async with serving(tmp_path, wanted) as served:
        opened, pooled = await played(served, "a", reward=None), await played(served, "b")
        partner, others = await played(served, "b", owner="somebody"), await played(served, "c", owner="somebody")
        await served.server.stop()
        if other_job:
            served.server.load(job(**ROOMY, seed=7))
            await served.server.start()
            await served.until(state="ROLLING")
            of_this = await played(served, "a")
        assert (await erase(served, opened, pooled, "none", secret=OTHER))["unknown"] == [opened, pooled, "none"]
        asked = [opened, pooled, *([of_this] if other_job else []), "none"]
        found = await erase(served, *asked)
        assert (set(found["erased"]), found["left"], found["unknown"]) == (set(asked) - {"none"}, [], ["none"])
        assert set((await erase(served, opened, pooled))["erased"]) == {opened, pooled}, "again: the same"
        await served.server.stop()
    async with serving(tmp_path, wanted) as served:
        assert (await state_of(served, opened))[2] is False
        assert await state_of(served, pooled) == ("dropped", "erased", False)
        assert (await state_of(served, partner), await state_of(served, others)) == (("ended", None, True),) * 2
        counts = served.rollout.counts
        assert (counts["begun"], counts["ended"], counts["fenced"], counts["drop_erased"]) == (4, 3, 1, 1)
        assert served.rollout.groups.collected == 2
        for task in "bcddee":
            await played(served, task, reward=0.5)
        await served.until(finished=True)


async def test_nothing_is_made_where_nothing_was_trained(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False) as served:
        assert await erase(served, "none") == {"erased": [], "left": [], "unknown": ["none"]}
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("store")]  # noqa: ASYNC240
