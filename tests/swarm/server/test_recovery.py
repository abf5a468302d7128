"""A server that starts again in its directory goes on where it was: nothing is lost that was acknowledged, or twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from swarm.backends.fake.backend import FakeLearner
from swarm.backends.protocols import Batch
from swarm.errors import StoreUnavailable
from swarm.job import Job, Tracking
from swarm.server.batches import streams
from swarm.server.service import core
from swarm.server.service.core import default_store
from swarm.server.shared.directory import ServerDirectory
from swarm.store import Captured, Change, Consumed, InStep, SqlStore, open_store
from swarm.timelines import Drift, Node
from swarm.wire import tasks_digest
from tests.swarm.server.support import MODEL, Clock, Served, job, serving

MEASURED = ("timing_s/", "lease/", "pool/", "trainer/", "rollouter/", "tokens/generated")
"""Metrics that are of the moment, and not of the batch."""


async def play_step(served: Served, tasks: str = "aabb") -> None:
    await asyncio.gather(*(served.play(task, float(number % 2)) for number, task in enumerate(tasks)))


async def play_to(served: Served, step: int) -> None:
    for done in range((await served.status())["step"], step):
        await play_step(served)
        await served.until(step=done + 1, state="ROLLING")


def below(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def steps_of(served: Served) -> list[int]:
    """Return the steps the weights hold; fail if an episode is in them twice."""
    trained = served.backend.learner.trained
    episodes = [name for _, batch in trained for name, _ in batch]
    assert len(set(episodes)) == len(episodes)
    return [step for step, _ in trained]


async def test_a_restarted_training_goes_on_with_its_step_and_its_pool(tmp_path: Path) -> None:
    wanted = job(steps=5, checkpoint_every=2)
    async with serving(tmp_path, wanted) as served:
        await play_to(served, 3)
        for task in "aab":
            await served.play(task)
    async with serving(tmp_path, wanted) as served:
        status = await served.status()
        assert (status["step"], status["policy_version"], status["collected_episodes"]) == (3, 3, 3)
        assert steps_of(served) == [1, 2, 3]
        await served.play("b")
        await served.until(step=4, state="ROLLING")
        assert steps_of(served) == [1, 2, 3, 4]
        assert {name for _, batch in served.backend.learner.trained[2:] for name, _ in batch} >= {
            episode.episode_id for episode in served.backend.learner.batches[-1].episodes
        }


async def test_only_the_steps_after_the_checkpoint_are_learned_again(tmp_path: Path) -> None:
    wanted = job(steps=5, checkpoint_every=2)
    async with serving(tmp_path, wanted) as served:
        await play_to(served, 3)
        before = served.backend.learner.batches
    async with serving(tmp_path, wanted) as served:
        (again,) = served.backend.learner.batches
        assert again == before[2]  # rows, rewards, weights, order


async def test_a_holder_of_an_old_lease_is_told_that_it_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        lease = await served.begin("a")
        assert (await served.chat(lease, "hi")).status == 200
    async with serving(tmp_path) as served:
        for answer in (await served.chat(lease, "hi"), await served.end(lease), await served.verb(lease, "heartbeat")):
            assert (answer.status, answer.code) == (409, "lease_lost")
            assert "begin a new one" in answer.message
        await play_to(served, 1)


async def test_an_acknowledged_end_is_acknowledged_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        lease = await served.begin("a")
        await served.chat(lease, "hi")
        assert (await served.end(lease)).status == 200
    async with serving(tmp_path) as served:
        assert (await served.end(lease)).status == 200
        assert (await served.status())["collected_episodes"] == 1


async def test_a_finished_job_stays_finished(tmp_path: Path) -> None:
    async with serving(tmp_path, job(steps=1)) as served:
        await play_step(served)
        await served.until(finished=True)
    async with serving(tmp_path, job(steps=1)) as served:
        assert (await served.status())["finished"]
        assert steps_of(served) == [1]
        refused = await served.post("/episodes", served.admin, {"task_id": "a", "wait_s": 5})
        assert (refused.status, refused.code) == (410, "job_finished")
        assert (await served.chat(await served.begin("a", kind="eval"), "hi")).status == 200


async def test_another_job_in_the_same_directory_begins_beside_the_first(tmp_path: Path) -> None:
    first, second = job(steps=2, checkpoint_every=1), job(steps=2, checkpoint_every=1, seed=9)
    async with serving(tmp_path, first) as served:
        await play_to(served, 1)
    async with serving(tmp_path, second) as served:
        assert (await served.status())["step"] == 0
        await play_to(served, 1)
    async with serving(tmp_path, first) as served:
        assert (await served.status())["step"] == 1
        assert len(below(tmp_path, "checkpoints/*/step-000001")) == 2


async def test_the_same_job_with_more_steps_goes_on_where_it_was_finished(tmp_path: Path) -> None:
    begun = job(steps=1)
    async with serving(tmp_path, begun) as served:
        await play_step(served)
        await served.until(finished=True)
    async with serving(tmp_path, job(steps=3, checkpoint_every=1)) as served:
        status = await served.status()
        assert (status["step"], status["finished"], status["fresh_start"]) == (1, False, None)
        await play_to(served, 2)
        assert steps_of(served) == [1, 2]
        (checkpoints,) = below(tmp_path, "checkpoints/*")
        assert checkpoints.name == begun.digest()[:12]
        kept = (await served.call("GET", "/checkpoints", served.admin)).body
        assert (kept["job_digest"], [one["step"] for one in kept["checkpoints"]]) == (begun.digest(), [2, 1])


async def test_a_training_that_begins_beside_checkpoints_says_so_in_status_and_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = job(checkpoint_every=1)
    async with serving(tmp_path, first) as served:
        assert (await served.status())["fresh_start"] is None
        await play_to(served, 1)
    async with serving(tmp_path, job(checkpoint_every=1, seed=9)) as served:
        said = (await served.status())["fresh_start"]
    assert f"checkpoints/{first.digest()[:12]} (step 1; seed 9, not 0)" in said
    assert said in caplog.text


async def test_a_batch_that_was_settled_and_not_learned_is_learned_at_the_start(tmp_path: Path) -> None:
    """Killed after the batch was settled, before the learner saw it."""
    wanted = job()
    async with serving(tmp_path, wanted) as served:
        for task in "aab":
            await served.play(task)
    store, recovered = open_store(default_store(tmp_path), wanted, ServerDirectory(tmp_path).installation())
    names = tuple(sample.episode for sample in recovered.pool)
    await store.write(InStep(1, names))
    await store.close()
    async with serving(tmp_path, wanted) as served:
        assert (await served.status())["step"] == 1
        assert [name for name, _ in served.backend.learner.trained[0][1]] == list(names)


@pytest.mark.parametrize("kept", [1, 2])
async def test_checkpoints_beyond_the_kept_ones_are_deleted(tmp_path: Path, kept: int) -> None:
    async with serving(tmp_path, job(steps=5, checkpoint_every=1, checkpoints_kept=kept)) as served:
        await play_to(served, 4)
        await served.play("a")  # later than the deletion
        found = {path.name for path in below(tmp_path, "checkpoints/*/*")}
    assert found == {f"step-{step:06d}" for step in range(5 - kept, 5)}


async def test_what_a_crash_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    wanted = job(steps=3, checkpoint_every=1)
    async with serving(tmp_path, wanted) as served:
        await play_to(served, 1)
    (folder,) = below(tmp_path, "checkpoints/*")
    for name in ("step-000002", ".step-000002.partial-x", "step-000003.part", "mine"):
        (folder / name).mkdir()
    async with serving(tmp_path, wanted):
        assert {path.name for path in folder.iterdir()} == {"step-000001", "mine"}


async def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    wanted = job(steps=5, checkpoint_every=1)
    async with serving(tmp_path, wanted) as served:
        await play_to(served, 3)
        truth = served.backend.learner.trained
    (newest,) = below(tmp_path, "checkpoints/*/step-000003/fake.json")
    newest.unlink()
    async with serving(tmp_path, wanted) as served:
        assert served.backend.learner.trained == [(step, list(batch)) for step, batch in truth]
        assert [batch.step for batch in served.backend.learner.batches] == [3]
    assert json.loads(newest.read_text())["version"] == 3  # written again where it was due


async def test_without_any_checkpoint_that_loads_nothing_is_made_up(tmp_path: Path) -> None:
    wanted = job(steps=5, checkpoint_every=1, checkpoints_kept=1)
    async with serving(tmp_path, wanted) as served:
        await play_to(served, 2)
    for path in below(tmp_path, "checkpoints/*/step-*/fake.json"):
        path.unlink()
    async with serving(tmp_path, wanted, start=False) as served:
        served.server.load(wanted)
        await served.server.start()
        status = await served.until(state="FAILED")
        assert "no checkpoint could be loaded" in status["reason"]
        assert "expected step-000002 (step 2) or a later one" in status["reason"]


class Recording:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.logged.append((step, dict(metrics)))

    def finish(self) -> None: ...


async def test_the_tracker_of_a_restarted_training_is_told_of_every_step_once(tmp_path: Path) -> None:
    trackers: list[Recording] = []

    def tracker(_: Job) -> Recording:
        trackers.append(Recording())
        return trackers[-1]

    wanted = job(steps=5, checkpoint_every=2, tracking=Tracking())
    async with serving(tmp_path, wanted, tracker=tracker) as served:
        await play_to(served, 3)
    async with serving(tmp_path, wanted, tracker=tracker) as served:
        await play_to(served, 4)
    before, after = (recorded.logged for recorded in trackers)
    assert [step for step, _ in after] == [1, 2, 3, 4]
    assert after[:2] == before[:2], "what the checkpoint holds, to the last digit"
    again, first = after[2][1], before[2][1]
    exact = [name for name in first if not name.startswith(MEASURED)]
    assert {name: again[name] for name in exact} == {name: first[name] for name in exact}
    assert "critic/rewards/mean" in exact
    rollout = ("timing_s/gen", "timing_s/settle", "tokens/generated")
    assert [again[name] for name in rollout] == [first[name] for name in rollout]


async def test_a_checkpoint_is_due_after_a_while_whatever_the_job_says(tmp_path: Path) -> None:
    wanted, clock = job(steps=5, checkpoint_every=100, checkpoints_kept=5), Clock()
    async with serving(tmp_path, wanted, checkpoint_after_s=60.0) as served:
        training = served.server.training
        training._now, training._saved_at = clock, clock.now
        for done, seconds in enumerate((59.0, 1.0, 30.0, 30.0), 1):
            clock.now += seconds
            await play_step(served)
            await served.until(step=done, state="ROLLING")
    assert [path.name for path in below(tmp_path, "checkpoints/*/*")] == ["step-000002", "step-000004"]


async def test_transitions_and_recoveries_are_written_down(tmp_path: Path) -> None:
    for _ in range(2):
        async with serving(tmp_path) as served:
            await play_to(served, 1)
    with sa.create_engine(default_store(tmp_path)).connect() as connection:
        rows = connection.execute(sa.text("select kind, details from events order by serial")).all()
    events = [(kind, json.loads(details)) for kind, details in rows]
    life = ["BOOTING", "ROLLING", "ROLLING_POST", "WEIGHT_SYNCING", "ROLLING", "OFFLINE"]
    assert [details["to"] for kind, details in events if kind == "state"] == [*life, "BOOTING", "ROLLING", "OFFLINE"]
    assert [details for kind, details in events if kind == "recovered"] == [{"checkpoint": 0, "step": 1, "pool": 0}]


class Moody:
    """A store that refuses some changes until it is told to take them."""

    def __init__(self, store: SqlStore, refused: type[Change]) -> None:
        self._store = store
        self._refused = refused
        self.full = True
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *changes: Change) -> None:
        if self.full and any(isinstance(change, self._refused) for change in changes):
            self.tries += 1
            raise StoreUnavailable("disk full")
        await self._store.write(*changes)


def moody_stores(monkeypatch: pytest.MonkeyPatch, refused: type[Change]) -> list[Moody]:
    """Let servers open moody stores, which they soon try again; return them as they come."""
    stores: list[Moody] = []

    def opened(*arguments: Any) -> Any:
        store, recovered = open_store(*arguments)
        stores.append(Moody(store, refused))
        return stores[-1], recovered

    monkeypatch.setattr(core, "open_store", opened)
    monkeypatch.setattr("swarm.server.training.training.RETRY_S", (0.01, 0.01))
    return stores


@pytest.mark.parametrize("refused", [InStep, Consumed])
async def test_a_step_waits_for_the_store_and_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: type[Change]
) -> None:
    stores = moody_stores(monkeypatch, refused)
    async with serving(tmp_path, job(steps=2, checkpoint_every=1)) as served:
        await play_step(served)
        status = await served.until(waiting="step 1 waits for the store: disk full")
        assert (status["state"], status["reason"]) == ("WEIGHT_SYNCING", None)
        stores[0].full = False
        status = await served.until(step=1, state="ROLLING")
        assert status["waiting"] is None
        assert stores[0].tries >= 1
        assert steps_of(served) == [1]


async def changed(folder: Path, statement: str) -> None:
    """Change the schema under a server."""
    engine = sa.create_engine(default_store(folder))
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


async def test_a_store_that_refuses_for_good_fails_the_server_with_the_reason_and_is_not_waited_for(
    tmp_path: Path,
) -> None:
    wanted = job(steps=2, checkpoint_every=1)
    async with serving(tmp_path, wanted) as served:
        for task in "aab":
            await served.play(task)
        lease = await served.begin("b")
        assert (await served.chat(lease, "hi")).status == 200
        await changed(tmp_path, "alter table steps rename to away")
        assert (await served.end(lease, 1.0)).status == 200
        status = await served.until(state="FAILED")
        assert status["waiting"] is None
        for said in ("refuses for good", "no such table: steps", "mend it and restart the server"):
            assert said in status["reason"]
        assert "\n" not in status["reason"]
    await changed(tmp_path, "alter table away rename to steps")
    async with serving(tmp_path, wanted) as served:
        await served.until(step=1, state="ROLLING")
        assert steps_of(served) == [1]


async def test_a_store_that_lost_what_was_noted_trains_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a call that nobody took only a note tells that it is not to be trained."""
    wanted = job(steps=2)
    async with serving(tmp_path, wanted) as served:
        for task in "aab":
            await served.play(task)
        lease = await served.begin("b")
        assert (await served.chat(lease, "hi")).status == 200
        store = served.server.training.store
        store.note(Captured("nobody", Node(0, None, (1,), (2,), (-0.1,), (0,), "", Drift.START)))
        await served.end(lease, 1.0)
        status = await served.until(state="FAILED")
        assert "a note was refused, and so is lost" in status["reason"]
        assert steps_of(served) == []


async def test_a_batch_that_was_taken_and_not_settled_counts_once_for_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "open_store", lambda *arguments: _moody(open_store(*arguments)))
    async with serving(tmp_path, job()) as served:
        await play_step(served)
        await served.until(waiting="step 1 waits for the store: disk full")
    monkeypatch.undo()
    async with serving(tmp_path, job()) as served:
        await served.until(step=1, state="ROLLING")
        (stream,) = (await served.call("GET", "/streams", served.admin)).body["streams"]
        assert (stream["cursor"], stream["groups_trained"]) == (2, 2)


def _moody(opened: Any) -> Any:
    store, recovered = opened
    return Moody(store, InStep), recovered


async def test_an_engine_stopped_while_it_learns_again_learns_each_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job(steps=4, checkpoint_every=4)
    async with serving(tmp_path, wanted) as served:
        await play_to(served, 3)
    update, reached, go_on = FakeLearner.update, threading.Event(), threading.Event()

    def slow(learner: FakeLearner, batch: Batch) -> Mapping[str, float]:
        reached.set()
        go_on.wait()
        return update(learner, batch)

    async with serving(tmp_path, wanted, start=False) as served:
        with monkeypatch.context() as patch:
            patch.setattr(FakeLearner, "update", slow)
            served.server.load(wanted)
            await served.server.start()
            await asyncio.to_thread(reached.wait)
            stopping = asyncio.create_task(served.server.stop())
            await served.until(state="OFFLINE")
            go_on.set()
            await stopping
        await served.server.start()
        assert (await served.until(state="ROLLING"))["step"] == 3
        assert steps_of(served) == [1, 2, 3]


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
        assert "belongs to the server of another directory" in status["reason"]
        assert (await served.post("/engine/stop", served.admin)).status == 200
        assert (await served.status())["state"] == "OFFLINE"


async def test_a_jump_of_the_wall_clock_changes_no_lease_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    real = time.time
    async with serving(tmp_path) as served:
        lease = await served.begin("a")
        for jump in (1e6, -1e6):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            served.server.training.rollout.sweep()
            assert (await served.chat(lease, "hi")).status == 200
        assert (await served.end(lease)).status == 200


def local(folder: Path) -> Callable[[Job], Any]:
    from swarm.backends.local import LocalBackend

    class Named(LocalBackend):
        model_name = MODEL

    return lambda wanted: Named(wanted, folder)


def weights(served: Served, folder: Path) -> dict[str, Any]:
    """Return everything the learner holds but the sampler's randomness."""
    from swarm.backends.local.learning import checkpoint

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
        await play_to(served, 3)
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


async def test_streams_keep_their_curves_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones have them by the order in which they came, whatever their names and their task lists."""
    monkeypatch.setattr(streams, "MOST_CHARTED", 2)
    wanted = job(steps=3, episodes_per_step=6, group_size=2)

    async def step(served: Served, number: int) -> set[str]:
        for stream in ("web", "shell", "code"):
            for _ in range(2):
                body = {"task_id": "t", "stream": stream, "wait_s": 10.0}
                lease = dict((await served.post("/episodes", served.admin, body)).body)
                await served.chat(lease)
                await served.end(lease)
        metrics = (await served.until(step=number))["metrics"]
        return {name.split("/")[1] for name in metrics if name.startswith("stream/")}

    async with serving(tmp_path, wanted) as served:
        listed = {"stream": "code", "digest": tasks_digest(["t"]), "count": 1, "ids": ["t"]}
        assert (await served.post("/streams/tasks", served.admin, listed)).status == 200
        first = await step(served, 1)
        assert first == {"web", "shell", "others+"}
    for number in (2, 3):
        async with serving(tmp_path, wanted) as served:
            assert await step(served, number) == first
