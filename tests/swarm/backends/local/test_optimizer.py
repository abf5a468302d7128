"""The optimiser: fp32 where steps add up, whatever serves; and everything it changes can be put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from swarm.algorithms.learner import step_size
from swarm.backends.local.learner import Optimizer
from swarm.job import Job


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
