"""Which checkpoint is meant; what is not kept is refused with what is."""

from __future__ import annotations

import pytest

from swarm.errors import NotFound
from swarm.server.model_export.kept import chosen
from swarm.wire import CheckpointList, CheckpointSummary, EvaluationSummary


def kept(*steps: int, best: int | None = None) -> CheckpointList:
    found = tuple(CheckpointSummary(name=f"step-{step:06d}", step=step, size_bytes=1) for step in steps)
    score = None if best is None else EvaluationSummary(step=best, episodes=4, reward=1.0)
    return CheckpointList(job_digest="d" * 64, checkpoints=found, best=score)


def test_a_step_the_latest_and_the_best_are_found() -> None:
    listed = kept(30, 20, 10, best=20)
    assert [chosen(step, listed).step for step in ("latest", "10", "best")] == [30, 10, 20]


@pytest.mark.parametrize("step", ["25", "-1", "last", "", "030"])
def test_what_is_not_kept_is_refused_with_what_is(step: str) -> None:
    with pytest.raises(NotFound, match=r"one that is kept \(10, 20, 30\), found"):
        chosen(step, kept(30, 20, 10))


def test_without_an_evaluation_there_is_no_best() -> None:
    with pytest.raises(NotFound, match="only a job with eval_every chooses one"):
        chosen("best", kept(30, 20))


def test_where_nothing_was_saved_one_line_says_so() -> None:
    with pytest.raises(NotFound, match="nothing was trained there yet"):
        chosen("latest", CheckpointList(job_digest=None, checkpoints=()))
    with pytest.raises(NotFound, match="has not saved one yet"):
        chosen("latest", CheckpointList(job_digest="d" * 64, checkpoints=()))
