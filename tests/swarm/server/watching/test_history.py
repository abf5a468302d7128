"""The history of finished steps: what the tracker was told, page by page, whatever became of the server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.fake.backend import FakeBackend
from swarm.backends.protocols import Batch
from swarm.client import AsyncSwarmClient
from swarm.job import Tracking
from swarm.server.watching.history import HistoryQuery
from tests.swarm.server.support import Served, eventually, job, serving


class Told:
    """A tracker that merges what it is told of a step, as W&B does."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps[step] = {**self.steps.get(step, {}), **metrics}

    def finish(self) -> None:
        """Nothing to do."""


async def history(served: Served, query: str = "", role: Any = "viewer") -> dict[str, Any]:
    answer = await served.call("GET", f"/history{query}", served.server.keys.role(role))
    assert answer.status == 200, answer
    return dict(answer.body)


async def known(served: Served, step: int) -> dict[str, Any]:
    """Return the history once it has this step: the store may be a moment behind."""
    return dict(await eventually(lambda: history(served), lambda page: steps(page)[-1:] == [step]))


def steps(page: Mapping[str, Any]) -> list[int]:
    return [record["step"] for record in page["steps"]]


async def test_it_says_what_the_tracker_was_told_evaluations_too_before_and_after_a_restart(tmp_path: Path) -> None:
    wanted = job(steps=5, eval_every=2, evaluation_episodes=1, tracking=Tracking(), checkpoint_every=3)
    first, second = Told(), Told()
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
        assert await history(served) == again, "and while the engine is off"


async def test_a_reader_turns_pages_and_names_what_it_wants(tmp_path: Path) -> None:
    async with serving(tmp_path, job(steps=6)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        await served.play_to(5)
        await known(served, 5)
        first = await history(served, "?limit=2")
        assert (steps(first), first["next"]) == ([1, 2], 2)
        second = await history(served, "?limit=3&after=2", "client")
        assert (steps(second), second["next"]) == ([3, 4, 5], None)
        assert steps(await history(served, "?after=5")) == []
        newest = await client.history(1, ["critic/rewards/mean", "stream/*"], 2, newest=True)
        assert ([record.step for record in newest.steps], newest.next) == ([4, 5], None)
        names = {"critic/rewards/mean", "stream/default/episodes", "stream/default/reward/mean", "stream/default/share"}
        found = newest.steps[0].metrics.keys()
        assert names <= found
        assert all(name.startswith("stream/default/") for name in found - names)


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=0", "limit=501", "keys=", "key=a", f"keys={'a' * 4001}"]
)
async def test_a_wrong_question_is_one_clear_error(tmp_path: Path, query: str) -> None:
    async with serving(tmp_path, start=False) as served:
        answer = await served.call("GET", f"/history?{query}", served.admin)
        assert answer.status == 400
        assert query.partition("=")[0] in answer.message
        assert (await served.call("GET", "/history")).status == 401


async def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    def backend(wanted: Any) -> FakeBackend:
        made = FakeBackend(wanted)
        update = made.learner.update

        def updated(batch: Batch) -> dict[str, float]:
            return {**update(batch), "actor/odd": math.nan, "actor/far": math.inf}

        made.learner.update = updated  # type: ignore[method-assign]
        return made

    tracker = Told()
    async with serving(tmp_path, job(steps=2), backend=backend, tracker=lambda _: tracker) as served:
        await served.play_to(1)
        (record,) = (await known(served, 1))["steps"]
        status = await served.status()
    assert not {"actor/odd", "actor/far"} & {*record["metrics"], *status["metrics"]}
    assert {"actor/odd", "actor/far"} <= tracker.steps[1].keys()
    assert "actor/trained_tokens" in record["metrics"]


def test_names_are_exact_unless_they_end_in_a_star() -> None:
    wanted = HistoryQuery(keys="a/b, stream/*").wanted
    assert [name for name in ("a/b", "a/bc", "a", "stream/x/y", "streams") if wanted(name)] == ["a/b", "stream/x/y"]
    assert HistoryQuery().wanted("anything")
