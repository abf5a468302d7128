"""The history of finished steps, page by page, and the snapshot of what the server does at a glance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AsyncSwarmClient
from swarm.job import PathModel, TinyModel, Tracking
from swarm.server.watching import MOST_DROPS, MOST_OWNERS, MOST_STREAMS, HistoryQuery, model_in_words
from swarm.snapshot import Snapshot
from swarm.store.changes import StepMeasured
from tests.golden import assert_golden
from tests.swarm.server.support import Clock, RecordingTracker, Served, eventually, job, serving


async def known(served: Served, step: int) -> dict[str, Any]:
    """Return the history once it has this step: the store may be a moment behind."""
    return dict(await eventually(lambda: served.get("/history", "viewer"), lambda page: steps(page)[-1:] == [step]))


def steps(page: Mapping[str, Any]) -> list[int]:
    return [record["step"] for record in page["steps"]]


async def test_it_says_what_the_tracker_was_told_evaluations_too_before_and_after_a_restart(tmp_path: Path) -> None:
    wanted = job(steps=5, eval_every=2, evaluation_episodes=1, tracking=Tracking(), checkpoint_every=3)
    first, second = RecordingTracker(), RecordingTracker()
    async with serving(tmp_path, wanted, tracker=lambda _: first) as served:
        await served.play_to(2)
        lease = await served.begin("t", kind="eval")
        await served.chat(lease, "hi")
        await served.end(lease, 1.0, success=True)
        await served.play_to(3)
        page = await known(served, 3)
    assert {record["step"]: record["metrics"] for record in page["steps"]} == first.steps
    assert first.steps[2]["eval/success/mean"] == 1.0
    async with serving(tmp_path, wanted, tracker=lambda _: second) as served:
        await served.until(step=3)
        again = await known(served, 3)
        assert {record["step"]: record["metrics"] for record in again["steps"]} == second.steps
        assert again["job_digest"] == wanted.digest()
        await served.server.stop()
        assert await served.get("/history", "viewer") == again, "and while the engine is off"


async def test_a_reader_turns_pages_and_names_what_it_wants(tmp_path: Path) -> None:
    async with serving(tmp_path, job(steps=6)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        await served.play_to(5)
        await known(served, 5)
        first = await served.get("/history?limit=2")
        assert (steps(first), first["next"]) == ([1, 2], 2)
        second = await served.get("/history?limit=3&after=2", "client")
        assert (steps(second), second["next"]) == ([3, 4, 5], None)
        assert steps(await served.get("/history?after=5")) == []
        newest = await client.history(1, ["critic/rewards/mean", "stream/*"], 2, newest=True)
        assert ([record.step for record in newest.steps], newest.next) == ([4, 5], None)
        names = {"critic/rewards/mean", "stream/default/episodes", "stream/default/reward/mean", "stream/default/share"}
        found = newest.steps[0].metrics.keys()
        assert names <= found
        assert all(name.startswith("stream/default/") for name in found - names)


async def test_numbers_that_are_none_are_left_out(served: Served) -> None:
    await served.play_to(1)
    odd = {"actor/odd": math.nan, "actor/far": math.inf, "actor/even": 2.0, "training/global_step": 1.0}
    served.server.training.metrics = odd
    await served.server.training.store.write(StepMeasured(1, odd))
    (record,) = (await served.get("/history", "viewer"))["steps"]
    left = {"actor/even": 2.0, "training/global_step": 1.0}
    assert record["metrics"] == (await served.status())["metrics"] == left


def test_names_are_exact_unless_they_end_in_a_star() -> None:
    wanted = HistoryQuery(keys="a/b, stream/*").wants
    assert [name for name in ("a/b", "a/bc", "a", "stream/x/y", "streams") if wanted(name)] == ["a/b", "stream/x/y"]
    assert HistoryQuery().wants("anything")


async def seen(served: Served, role: Any = "viewer") -> Snapshot:
    return Snapshot.model_validate(await served.get("/snapshot", role))


async def waited(served: Served) -> list[tuple[str, str | None, int | None]]:
    return [(wait.what, wait.stream, wait.count) for wait in (await seen(served)).waits]


async def ended(served: Served, lease: dict[str, Any]) -> None:
    assert (await served.chat(lease, "hi")).status == 200
    assert (await served.end(lease)).status == 200


async def test_it_tells_who_plays_what_and_since_when(tmp_path: Path) -> None:
    clock = Clock()
    async with serving(tmp_path, job(episodes_per_step=8), clock=clock) as served:
        early = await served.begin("a", owner="one")
        clock.now += 5
        await served.begin("a", owner="two")
        await served.begin("b", owner="two")
        clock.now += 2
        await served.verb(early, "heartbeat")
        await ended(served, await served.begin("b", owner="two"))
        told = await seen(served)
        served.rollout.fence(next(iter(served.rollout.leases)), "test")
        dropped = await seen(served)
    assert [(owner.owner, owner.open, owner.heard_s, owner.oldest_s) for owner in told.owners] == [
        ("two", 2, 2.0, 2.0),
        ("one", 1, 0.0, 7.0),
    ]
    (stream,) = told.streams
    assert (stream.name, stream.groups_open, stream.groups_whole, stream.episodes_open) == ("default", 2, 0, 3)
    assert (told.environment, told.algorithm, told.model) == ("guess", "grpo", "tiny (2 layers of 64)")
    assert told.episodes["begun"] == 4
    assert told.drops == {}
    assert told.sampled_tokens > 0
    assert dropped.drops == {"test": 1}
    assert [(one.owner, one.reason, one.episode) for one in dropped.recent_drops] == [
        ("one", "test", early["episode_id"])
    ]


@pytest.mark.slow
async def test_it_is_bounded_whatever_runs_and_says_how_much_it_leaves_out(tmp_path: Path) -> None:
    many = 300
    async with serving(tmp_path, job(episodes_per_step=2 * many)) as served:
        for number in range(many):
            await served.begin(f"t{number}", owner=f"owner-{number:03d}", stream=f"stream-{number:03d}")
        ledger = served.rollout
        for episode in list(ledger.leases)[:100]:
            ledger.fence(episode, "test")
        answer = await served.call("GET", "/snapshot", served.admin)
        told = Snapshot.model_validate(answer.body)
    assert (len(told.owners), told.owners_left_out) == (MOST_OWNERS, many - 100 - MOST_OWNERS)
    assert (len(told.streams), told.streams_left_out) == (MOST_STREAMS, many - 100 - MOST_STREAMS)
    assert len(told.recent_drops) == MOST_DROPS
    assert told.recent_drops[0].owner == "owner-099", "the newest first"
    assert len(json.dumps(answer.body)) < 40_000


async def test_it_says_why_a_step_is_not_done(tmp_path: Path) -> None:
    clock = Clock()
    async with serving(tmp_path, job(steps=2), clock=clock) as served:
        assert await waited(served) == [("episodes", None, 4)]
        assert "nobody plays" in (await seen(served)).waits[0].text
        late = await served.begin("a", owner="slow")
        clock.now += 20
        for task in "abb":
            await ended(served, await served.begin(task, owner="quick"))
        (wait,) = (await seen(served)).waits
        assert (wait.what, wait.count, wait.age_s) == ("straggler", 1, 20.0)
        assert "the oldest for 20 s (slow, stream default)" in wait.text
        await ended(served, late)
        await served.until(step=1, state="ROLLING")
        await served.play_step()
        await served.until(finished=True)
        assert await waited(served) == [("nothing", None, None)]
        await served.server.stop()
        assert await waited(served) == [("engine", None, None)]


async def test_what_a_stream_lacks_is_told_apart(tmp_path: Path) -> None:
    wanted = job(streams={"x": 0.5, "y": 0.5}, episodes_per_step=8)
    async with serving(tmp_path, wanted) as served:
        for task in "aab":
            await ended(served, await served.begin(task, owner="o", stream="x"))
        await served.begin("b", owner="o", stream="x")
        found = await waited(served)
        texts = [wait.text for wait in (await seen(served)).waits]
    assert found == [("episodes", "y", 4), ("episodes", "x", 1)]
    assert_golden("\n".join(texts))


async def test_an_evaluation_that_is_waited_for_comes_first_with_how_to_play_it(tmp_path: Path) -> None:
    async with serving(tmp_path, job(eval_every=1, evaluation_episodes=3)) as served:
        await served.play_step()
        await served.until(step=1, state="ROLLING", awaited_evaluations=3)
        (wait,) = (await seen(served)).waits
        assert (wait.what, wait.count) == ("evaluation", 3)
        assert "ajet client run --evaluations" in wait.text
        await served.begin("t", kind="eval")
        assert "(1 in play)" in (await seen(served)).waits[0].text


async def test_a_failed_server_says_why_and_one_without_a_job_that_it_is_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, AsyncSwarmClient(served.url, served.admin) as client:
        served.server.training.fail("its learner broke")
        (wait,) = (await client.snapshot()).waits
        assert (wait.what, wait.text) == ("failed", "its learner broke")
    async with serving(tmp_path / "empty", start=False) as served:
        told = await seen(served)
        assert ([wait.what for wait in told.waits], told.environment) == (["engine"], None)


def test_a_model_is_named_as_a_person_names_it() -> None:
    assert model_in_words(TinyModel()) == "tiny (2 layers of 64)"
    assert model_in_words(PathModel(path="/models/smollm2-135m/")) == "smollm2-135m"
