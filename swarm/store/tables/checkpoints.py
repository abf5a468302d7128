"""Which checkpoints are kept: the newest ones, and the one that was evaluated best.

Evaluations are compared by the share of episodes that succeeded, as far as their number vouches for it: by the lower
end of its 95 % interval (Wilson 1927). Of evaluations of the same number that is the order of the shares themselves; a
lucky one of few episodes does not beat a good one of many. Where not all episodes said whether they succeeded, the mean
reward decides, and any evaluation that knows success goes before. Of equal ones the earlier is the best.

The best of several noisy numbers is too high, on average, for what it measures: no verdict may rest on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from swarm.store.tables.schema import CHECKPOINTS
from swarm.wire import EvaluationSummary

_Z = 1.959964
"""Of the normal distribution 95 % lie within so many standard deviations."""


def best_of(evaluations: Iterable[EvaluationSummary]) -> EvaluationSummary | None:
    """Return the best evaluation, None of none."""
    return max(evaluations, key=_rank, default=None)


def kept_steps(saved: Collection[int], newest: int, evaluations: Iterable[EvaluationSummary]) -> set[int]:
    """Return the steps of the checkpoints to keep: so many of the newest, and the best of those that are saved."""
    best = best_of(evaluation for evaluation in evaluations if evaluation.step in saved)
    return {*sorted(saved, reverse=True)[:newest], *(() if best is None else (best.step,))}


def evaluations(
    connection: sa.Connection, training: int, columns: Sequence[sa.ColumnElement[Any]] = tuple(CHECKPOINTS.columns)
) -> list[EvaluationSummary]:
    """Return how the kept checkpoints were evaluated, oldest first; nothing of those that were not."""
    found = sa.select(*columns).where(CHECKPOINTS.c.training == training).order_by(CHECKPOINTS.c.step)
    return [
        EvaluationSummary(step=row.step, episodes=row.episodes, reward=row.reward, success=row.success)
        for row in connection.execute(found)
        if row.episodes is not None
    ]


def _rank(evaluation: EvaluationSummary) -> tuple[bool, float, int]:
    if evaluation.success is None:
        return False, evaluation.reward, -evaluation.step
    return True, _lower_end(evaluation.success, evaluation.episodes), -evaluation.step


def _lower_end(share: float, count: int) -> float:
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return (share + _Z**2 / (2 * count) - spread) / (1 + _Z**2 / count)
