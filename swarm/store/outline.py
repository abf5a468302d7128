"""What the store knows of the weights of one step, for the card of an exported model. Read-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from swarm.job import Job
from swarm.store.tables.schema import EPISODES, TASK_LISTS, TRAININGS
from swarm.wire import EVALUATION_STREAM

_E = EPISODES.c


@dataclass(frozen=True, slots=True)
class VersionEvaluation:
    """All evaluation episodes that began under one policy version, and ended."""

    episodes: int
    tasks: int
    reward: float
    """Mean over the episodes."""
    success: float | None
    """Share that succeeded, of those that said."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A training as the weights of one of its steps see it."""

    job: Job
    job_digest: str
    lists: Mapping[str, str]
    """By stream, the digest of its task list."""
    trained: int
    """Episodes of the steps up to this one."""
    evaluation: VersionEvaluation | None
    """Of these weights; None where nothing was measured."""


def outline(connection: sa.Connection, training: int, step: int) -> Outline:
    """Return what is known of the training, and of its weights after `step`."""
    columns = (TRAININGS.c.job, TRAININGS.c.job_digest)
    known = connection.execute(sa.select(*columns).where(TRAININGS.c.id == training)).one()
    lists = connection.execute(
        sa.select(TASK_LISTS.c.stream, TASK_LISTS.c.digest).where(TASK_LISTS.c.training == training)
    )
    learned = (_E.training == training, _E.step <= step, _E.state.in_(("in_step", "consumed")))
    trained = connection.execute(sa.select(sa.func.count()).select_from(EPISODES).where(*learned)).scalar_one()
    return Outline(
        Job.recorded(known.job),
        known.job_digest,
        {row.stream: row.digest for row in lists},
        int(trained),
        _evaluation(connection, training, step),
    )


def _evaluation(connection: sa.Connection, training: int, version: int) -> VersionEvaluation | None:
    measured: tuple[sa.ColumnElement[Any], ...] = (
        sa.func.count(_E.reward).label("episodes"),
        sa.func.count(sa.distinct(_E.task_id)).label("tasks"),
        sa.func.avg(_E.reward).label("reward"),
        sa.func.avg(sa.case((_E.success.is_(True), 1.0), (_E.success.is_(False), 0.0))).label("success"),
    )
    where = (
        _E.training == training,
        _E.kind == "eval",
        _E.stream == EVALUATION_STREAM,
        _E.state == "ended",
        _E.version == version,
    )
    row = connection.execute(sa.select(*measured).where(*where)).one()
    if not row.episodes:
        return None
    success = None if row.success is None else float(row.success)
    return VersionEvaluation(row.episodes, row.tasks, float(row.reward), success)
