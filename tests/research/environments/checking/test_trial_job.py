"""The job of a check is a study's own but for its size, whatever that study's batches are."""

from __future__ import annotations

from research.environments.checking.with_model import TRAINED, job_of
from swarm.job import Job


def test_the_job_of_a_check_is_small_and_else_as_the_studys() -> None:
    base = Job(episodes_per_step=256, minibatches=64, steps=100, lr_warmup_steps=50, temperature=0.7)
    job = job_of(base, {"max_tokens": 9})
    assert (job.episodes_per_step, job.minibatches, job.lr_warmup_steps) == (TRAINED, TRAINED, 0)
    assert (job.temperature, job.max_tokens) == (0.7, 9)
    assert job_of(Job(minibatches=2), {}).minibatches == 2
