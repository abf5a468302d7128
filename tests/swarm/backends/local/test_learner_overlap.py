"""What the learner keeps apart: an engine that runs meanwhile, other ranks' checkpoints, fp32 from what serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from swarm.algorithms.learner import step_size
from swarm.backends.local.batcher import Batcher, Generation
from swarm.backends.local.checkpoint import read
from swarm.backends.local.learner import LocalLearner, Optimizer
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
    plain = learner._loss

    def patient(*arguments: Any) -> torch.Tensor:
        busy.wait(1)
        loss = plain(*arguments)
        busy.wait(1)
        return loss

    learner._loss = patient  # type: ignore[method-assign]
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


def _optimizer(weight: Tensor, max_grad_norm: float = 1e9) -> tuple[nn.Parameter, Optimizer]:
    parameter = nn.Parameter(weight.clone())
    return parameter, Optimizer({"w": parameter}, weight_decay=0.1, max_grad_norm=max_grad_norm)


def _step(parameter: nn.Parameter, optimizer: Optimizer, gradients: list[Tensor], size: float = 0.01) -> Tensor:
    optimizer.begin()
    for gradient in gradients:
        torch.autograd.backward((parameter * gradient).sum())
        optimizer.gather()
    norm = torch.tensor(optimizer.clip())
    optimizer.step(size)
    return norm


def _gradients(steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, generator=generator).bfloat16().float() for _ in range(steps)]


_START = torch.linspace(-2, 2, 12).view(4, 3).bfloat16()


def test_fp32_weights_take_torch_s_own_steps() -> None:
    parameter, optimizer = _optimizer(_START.float())
    plain = nn.Parameter(_START.float())
    adamw = torch.optim.AdamW([plain], lr=0.01, weight_decay=0.1, fused=True)
    for gradient in _gradients(5):
        _step(parameter, optimizer, [gradient])
        plain.grad = gradient.clone()
        adamw.step()
    assert torch.equal(parameter, plain)
    assert optimizer.masters["w"] is parameter


def test_bf16_weights_follow_the_fp32_course_that_bf16_steps_would_lose() -> None:
    served, optimizer = _optimizer(_START)
    course, exact = _optimizer(_START.float())
    for gradient in _gradients(20):
        _step(served, optimizer, [gradient.bfloat16()], size=1e-4)
        _step(course, exact, [gradient], size=1e-4)
    assert torch.equal(optimizer.masters["w"], course)
    assert torch.equal(served, course.bfloat16())
    lone = torch.tensor([2.0], dtype=torch.bfloat16)
    assert torch.equal(lone - 1e-4, lone), "a step that bf16 cannot hold is the point of the fp32 copy"


def test_gradients_of_many_micro_batches_add_up_in_fp32() -> None:
    parameter, optimizer = _optimizer(torch.zeros(1, dtype=torch.bfloat16))
    whole, small = torch.tensor([256.0]).bfloat16(), torch.tensor([0.5]).bfloat16()
    norm = _step(parameter, optimizer, [whole, *[small] * 8])
    assert norm.item() == 260.0
    assert (whole + small).item() == 256.0


def test_the_gradient_is_clipped_over_all_parameters_together() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = Optimizer({"a": first, "b": second}, weight_decay=0.0, max_grad_norm=1.0)
    optimizer.begin()
    torch.autograd.backward((3 * first + 4 * second).sum())
    optimizer.gather()
    assert optimizer.clip() == 5.0
    gradients = [master.grad for master in optimizer.masters.values()]
    assert torch.allclose(torch.cat([g for g in gradients if g is not None]), torch.tensor([0.6, 0.8]), atol=1e-5)


_NAMES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


def test_what_was_kept_undoes_every_step_since() -> None:
    for start in (_START, _START.float()):
        (parameter, optimizer), (twin, straight) = both = _optimizer(start), _optimizer(start)
        first, second, third = _gradients(3)
        fresh = optimizer.snapshot()
        _step(parameter, optimizer, [second.to(start.dtype)])
        optimizer.load(*fresh)
        assert torch.equal(parameter, start)
        assert not optimizer.moments()
        for each, its in both:
            _step(each, its, [first.to(start.dtype)])
        kept = optimizer.snapshot()
        _step(parameter, optimizer, [second.to(start.dtype)])
        optimizer.load(*kept)
        for each, its in both:
            _step(each, its, [third.to(start.dtype)])
        assert torch.equal(parameter, twin)
        assert torch.equal(optimizer.masters["w"], straight.masters["w"])


def _theirs(name: str, steps: int, warmup: int, **specific: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.25)
    scheduler = transformers.get_scheduler(name, optimizer, warmup, steps, scheduler_specific_kwargs=specific)
    found = []
    for _ in range(steps):
        found.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return found


def _ours(**fields: Any) -> list[float]:
    job = Job(learning_rate=0.25, **fields)
    return [step_size(job, version) for version in range(job.steps)]


@pytest.mark.parametrize("warmup", [0, 1, 4, 12])
def test_every_step_size_is_that_of_the_transformers_schedule(warmup: int) -> None:
    for schedule, theirs in _NAMES.items():
        ours = _ours(lr_schedule=schedule, lr_warmup_steps=warmup, steps=12)
        assert ours == pytest.approx(_theirs(theirs, 12, warmup), abs=1e-12), schedule
    left = _ours(lr_schedule="cosine", lr_warmup_steps=warmup, steps=12, lr_final_fraction=0.1)
    assert left == pytest.approx(_theirs("cosine_with_min_lr", 12, warmup, min_lr_rate=0.1), abs=1e-12)
