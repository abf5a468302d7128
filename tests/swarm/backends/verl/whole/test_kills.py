"""SIGKILL to a rank, to a replica's actor and to the vLLM below it, each in the middle of every phase of a training.

A process is shot by a hook that the phase itself runs into: a layer's backward, a file just written, a first token.
What must hold is what docs/cluster.md promises of deaths, judged by a training that nothing happened to.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from swarm.backends.local import checkpoint
from swarm.backends.protocols import Batch, RequestLost, Sampling
from swarm.backends.verl.backend import VerlBackend, _learner
from swarm.job import Job, PathModel
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields
from tests.swarm.backends.conformance.cluster_kind import pids
from tests.swarm.backends.conformance.kinds import MINIBATCHES, Answer, ask, played
from tests.swarm.backends.local.models import save_folder
from tests.swarm.backends.verl.whole.conftest import started
from tests.swarm.server import support

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]
GREEDY = Sampling(max_tokens=6, temperature=0)
PROMPT = [1, 2, 3, 9]
SOON_S = 60.0
"""Seconds within which a dead rank is told of."""
UP_S = 300.0
LEARNING = ("score", "gradient", "step")


@dataclass
class Training:
    """A backend at its first checkpoint, with the batch that it learns next, and what it is like before and after."""

    backend: VerlBackend
    saved: Path
    batch: Batch
    weights: str
    answers: dict[int, Answer]

    async def update(self) -> None:
        await asyncio.to_thread(self.backend.learner.update, self.batch)

    async def publish(self) -> None:
        await asyncio.to_thread(self.backend.publish)

    async def go_back(self) -> None:
        await asyncio.to_thread(self.backend.learner.load, self.saved)
        await self.publish()

    async def weights_now(self) -> str | None:
        return await asyncio.to_thread(self.backend.weights)

    async def answer_alike(self, version: int) -> None:
        """Every replica answers as that version does; who asks one that is dying is told so, and asks again."""
        handles = self.backend.engine._serving_instances()
        asked: list[Any] = await asyncio.gather(
            *(ask(self.backend, PROMPT, GREEDY) for _ in handles or [0]), return_exceptions=True
        )
        for answer in asked:
            if isinstance(answer, RequestLost):
                answer = await ask(self.backend, PROMPT, GREEDY)
            assert set(answer.versions) == {version}
            assert answer.ids == self.answers[version].ids
            assert answer.logprobs == pytest.approx(self.answers[version].logprobs, abs=1e-4)

    async def all_serve(self) -> None:
        async with asyncio.timeout(UP_S):
            while len(self.backend.engine._serving_instances()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def actor(self, victim: str) -> Any:
        handle: Any = self.backend.engine._serving_instances()[0].handle
        return self.backend.learner.group._actors[1] if victim == "rank" else handle._actor

    def process(self, victim: str) -> psutil.Process:
        process = psutil.Process(pids([self.actor(victim)])[0])
        return core_of(process) if victim == "engine" else process

    def new_ranks(self) -> None:
        """Do for the learner what a server that starts again does."""
        own = self.backend
        parts = own._parts
        learner = _learner(own.job, Path(own.job.model.path), own._cluster, parts.engine._seeds)
        own._started = replace(parts, learner=learner)


def title(process: psutil.Process) -> str:
    """What it calls itself; "" once it is gone."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def core_of(actor: psutil.Process) -> psutil.Process:
    return next(each for each in actor.children(recursive=True) if "EngineCore" in title(each))


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Training]:
    folder = tmp_path_factory.mktemp("killed")
    fields = VerlFields(trainers=2, replicas=2)
    async with started(folder, fields, learning_rate=1e-2, **MINIBATCHES) as backend:
        await asyncio.to_thread(backend.learner.update, await played(backend, 16, 0, 6))
        await asyncio.to_thread(backend.publish)
        training = Training(backend, folder / "saved", await played(backend, 16, 1, 6), "", {})
        await asyncio.to_thread(backend.learner.save, training.saved)
        training.answers[1] = await ask(backend, PROMPT, GREEDY)
        await training.update()
        await training.publish()
        training.answers[2] = await ask(backend, PROMPT, GREEDY)
        training.weights = await training.weights_now() or ""
        yield training


@pytest.fixture
async def training(whole: Training) -> Training:
    """It, at its checkpoint, with two replicas that nobody holds earlier deaths against, and ranks that live."""
    if whole.backend.learner.group.failure is not None:
        await asyncio.to_thread(whole.new_ranks)
    await whole.all_serve()
    for place in whole.backend.engine._slots:
        place.deaths = 0
    await whole.go_back()
    return whole


def _shot(pid: int) -> Callable[..., None]:
    left = [pid]

    def shoot(*_: Any, **__: Any) -> None:
        if left:
            os.kill(left.pop(), signal.SIGKILL)

    return shoot


def _before(module: Any, name: str, shoot: Callable[..., None], calls: int = 1) -> None:
    own, left = getattr(module, name), [calls]

    def wrapped(*arguments: Any, **same: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            shoot()
        return own(*arguments, **same)

    setattr(module, name, wrapped)


def in_rank(rank: Any, phase: str, pid: int) -> None:
    """Shoot a process once this rank is in the middle of a phase."""
    from swarm.backends.verl import worker

    shoot, layer = _shot(pid), rank._engine.module.model.layers[1]
    if phase == "score":
        layer.register_forward_hook(shoot)
    elif phase == "gradient":
        layer.register_full_backward_hook(shoot)
    elif phase == "step":
        rank._engine.optimizer.register_step_post_hook(shoot)
    elif phase == "export":
        _before(worker, "_full_tensor", shoot, calls=3)
    elif phase == "save":
        _before(checkpoint, "_sync", shoot)  # its tensors are written, what makes them a checkpoint is not
    else:
        own = worker.put_weights
        worker.put_weights = lambda *arguments: (own(*arguments), shoot())[0]  # weights are back, moments are not


def in_replica(replica: Any, phase: str, pid: int) -> None:
    """Shoot a process once this replica has sampled its first token, or has begun to load weights."""
    shoot, model = _shot(pid), replica._model
    if phase == "publish":
        _before(model, "load_bucket", shoot)
        return
    stream = model.stream

    async def streamed(*arguments: Any) -> AsyncIterator[Any]:
        async for chunk in stream(*arguments):
            yield chunk
            shoot()

    model.stream = streamed


def arm(actor: Any, hook: Callable[[Any, str, int], None], phase: str, pid: int) -> None:
    """Have an actor run into a hook."""
    import ray

    ray.get(actor.__ray_call__.remote(hook, phase, pid), timeout=60)


PHASES = ("generate", *LEARNING, "export", "publish", "save", "load")


async def enter(training: Training, phase: str, folder: Path) -> Sequence[Answer | BaseException]:
    """Do what a phase is in; return the answers that were asked for meanwhile."""
    learner = training.backend.learner
    if phase in LEARNING:
        await training.update()
    elif phase in ("export", "publish"):
        await training.publish()
    elif phase == "save":
        await asyncio.to_thread(learner.save, folder / "saved")
    elif phase == "load":
        await asyncio.to_thread(learner.load, training.saved)
    else:
        long = Sampling(max_tokens=60)
        return await asyncio.gather(*(ask(training.backend, PROMPT, long) for _ in range(2)), return_exceptions=True)
    return ()


@pytest.mark.parametrize("victim", ["rank", "actor", "engine"])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_kill_in_a_phase(phase: str, victim: str, training: Training, tmp_path: Path) -> None:
    if phase in ("export", "publish"):
        await training.update()
    process = training.process(victim)
    family = [process, *process.children(recursive=True)]
    hook, within = (in_replica, "actor") if phase in ("generate", "publish") else (in_rank, "rank")
    await asyncio.to_thread(arm, training.actor(within), hook, phase, process.pid)
    begun = time.monotonic()
    if victim == "rank":
        await judge_dead_rank(training, phase, tmp_path, begun)
    else:
        await judge_dead_replica(training, phase, tmp_path)
    assert not (await asyncio.to_thread(psutil.wait_procs, family, 60))[1]


async def judge_dead_rank(training: Training, phase: str, folder: Path, begun: float) -> None:
    """The training is over for that reason, soon; replicas answer still, and its last checkpoint goes on exactly."""
    backend = training.backend
    with suppress(BackendError):  # what it was asked in; in other phases nobody is told yet
        await enter(training, phase, folder)
    async with asyncio.timeout(SOON_S):
        while (failure := backend.failure()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert time.monotonic() - begun < SOON_S
    assert failure.startswith("rank 1 of the learner died during ")
    assert failure.endswith("; start the server again")
    assert not (folder / "saved").exists()
    with pytest.raises(BackendError, match="rank 1 of the learner died"):
        await training.update()
    await training.answer_alike(2 if phase == "publish" else 1)
    await asyncio.to_thread(training.new_ranks)
    await training.go_back()
    await training.update()
    assert await training.weights_now() == training.weights


async def judge_dead_replica(training: Training, phase: str, folder: Path) -> None:
    """What was done is done all the same; the other replica answers on, and one is made again as they are now."""
    backend = training.backend
    found = await enter(training, phase, folder)
    assert sum(isinstance(each, RequestLost) for each in found) == (phase == "generate")
    assert sum(isinstance(each, Answer) for each in found) == (phase == "generate")
    version = 2 if phase in ("export", "publish") else 1
    await training.answer_alike(version)
    assert backend.failure() is None
    if phase in LEARNING:
        await training.publish()
        version = 2
    if version == 2:
        assert await training.weights_now() == training.weights
    if phase == "save":
        await asyncio.to_thread(backend.learner.load, folder / "saved")
    await training.answer_alike(version)
    await training.all_serve()
    await training.answer_alike(version)


def booting(actor: str, below: str = "") -> list[psutil.Process]:
    """Processes in which an actor's method runs, each followed by those below it, if one of them is called so."""
    found = []
    for process in psutil.Process().children(recursive=True):
        if title(process).startswith(f"ray::{actor}"):
            with suppress(psutil.NoSuchProcess):
                children = process.children(recursive=True)
                if not below or any(below in title(each) for each in children):
                    found += [process, *children]
    return found


async def see(look: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    async with asyncio.timeout(UP_S):
        while not (found := await asyncio.to_thread(look)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


async def test_a_rank_killed_as_it_boots_is_told_of_and_leaves_no_other(training: Training) -> None:
    training.backend.learner.stop()
    boot = asyncio.ensure_future(asyncio.to_thread(training.new_ranks))
    ranks = await see(partial(booting, "Rank.start"))
    ranks[0].kill()
    begun = time.monotonic()
    with pytest.raises(BackendError, match=r"rank \d of the learner died during start: .*; start the server again"):
        await boot
    assert time.monotonic() - begun < SOON_S
    assert not (await asyncio.to_thread(psutil.wait_procs, ranks, 60))[1]
    await training.answer_alike(1)


@pytest.mark.parametrize("victim", ["actor", "engine"])
async def test_a_replica_killed_as_it_is_made_again_is_made_once_more(victim: str, training: Training) -> None:
    training.process("actor").kill()
    family = await see(partial(booting, "Replica.boot", "spawn_main"))
    victims = family[:1] if victim == "actor" else family[1:]
    for each in victims:
        each.kill()
    assert not (await asyncio.to_thread(psutil.wait_procs, family, 60))[1]
    await training.answer_alike(1)
    await training.all_serve()
    await training.answer_alike(1)


@pytest.mark.parametrize("victim", ["rank", "actor", "engine"])
async def test_a_kill_in_the_first_boot_fails_it_with_a_reason_and_leaves_nobody(
    victim: str, training: Training, tmp_path: Path
) -> None:
    async def boot() -> None:
        async with started(tmp_path, VerlFields()):
            pass

    before = set(psutil.Process().children(recursive=True))
    booted = asyncio.ensure_future(boot())
    family = await see(partial(booting, *(("Rank.start",) if victim == "rank" else ("Replica.boot", "spawn_main"))))
    for each in family[1:] if victim == "engine" else family[:1]:
        each.kill()
    begun = time.monotonic()
    with pytest.raises(BackendError, match="rank 0 of the learner died" if victim == "rank" else "replica 0: "):
        await booted
    assert time.monotonic() - begun < SOON_S
    made = set(psutil.Process().children(recursive=True)) - before
    actors = [each for each in made if title(each).startswith("ray::R")]
    assert not (await asyncio.to_thread(psutil.wait_procs, actors, 60))[1]
    await training.answer_alike(1)


async def test_a_server_whose_rank_is_killed_in_an_update_says_why_and_learns_each_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "DEADLINE_S", UP_S)
    model, made = PathModel(path=str(save_folder(tmp_path / support.MODEL, "wide"))), list[VerlBackend]()
    small = {"max_context": 128, "max_tokens": 8, "steps": 2, "episodes_per_step": 4, "group_size": 2}
    job = Job(backend="verl", device="cpu", model=model, checkpoint_every=1, **small)

    def backend(wanted: Job) -> VerlBackend:
        made.append(VerlBackend(wanted, tmp_path / "models"))
        return made[-1]

    async with support.serving(tmp_path, job, backend=backend) as served:
        await served.play_to(1)
        (rank,) = made[0].learner.group._actors
        await asyncio.to_thread(arm, rank, in_rank, "gradient", pids([rank])[0])
        await served.play_step()
        told = await served.until(state="FAILED")
        assert re.match("rank 0 of the learner died during gradient: .*; start the server again$", told["reason"])
        assert (await served.post("/episodes", served.admin, {"task_id": "a"})).code == "server_failed"
        assert (await served.post("/engine/stop", served.admin)).body["state"] == "OFFLINE"
        assert (await served.post("/engine/start", served.admin)).status == 200
        await served.until(step=2, finished=True)
        assert [step["step"] for step in (await served.get("/history"))["steps"]] == [1, 2]
    assert len(made) == 2
