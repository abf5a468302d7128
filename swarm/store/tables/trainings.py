"""Which training in a database is a job's: the one it began, or one that it goes on with, or a new one beside others.

Found by value (`swarm.job`): each training's job is stored as the release that began it wrote it, and read as what it
means now. A training keeps the digest it was begun with, which its checkpoints lie under. One of several is a job's if
it has the very same job, else the furthest that the job goes on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from pydantic import ValidationError

from swarm.errors import ServerFailed
from swarm.job import Job
from swarm.store.tables.schema import CHECKPOINTS, STEPS, TRAININGS

_UNREADABLE = "a job that this version of ajet does not read"
_NAMED = 3
"""So many of the trainings that a job begins beside are named."""


@dataclass(frozen=True, slots=True)
class StoredTraining:
    """A training: its number, the digest it was begun with, its job as far as this version reads it, settled steps."""

    number: int
    digest: str
    job: Job | None
    step: int
    checkpoint: int | None
    """The step of its newest checkpoint, None where it has none."""

    def beside(self, job: Job) -> str:
        """Return in a few words where its checkpoints are and why a job begins anew beside them."""
        differs = _UNREADABLE if self.job is None else ", ".join(job.differences(self.job))
        return f"checkpoints/{self.digest[:12]} (step {self.checkpoint}; {differs})"


@dataclass(frozen=True, slots=True)
class Opened:
    """The training of a job, and what its beginning leaves behind: one line for people where it begins anew."""

    number: int
    digest: str
    fresh_start: str | None


def find(connection: sa.Connection, job: Job) -> StoredTraining | None:
    """Return the training of a job, None where it has none.

    Raises ServerFailed, in one line, where the only one that the job could go on with has more steps than it asks for.
    """
    return _choose(_trainings(connection), job)


def find_or_begin(connection: sa.Connection, job: Job) -> Opened:
    """Return the training of a job, which is recorded as its job from now on; begin one where there is none."""
    known = _trainings(connection)
    found = _choose(known, job)
    if found is not None:
        this = TRAININGS.c.id == found.number
        connection.execute(sa.update(TRAININGS).where(this).values(job=job.canonical()))
        return Opened(found.number, found.digest, None)
    number = 1 + max((training.number for training in known), default=0)
    row = {"id": number, "job_digest": job.digest(), "job": job.canonical(), "written": 0}
    connection.execute(sa.insert(TRAININGS), row)
    return Opened(number, job.digest(), _said(known, job))


def _choose(known: Sequence[StoredTraining], job: Job) -> StoredTraining | None:
    readable = [(training, training.job) for training in known if training.job is not None]
    for training, its in readable:
        if job.same(its):
            return training
    going_on = [training for training, its in readable if job.continues(its)]
    within = [training for training in going_on if training.step <= job.steps]
    if going_on and not within:
        least = min(going_on, key=lambda training: training.step)
        raise ServerFailed(
            f"the training of this job is at step {least.step} (checkpoints/{least.digest[:12]}): expected steps of at "
            f"least {least.step}, found {job.steps}; ask for as many, or train in another directory"
        )
    return max(within, key=lambda training: training.step, default=None)


def _said(known: Sequence[StoredTraining], job: Job) -> str | None:
    """Return one line about the checkpoints that a job begins beside, the furthest first; None where there are none."""
    kept = sorted((one for one in known if one.checkpoint is not None), key=lambda one: one.step, reverse=True)
    if not kept:
        return None
    named = "; ".join(one.beside(job) for one in kept[:_NAMED])
    more = f"; and {len(kept) - _NAMED} more" if kept[_NAMED:] else ""
    return f"begins at step 0 beside what other jobs trained here: {named}{more}"


def _trainings(connection: sa.Connection) -> list[StoredTraining]:
    def newest(column: sa.Column[int]) -> sa.ScalarSelect[int]:
        return sa.select(sa.func.max(column)).where(column.table.c.training == TRAININGS.c.id).scalar_subquery()

    query = sa.select(TRAININGS, newest(STEPS.c.step).label("step"), newest(CHECKPOINTS.c.step).label("checkpoint"))
    rows = connection.execute(query.order_by(TRAININGS.c.id))
    return [StoredTraining(row.id, row.job_digest, _read(row.job), row.step or 0, row.checkpoint) for row in rows]


def _read(recorded: str) -> Job | None:
    try:
        return Job.recorded(recorded)
    except ValidationError:
        return None
