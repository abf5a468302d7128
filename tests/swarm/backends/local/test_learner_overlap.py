"""Learning while the engine generates: neither sees the other but in new versions."""

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
from swarm.backends.local.policy import Policy, ReadWriteLock
from swarm.backends.protocols import Sampling
from swarm.job import Job
from swarm.rendering.messages import BackendError
from tests.swarm.backends.local.models import forced_logprobs, make_batch, make_policy, same_weights, weights_of

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


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"kl_coef": 0.1, "gradient_checkpointing": True, "epochs": 2}])
def test_updates_learn_the_same_while_the_engine_generates(fields: dict[str, Any]) -> None:
    job = Job(max_staleness=1, micro_batch_tokens=64, **fields)
    alone, beside = make_policy(), make_policy()
    batches = [make_batch(alone, seed=seed, drift=0.05) for seed in range(4)]
    quiet, learner = LocalLearner(alone, job, {}), LocalLearner(beside, job, {})
    for batch in batches:
        quiet.update(batch)
    with _generating(beside) as busy:
        for batch in batches:
            busy.wait(3)
            learner.update(batch)
    assert beside.version == 4
    assert same_weights(weights_of(alone), weights_of(beside))


@pytest.mark.slow
def test_every_token_was_sampled_by_the_weights_of_its_version() -> None:
    policy, judge = make_policy(), make_policy()
    learner = LocalLearner(policy, Job(max_staleness=1, micro_batch_tokens=64, learning_rate=0.01), {})
    by_version = [weights_of(policy)]
    with _generating(policy) as busy:
        for seed in range(4):
            busy.wait(5)
            learner.update(make_batch(judge, seed=seed, drift=0.05))
            by_version.append(weights_of(policy))
        busy.wait(14)
    sampled = [(done, place, token) for done in busy.finished for place, token in enumerate(done.fresh)]
    assert len({token.version for _, _, token in sampled}) > 2
    for version, weights in enumerate(by_version):
        judge.model.load_state_dict(weights, strict=False)
        own = [each for each in sampled if each[2].version == version]
        for done, place, token in own[:: max(1, len(own) // 30)]:
            known = done.ids[: done.prompt_length + place]
            assert token.logprob == pytest.approx(forced_logprobs(judge, known, [token.id])[0], abs=1e-4)


def test_generation_goes_on_within_an_update_between_its_steps_and_under_its_gradients() -> None:
    policy = make_policy()
    learner = LocalLearner(policy, Job(max_staleness=1, epochs=2, micro_batch_tokens=64), {})
    plain = learner._backward

    def patient(*arguments: Any) -> None:
        busy.wait(1)
        plain(*arguments)
        busy.wait(1)

    learner._backward = patient  # type: ignore[method-assign]
    with _generating(policy) as busy:
        learner.update(make_batch(policy, drift=0.05))
    assert policy.version == 1


def test_the_version_grows_with_the_last_optimiser_step_of_an_update() -> None:
    policy = make_policy()
    learner = LocalLearner(policy, Job(epochs=2, minibatches=2), {})
    seen: list[tuple[int, bool]] = []
    rewriting = policy.rewriting

    @contextmanager
    def watched() -> Iterator[None]:
        before = weights_of(policy)
        with rewriting():
            yield
        seen.append((policy.version, same_weights(before, weights_of(policy))))

    policy.rewriting = watched  # type: ignore[method-assign]
    learner.update(make_batch(policy, drift=0.05))
    assert seen == [(0, False), (0, False), (0, False), (1, False)]
    assert policy.revision == 4


def test_a_checkpoint_written_while_the_engine_generates_is_whole(tmp_path: Path) -> None:
    policy, other = make_policy(), make_policy()
    learner = LocalLearner(policy, Job(max_staleness=1), {})
    with _generating(policy) as busy:
        learner.update(make_batch(policy, drift=0.05))
        busy.wait(1)
        learner.save(tmp_path / "c")
    LocalLearner(other, Job(max_staleness=1), {}).load(tmp_path / "c")
    assert other.version == 1
    assert same_weights(weights_of(policy), weights_of(other))


def test_generators_are_saved_while_nobody_draws_from_them(tmp_path: Path) -> None:
    policy = make_policy()
    generator = torch.Generator().manual_seed(0)
    learner = LocalLearner(policy, Job(max_staleness=1), {"sampling": generator})
    saving = threading.Thread(target=learner.save, args=(tmp_path / "c",))
    with policy.lock.reading():
        saving.start()
        while saving.is_alive() and not policy.lock._writers_waiting:
            saving.join(0.001)
        torch.rand(3, generator=generator)
        expected = generator.get_state()
    saving.join(_PATIENCE_S)
    assert torch.equal(read(tmp_path / "c").sets["random"]["sampling"], expected)


@pytest.mark.parametrize("error", [BackendError("refused"), RuntimeError("out of memory")])
def test_an_update_that_fails_half_way_is_undone_under_a_running_engine(error: Exception) -> None:
    job = Job(max_staleness=1, epochs=2, minibatches=2)
    policy, twin = make_policy(), make_policy()
    learner, untouched = LocalLearner(policy, job, {}), LocalLearner(twin, job, {})
    batch = make_batch(policy, drift=0.05)
    for each in (learner, untouched):
        each.update(batch)
    before, step, made = weights_of(policy), learner._step, []

    def failing(size: float, *, last: bool) -> None:
        made.append(last)
        if len(made) == 3:
            raise error
        step(size, last=last)

    with _generating(policy) as busy:
        learner._step = failing  # type: ignore[method-assign]
        with pytest.raises(type(error), match=str(error)):
            learner.update(batch)
        busy.wait(1)
        assert policy.version == 1
        assert policy.revision == 7, "4 steps, 2 that were undone, and the undoing: keys of the undone ones are stale"
        assert same_weights(weights_of(policy), before)
        learner._step = step  # type: ignore[method-assign]
        learner.update(batch)
    untouched.update(batch)
    assert same_weights(weights_of(policy), weights_of(twin))


def test_readers_share_the_lock() -> None:
    lock = ReadWriteLock()
    both = threading.Barrier(2, timeout=_PATIENCE_S)

    def read() -> None:
        with lock.reading():
            both.wait()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(_PATIENCE_S)
    assert not both.broken


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


def test_an_error_inside_lets_go() -> None:
    lock = ReadWriteLock()
    for hold in (lock.writing, lock.reading):
        with pytest.raises(RuntimeError), hold():
            raise RuntimeError("inside")
        with lock.writing():
            pass
