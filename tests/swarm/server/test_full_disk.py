"""A full disk (a real SQLITE_FULL): nothing is acknowledged that is not written, and all goes on once there is room."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.fake.backend import FakeBackend, FakeLearner
from swarm.backends.protocols import NoRoom
from tests.swarm.server.support import Answer, Served, eventually, job, serving
from tests.swarm.store.test_writer import room_for

LONG = "x" * 20_000
WIDE = job(max_context=100_000, checkpoint_every=1)


async def filled(served: Served) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Ask until the disk is full; return the leases that were served, and the one that was not."""
    served_ones: list[dict[str, Any]] = []
    for _ in range(100):
        lease = await served.begin("e", kind="eval")
        answer = await served.chat(lease, LONG)
        if answer.status != 200:
            assert_unavailable(answer)
            return served_ones, lease
        served_ones.append(lease)
    raise AssertionError("the disk never was full")


def assert_unavailable(answer: Answer) -> None:
    assert (answer.status, answer.code) == (503, "store_unavailable")
    assert "database or disk is full; free space" in answer.message
    assert float(answer.headers["retry-after"]) > 0


async def calls_of(served: Served, lease: dict[str, Any]) -> int:
    record = await served.server.training.store.episode(lease["episode_id"])
    assert record is not None
    return len(record.record)


@contextlib.asynccontextmanager
async def serving_on_a_small_disk(folder: Path) -> AsyncIterator[tuple[Served, Callable[[], None]]]:
    """Serve on a disk that is full after some calls; what comes with the server makes room."""
    with contextlib.ExitStack() as limit:
        limit.enter_context(room_for(200))
        async with serving(folder, WIDE) as served:
            yield served, limit.close


async def test_a_call_that_cannot_be_written_down_answers_503_and_is_no_part_of_its_episode(tmp_path: Path) -> None:
    async with serving_on_a_small_disk(tmp_path) as (served, make_room):
        written, refused = await filled(served)
        assert len(written) > 2
        make_room()
        assert (await served.chat(refused, "hi")).status == 200
        assert [await calls_of(served, lease) for lease in (*written, refused)] == [1] * (len(written) + 1)


async def test_what_was_served_before_the_disk_was_full_is_trained_once(tmp_path: Path) -> None:
    async with serving_on_a_small_disk(tmp_path) as (served, make_room):
        leases = [await served.begin(task) for task in "aabb"]
        for lease in leases:
            assert (await served.chat(lease, "hi")).status == 200
        await filled(served)
        assert_unavailable(await served.chat(leases[0], LONG))
        ends = [await served.end(lease) for lease in leases[:2]]
        make_room()
        for lease in leases:
            assert (await served.end(lease)).status == 200
        assert {answer.status for answer in ends} <= {200, 503}
        await served.until(step=1, state="ROLLING")
        trained = served.backend.learner.trained
    assert [sorted(name for name, _ in batch) for _, batch in trained] == [sorted(e["episode_id"] for e in leases)]
    async with serving(tmp_path, WIDE) as served:
        assert (await served.status())["step"] == 1
        assert served.backend.learner.trained == [(1, list(map(tuple, batch))) for _, batch in trained]


def checkpoints_below(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("checkpoints/*/*")]


async def test_a_step_waits_for_room_for_its_checkpoint_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, is_full = FakeLearner.save, [True]

    def saving(learner: FakeLearner, folder: Path) -> None:
        if is_full:
            (folder.parent / f"{folder.name}.part").mkdir()
            raise OSError(errno.ENOSPC, "No space left on device")
        save(learner, folder)

    monkeypatch.setattr(FakeLearner, "save", saving)
    monkeypatch.setattr("swarm.server.training.training.RETRY_S", (0.01, 0.01))
    async with serving(tmp_path, job(checkpoint_every=1)) as served:
        for task in "aabb":
            await served.play(task)
        status = await eventually(served.status, lambda status: status["waiting"])
        assert status["waiting"].startswith("step 1 waits for room: [Errno 28] No space left on device; free space")
        assert (status["state"], status["reason"]) == ("WEIGHT_SYNCING", None)
        is_full.clear()
        status = await served.until(step=1, state="ROLLING")
        assert status["waiting"] is None
        assert checkpoints_below(tmp_path) == ["step-000001"]
        assert [step for step, _ in served.backend.learner.trained] == [1]


async def test_a_step_waits_for_room_to_publish_its_weights_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, is_full = FakeBackend.publish, [True]

    def publishing(backend: FakeBackend) -> None:
        if is_full:
            raise NoRoom("version 1 waits for room: /tmp has no room for 5 bytes: free space there")
        publish(backend)

    monkeypatch.setattr(FakeBackend, "publish", publishing)
    monkeypatch.setattr("swarm.server.training.training.RETRY_S", (0.01, 0.01))
    async with serving(tmp_path, job()) as served:
        for task in "aabb":
            await served.play(task)
        status = await eventually(served.status, lambda status: status["waiting"])
        assert status["waiting"] == (
            "step 1 waits for room to publish: version 1 waits for room: /tmp has no room for 5 bytes: free space there"
        )
        assert (status["state"], status["reason"]) == ("WEIGHT_SYNCING", None)
        is_full.clear()
        status = await served.until(step=1, state="ROLLING")
        assert status["waiting"] is None
        assert [step for step, _ in served.backend.learner.trained] == [1]


async def test_an_engine_stopped_while_a_checkpoint_waits_for_room_learns_its_step_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: FakeLearner, __: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(FakeLearner, "save", full)
        async with serving(tmp_path, job(checkpoint_every=1)) as served:
            for task in "aabb":
                await served.play(task)
            await eventually(served.status, lambda status: status["waiting"])
    async with serving(tmp_path, job(checkpoint_every=1)) as served:
        assert (await served.status())["step"] == 1
        assert [step for step, _ in served.backend.learner.trained] == [1]
