"""The step size of each training step: a pure function of the job and of how many updates there were before.

Promises: the same number whether the run came this far in one piece or was resumed; after warm-up it is the schedule
of the same name in `transformers.get_scheduler` (`cosine_with_min_lr` where something is left at the end).
Knows nothing of optimisers.
"""

from __future__ import annotations

import math

from swarm.job import Job


def step_size(job: Job, version: int) -> float:
    """Return AdamW's step size for the update that makes `version` into the next one."""
    if version < job.lr_warmup_steps:
        return job.learning_rate * version / job.lr_warmup_steps
    done = min(1.0, (version - job.lr_warmup_steps) / max(1, job.steps - job.lr_warmup_steps))
    return job.learning_rate * _left(job, done)


def _left(job: Job, done: float) -> float:
    """Return the part of the step size that is left when the part `done` of the way after warm-up is behind."""
    if job.lr_schedule == "constant":
        return 1.0
    falling = 1 - done if job.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return job.lr_final_fraction + (1 - job.lr_final_fraction) * falling
