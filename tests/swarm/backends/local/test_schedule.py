"""The schedule: transformers' numbers, from the job and the version alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import get_scheduler

from swarm.backends.local.schedule import step_size
from swarm.job import Job

_NAMES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


def _theirs(name: str, steps: int, warmup: int, **specific: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.25)
    scheduler = get_scheduler(name, optimizer, warmup, steps, scheduler_specific_kwargs=specific)
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
@pytest.mark.parametrize("schedule", _NAMES)
def test_every_step_size_is_that_of_the_transformers_schedule(schedule: str, warmup: int) -> None:
    ours = _ours(lr_schedule=schedule, lr_warmup_steps=warmup, steps=12)
    assert ours == pytest.approx(_theirs(_NAMES[schedule], 12, warmup), abs=1e-12)


def test_what_is_left_of_a_cosine_is_transformers_too() -> None:
    ours = _ours(lr_schedule="cosine", lr_warmup_steps=3, steps=12, lr_final_fraction=0.1)
    assert ours == pytest.approx(_theirs("cosine_with_min_lr", 12, 3, min_lr_rate=0.1), abs=1e-12)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_that_goes_on_beyond_its_steps_keeps_what_is_left(schedule: str) -> None:
    job = Job(learning_rate=0.25, lr_schedule=schedule, lr_final_fraction=0.2, steps=4)
    assert [step_size(job, version) for version in (4, 9)] == pytest.approx([0.05, 0.05])


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(tuple(_NAMES)), st.integers(1, 40), st.integers(0, 40), st.floats(0, 1))
def test_a_step_size_rises_in_warm_up_and_never_after_it(name: str, rest: int, warmup: int, left: float) -> None:
    steps = warmup + rest
    sizes = _ours(lr_schedule=name, steps=steps, lr_warmup_steps=warmup, lr_final_fraction=left)
    rising, falling = sizes[:warmup], sizes[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(0 <= size <= 0.25 for size in sizes)
    assert all(size >= 0.25 * left * (1 - 1e-12) for size in falling if name != "constant")
