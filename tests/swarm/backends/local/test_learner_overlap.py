"""Tests of learner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.local.batcher import Batcher, Generation
from swarm.backends.local.checkpoint import read
from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.policy import Policy, ReadWriteLock, add_adapter
from swarm.backends.protocols import Sampling
from swarm.job import Job
from swarm.rendering.messages import BackendError
from tests.swarm.backends.local import models


def _job(**fields: Any) -> Job:
    return Job(**{"learning_rate": 3e-3, **fields})


def _policy(job: Job, kind: str = "llama") -> Policy:
    torch.set_num_threads(1)
    model = models.make_model(kind)
    if job.lora_rank:
        add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    return Policy(model)


@pytest.mark.parametrize(
    ("kind", "rank", "other", "said"),
    [("llama", 4, 0, "lora_rank 4, .* 0:"), ("llama", 4, 2, "lora_rank 4, .* 2:"),
     ("qwen3", 0, 0, "another model")],
)  # fmt: skip
def test_a_checkpoint_of_another_rank_or_model_is_refused(
    kind: str, rank: int, other: int, said: str, tmp_path: Path
) -> None:
    wrote, reads = _job(lora_rank=rank), _job(lora_rank=other)
    LocalLearner(_policy(wrote, kind), wrote, {}).save(tmp_path / "c")
    policy = _policy(reads)
    before = models.weights_of(policy)
    with pytest.raises(BackendError, match=said):
        LocalLearner(policy, reads, {}).load(tmp_path / "c")
    assert models.same_weights(models.weights_of(policy), before)


def test_an_adapter_learns_what_its_base_keeps_still_for_and_a_checkpoint_holds_it_alone(tmp_path: Path) -> None:
    job = _job(lora_rank=4)
    policy = _policy(job)
    before, learner = models.weights_of(policy), LocalLearner(policy, job, {})
    learner.update(models.make_batch(policy))
    learner.save(tmp_path / "c")
    assert all(".lora_" in name for name in read(tmp_path / "c").sets["model"])
    moved = {name for name, weight in policy.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved
    assert all(".lora_B" in name for name in moved), "at B = 0 the gradient of A is zero"


_PATIENCE_S = 180.0


@dataclass
class _Busy:
    """An engine's loop over a batcher, always with work, until told to stop; keeps every sampled token."""

    policy: Policy
    batcher: Batcher
    stop: threading.Event = field(default_factory=threading.Event)
    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    finished: list[Generation] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                if not self.batcher.busy:
                    for i in range(4):
                        self.batcher.add(Generation([i, 5, 7], Sampling(max_tokens=12)))
                with self.policy.lock.reading():
                    self.finished += [each for each in self.batcher.step() if each.finish]
                self.steps.release()
        except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
            self.broken.append(error)
            self.steps.release()

    def wait(self, steps: int) -> None:
        for _ in range(steps):
            assert self.steps.acquire(timeout=_PATIENCE_S)


@contextmanager
def _generating(policy: Policy) -> Iterator[_Busy]:
    busy = _Busy(policy, Batcher(policy, slots=4, positions=32, seed=0))
    thread = threading.Thread(target=busy.run)
    thread.start()
    try:
        yield busy
    finally:
        busy.stop.set()
        thread.join(_PATIENCE_S)
    assert not busy.broken
    assert not thread.is_alive()


def test_generation_goes_on_within_an_update_between_its_steps_and_under_its_gradients() -> None:
    policy = models.make_policy()
    learner = LocalLearner(policy, Job(max_staleness=1, epochs=2, micro_batch_tokens=64), {})
    plain = learner._backward

    def patient(*arguments: Any) -> None:
        busy.wait(1)
        plain(*arguments)
        busy.wait(1)

    learner._backward = patient  # type: ignore[method-assign]
    with _generating(policy) as busy:
        learner.update(models.make_batch(policy, drift=0.05))
    assert policy.version == 1


@pytest.mark.parametrize("error", [BackendError("refused"), RuntimeError("out of memory")])
def test_an_update_that_fails_half_way_is_undone_under_a_running_engine(error: Exception) -> None:
    job = Job(max_staleness=1, epochs=2, minibatches=2)
    policy, twin = models.make_policy(), models.make_policy()
    learner, untouched = LocalLearner(policy, job, {}), LocalLearner(twin, job, {})
    batch = models.make_batch(policy, drift=0.05)
    for each in (learner, untouched):
        each.update(batch)
    before, step, made = models.weights_of(policy), learner._step, []

    def failing(size: float, *, last: bool) -> float:
        made.append(last)
        if len(made) == 3:
            raise error
        return step(size, last=last)

    with _generating(policy) as busy:
        learner._step = failing  # type: ignore[method-assign]
        with pytest.raises(type(error), match=str(error)):
            learner.update(batch)
        busy.wait(1)
        assert policy.version == 1
        assert policy.revision == 7, "4 steps, 2 that were undone, and the undoing: keys of the undone ones are stale"
        assert models.same_weights(models.weights_of(policy), before)
        learner._step = step  # type: ignore[method-assign]
        learner.update(batch)
    untouched.update(batch)
    assert models.same_weights(models.weights_of(policy), models.weights_of(twin))


def test_a_writer_is_alone_and_goes_before_later_readers() -> None:
    lock = ReadWriteLock()
    order: list[str] = []

    def write() -> None:
        with lock.writing():
            order.append("writer")

    def read() -> None:
        with lock.reading():
            order.append("reader")

    writer, reader = threading.Thread(target=write), threading.Thread(target=read)
    with lock.reading():
        writer.start()
        while not lock._writers_waiting:
            writer.join(0.001)
        reader.start()
        assert order == []
    writer.join(_PATIENCE_S)
    reader.join(_PATIENCE_S)
    assert order == ["writer", "reader"]
