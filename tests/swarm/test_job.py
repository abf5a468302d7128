"""A job that says what cannot be is refused, in words that name the fields."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from swarm.job import Job


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"episodes_per_step": 10, "group_size": 4}, "multiple of group_size; found 10 and 4"),
        ({"lr_warmup_steps": 5, "steps": 4}, "at most steps, .* found 5 and 4"),
        ({"minibatches": 9, "episodes_per_step": 8}, "at most episodes_per_step, .* found 9 and 8"),
        ({"train_agents": ["solver", "solver"]}, "each name in train_agents once"),
        ({"train_agents": [""]}, "1 to 64 bytes of printable characters"),
        ({"train_agents": ["two\nlines"]}, "1 to 64 bytes of printable characters"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Job(**fields)


def test_what_just_fits_is_taken() -> None:
    job = Job(lr_warmup_steps=4, steps=4, minibatches=8, episodes_per_step=8)
    assert (job.lr_warmup_steps, job.minibatches, job.tasks_per_step) == (4, 8, 1)
