"""A full disk: nothing is acknowledged that is not written, and all goes on by itself once there is room."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.fake import FakeBackend, FakeLearner
from swarm.backends.protocols import NoRoom
from swarm.errors import StoreUnavailable
from swarm.store import Change, Consumed, InStep, SqlStore
from tests.swarm.server.support import Answer, eventually, job, serving
from tests.swarm.store.test_writer import room_for

LONG = "x" * 20_000
FULL = OSError(errno.ENOSPC, "No space left on device")
NO_DESCRIPTOR = OSError(errno.EMFILE, "Too many open files")


def is_unavailable(answer: Answer) -> bool:
    assert answer.status == 200 or (answer.status, answer.code) == (503, "store_unavailable"), answer
    return answer.status == 503 and "disk is full" in answer.message and float(answer.headers["retry-after"]) > 0


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoints/*/*"))


async def test_what_was_served_before_the_disk_was_full_is_trained_once(tmp_path: Path) -> None:
    wanted = job(max_context=100_000, checkpoint_every=1)
    with contextlib.ExitStack() as small:
        small.enter_context(room_for(200))
        async with serving(tmp_path, wanted) as served:
            leases = await served.begin_batch()
            while not is_unavailable(await served.chat(await served.begin("e", kind="eval"), LONG)):
                pass
            assert is_unavailable(await served.chat(leases[0], LONG))
            ends = [await served.end(lease) for lease in leases[:2]]
            small.close()
            for lease in leases:
                assert (await served.end(lease)).status == 200
            assert {answer.status for answer in ends} <= {200, 503}
            await served.until(step=1, state="ROLLING")
            trained = served.backend.learner.trained
    assert [sorted(name for name, _ in batch) for _, batch in trained] == [sorted(e["episode_id"] for e in leases)]
    async with serving(tmp_path, wanted) as served:
        assert served.backend.learner.trained == [(1, list(map(tuple, batch))) for _, batch in trained]


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("what", [InStep, Consumed, "save", "publish", "open"])
async def test_a_step_waits_for_room_wherever_it_lacks_and_is_learned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Any, staleness: int
) -> None:
    is_full, write, save, publish = [True], SqlStore.write, FakeLearner.save, FakeBackend.publish
    lacking = {"save": FULL, "open": NO_DESCRIPTOR}

    async def writing(store: SqlStore, *changes: Change) -> None:
        if is_full and isinstance(what, type) and any(isinstance(change, what) for change in changes):
            raise StoreUnavailable("disk full")
        await write(store, *changes)

    def saving(learner: FakeLearner, folder: Path) -> None:
        if is_full and what in lacking:
            (folder.parent / f"{folder.name}.part").mkdir()
            raise lacking[what]
        save(learner, folder)

    def publishing(backend: FakeBackend) -> None:
        if is_full and what == "publish":
            raise NoRoom("no room in /tmp")
        publish(backend)

    monkeypatch.setattr(SqlStore, "write", writing)
    monkeypatch.setattr(FakeLearner, "save", saving)
    monkeypatch.setattr(FakeBackend, "publish", publishing)
    monkeypatch.setattr("swarm.training.loop.RETRY_S", (0.01, 0.01))
    waits = {name: f"for room: {error}" for name, error in lacking.items()} | {
        "publish": "for room to publish: no room"
    }
    async with serving(tmp_path, job(steps=3, checkpoint_every=1, max_staleness=staleness)) as served:
        await served.play_step()
        status = await eventually(served.status, lambda status: status["waiting"])
        assert status["waiting"].startswith(f"step 1 waits {waits.get(what, 'for the store: disk full')}")
        assert (status["state"], status["reason"], status["updating"]) == (
            "ROLLING" if staleness else "WEIGHT_SYNCING", None, True,
        )  # fmt: skip
        for task in "ccdd" if staleness else "":  # episodes go on meanwhile
            await served.play(task)
        is_full.clear()
        done = 2 if staleness else 1
        assert (await served.until(step=done, state="ROLLING", updating=False))["waiting"] is None
        assert saved(tmp_path) == [f"step-{step:06d}" for step in range(1, done + 1)]
        trained = [name for _, batch in served.backend.learner.trained for name, _ in batch]
        assert len(trained) == len(set(trained)) == 4 * done
