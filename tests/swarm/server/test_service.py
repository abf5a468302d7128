"""A server that starts again in its directory goes on where it was: nothing is lost that was acknowledged, or twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.job import Job
from swarm.server.service import default_store
from tests.swarm.server.support import MODEL, Clock, Served, job, serving
from tests.swarm.store.support import execute


def below(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def steps_of(served: Served) -> list[int]:
    trained = served.backend.learner.trained
    episodes = [name for _, batch in trained for name, _ in batch]
    assert len(set(episodes)) == len(episodes)
    return [step for step, _ in trained]


async def test_a_finished_job_stays_finished_and_with_more_steps_goes_on_where_it_was(tmp_path: Path) -> None:
    begun = job(steps=1)
    async with serving(tmp_path, begun) as served:
        await served.play_step()
        await served.until(finished=True)
    async with serving(tmp_path, begun) as served:
        assert (await served.status())["finished"]
        assert steps_of(served) == [1]
        refused = await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 5})
        assert (refused.status, refused.code) == (410, "job_finished")
        assert (await served.chat(await served.begin("a", kind="eval"), "hi")).status == 200
    async with serving(tmp_path, job(steps=3, checkpoint_every=1)) as served:
        status = await served.status()
        assert (status["step"], status["finished"], status["fresh_start"]) == (1, False, None)
        await served.play_to(2)
        assert steps_of(served) == [1, 2]
        (checkpoints,) = below(tmp_path, "checkpoints/*")
        assert checkpoints.name == begun.digest()[:12]
        kept = await served.get("/checkpoints")
        assert (kept["job_digest"], [one["step"] for one in kept["checkpoints"]]) == (begun.digest(), [2, 1])


async def test_without_any_checkpoint_that_loads_nothing_is_made_up_and_another_job_begins_beside_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = job(steps=5, checkpoint_every=1, checkpoints_kept=1)
    async with serving(tmp_path, wanted) as served:
        await served.play_to(2)
    for path in below(tmp_path, "checkpoints/*/step-*/fake.json"):
        path.unlink()
    async with serving(tmp_path, wanted, start=False) as served:
        served.server.load(wanted)
        await served.server.start()
        status = await served.until(state="FAILED")
        assert "no checkpoint" in status["reason"]
        assert "step-000002 (step 2)" in status["reason"]
    async with serving(tmp_path, job(seed=9)) as served:
        said = (await served.status())["fresh_start"]
    assert f"checkpoints/{wanted.digest()[:12]} (step 2; seed 9, not 0" in said
    assert said in caplog.text


async def test_a_checkpoint_is_due_after_a_while_whatever_the_job_says(tmp_path: Path) -> None:
    wanted, clock = job(steps=5, checkpoint_every=100, checkpoints_kept=5), Clock()
    async with serving(tmp_path, wanted, checkpoint_after_s=60.0) as served:
        training = served.server.training
        training._checkpoints._now, training._checkpoints.saved_at = clock, clock.now
        for done, seconds in enumerate((59.0, 1.0, 30.0, 30.0), 1):
            clock.now += seconds
            await served.play_step()
            await served.until(step=done, state="ROLLING")
    assert [path.name for path in below(tmp_path, "checkpoints/*/*")] == ["step-000002", "step-000004"]


@pytest.mark.slow
async def test_a_store_that_refuses_for_good_fails_the_server_with_the_reason_and_is_not_waited_for(
    tmp_path: Path,
) -> None:
    wanted = job(steps=2, checkpoint_every=1)
    async with serving(tmp_path, wanted) as served:
        for task in "aab":
            await served.play(task)
        lease = await served.begin("b")
        assert (await served.chat(lease, "hi")).status == 200
        execute(default_store(tmp_path), "alter table steps rename to away")
        assert (await served.end(lease, 1.0)).status == 200
        status = await served.until(state="FAILED")
        assert status["waiting"] is None
        for said in ("refuses for good", "no such table: steps", "restart the server"):
            assert said in status["reason"]
        assert "\n" not in status["reason"]
    execute(default_store(tmp_path), "alter table away rename to steps")
    async with serving(tmp_path, wanted) as served:
        await served.until(step=1, state="ROLLING")
        assert steps_of(served) == [1]


async def test_a_store_of_another_directory_fails_the_start_with_its_reason(tmp_path: Path) -> None:
    async with serving(tmp_path / "one"):
        pass
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "store.sqlite3").rename(tmp_path / "two" / "store.sqlite3")
    async with serving(tmp_path / "two", start=False) as served:
        served.server.load(job())
        answer = await served.post("/engine/start", served.admin)
        assert (answer.status, answer.code) == (500, "server_failed")
        status = await served.until(state="FAILED")
        assert "another directory" in status["reason"]
        assert (await served.post("/engine/stop", served.admin)).status == 200
        assert (await served.status())["state"] == "OFFLINE"


async def test_a_jump_of_the_wall_clock_changes_no_lease_and_no_key(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    real = time.time
    lease = await served.begin("a")
    for jump in (1e6, -1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        served.rollout.sweep()
        assert (await served.chat(lease, "hi")).status == 200
    assert (await served.end(lease)).status == 200


def local(folder: Path) -> Callable[[Job], Any]:
    from swarm.backends.local import LocalBackend

    class Named(LocalBackend):
        model_name = MODEL

    return lambda wanted: Named(wanted, folder)


def weights(served: Served, folder: Path) -> dict[str, Any]:
    from swarm.backends.local import checkpoint

    served.server.training.backend.learner.save(folder)
    found = checkpoint.read(folder)
    kept = {f"{name}/{key}": value for name in ("model", "optimizer") for key, value in found.sets[name].items()}
    return {**kept, "order": found.sets["random"]["order"], "version": found.facts["version"]}


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
async def test_recovered_weights_are_bit_equal_to_uninterrupted_ones(tmp_path: Path, lost: bool) -> None:
    """From the checkpoint of step 2, or where that is lost from the first weights: the same bits, optimiser and all."""
    import torch

    model = {"kind": "tiny", "warm_start_steps": 1, "hidden_size": 16, "layers": 1}
    wanted = job(
        steps=4, checkpoint_every=2, backend="local", model=model, max_tokens=4, epochs=2, minibatches=2,
        learning_rate=0.01,
    )  # fmt: skip
    backend = local(tmp_path / "models")
    async with serving(tmp_path, wanted, backend=backend) as served:
        served.model = served.server.training.backend.model_name
        await served.play_to(3)
        truth = weights(served, tmp_path / "truth")
    if lost:
        (damaged,) = below(tmp_path, "checkpoints/*/step-000002/manifest.json")
        damaged.unlink()
    async with serving(tmp_path, wanted, backend=backend) as served:
        assert (await served.status())["step"] == 3
        found = weights(served, tmp_path / "found")
    assert found.keys() == truth.keys()
    assert found.pop("version") == truth.pop("version") == 3
    assert any(name.startswith("optimizer/") for name in found)
    different = [name for name, value in truth.items() if not torch.equal(value, found[name])]
    assert different == []


async def test_transitions_and_recoveries_are_logged_once_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        async with serving(tmp_path) as served:
            await served.play_to(1)
    told = [record.getMessage() for record in caplog.records]
    life = ["BOOTING", "ROLLING", "ROLLING_POST", "WEIGHT_SYNCING", "ROLLING", "OFFLINE"]
    reached = [line.rpartition("to=")[2] for line in told if line.startswith("event=state ")]
    assert reached == [*life, "BOOTING", "ROLLING", "OFFLINE"]
    assert [line for line in told if line.startswith("event=recovered")] == [
        "event=recovered checkpoint=0 step=1 pool=0"
    ]
