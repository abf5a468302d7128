"""Checkpoints: what the store counts on is there, what it does not know is cleared away."""

from __future__ import annotations

from pathlib import Path

from swarm.backends.fake import FakeBackend
from swarm.backends.protocols import Batch
from swarm.client import AsyncSwarmClient
from swarm.training.checkpoints import Checkpoints, listed
from swarm.wire import CheckpointList
from tests.swarm.server.support import job, serving


def folders(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()}


def test_an_older_checkpoint_stays_until_the_newer_one_is_counted_on(tmp_path: Path) -> None:
    learner = FakeBackend(job()).learner
    checkpoints = Checkpoints(tmp_path / "c", 1, [])
    checkpoints.count_on(1, checkpoints.save(learner, 1))
    name = checkpoints.save(learner, 2)
    assert folders(tmp_path / "c") == {"step-000001", "step-000002"}
    checkpoints.count_on(2, name)
    assert folders(tmp_path / "c") == {"step-000002"}


def test_the_newest_one_that_loads_is_loaded(tmp_path: Path) -> None:
    learner = FakeBackend(job()).learner
    checkpoints = Checkpoints(tmp_path, 3, [])
    for step in (1, 2, 3):
        learner.update(Batch(step, ()))
        checkpoints.count_on(step, checkpoints.save(learner, step))
    (tmp_path / "step-000003" / "fake.json").unlink()
    fresh = FakeBackend(job()).learner
    known = [(3, "step-000003"), (2, "step-000002"), (1, "step-000001")]
    assert Checkpoints(tmp_path, 3, known).load(fresh) == 2
    assert fresh.version == 2


def test_a_checkpoint_the_store_does_not_know_is_not_loaded_and_goes(tmp_path: Path) -> None:
    learner = FakeBackend(job()).learner
    learner.update(Batch(1, ()))
    Checkpoints(tmp_path, 2, []).save(learner, 1)
    for name in (".step-000002.partial-x", "step-000003.part", "mine"):
        (tmp_path / name).mkdir()
    fresh = FakeBackend(job()).learner
    assert Checkpoints(tmp_path, 2, []).load(fresh) == 0
    assert (fresh.version, folders(tmp_path)) == (0, {"mine"})


def test_only_what_is_on_disk_is_listed(tmp_path: Path) -> None:
    learner = FakeBackend(job()).learner
    checkpoints = Checkpoints(tmp_path, 2, [])
    name = checkpoints.save(learner, 1)
    size = sum(path.stat().st_size for path in (tmp_path / name).iterdir())
    known = [(1, name), (2, "step-000002")]
    assert [(found.step, found.name, found.size_bytes) for found in listed(tmp_path, known)] == [(1, name, size)]
    assert listed(tmp_path / "none", known) == []


async def test_the_kept_ones_are_told_newest_first_with_the_engine_on_or_off(tmp_path: Path) -> None:
    wanted = job(steps=4, checkpoint_every=1, checkpoints_kept=2)
    async with serving(tmp_path, wanted, start=False) as served, AsyncSwarmClient(served.url, served.admin) as client:
        assert await client.checkpoints() == CheckpointList(job_digest=None, checkpoints=())
        served.server.load(wanted)
        await served.server.start()
        await served.until(state="ROLLING")
        assert await client.checkpoints() == CheckpointList(job_digest=wanted.digest(), checkpoints=())
        await served.play_to(3)
        running = await client.checkpoints()
        await served.server.stop()
        assert await client.checkpoints() == running
    async with serving(tmp_path, start=False) as later, AsyncSwarmClient(later.url, later.admin) as client:
        assert await client.checkpoints() == running  # of a process that has loaded no job
    (folder,) = (tmp_path / "checkpoints").iterdir()
    sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in folder.iterdir()}
    assert [(found.step, found.name) for found in running.checkpoints] == [(3, "step-000003"), (2, "step-000002")]
    assert {found.name: found.size_bytes for found in running.checkpoints} == sizes
    assert running.job_digest == wanted.digest()
