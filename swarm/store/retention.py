"""Which tokens and metrics are kept, and which training in a database is a job's.

Tokens go once no kept checkpoint needs them again (initial weights count as the checkpoint of step 0), those of
never-trained episodes also once CLOSINGS_KEPT later ones are closed; metrics of steps go once MEASURED_KEPT later ones
are settled. Rows of episodes stay for ever with their counts, so that the balance of what was served adds up.

A job's training is found by value (`swarm.job`): stored jobs are read as what they mean now. It is the one with the
very same job, else the furthest that the job goes on with, else a new one. A training keeps the digest it began with,
under which its checkpoints lie.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa
from pydantic import ValidationError

from swarm.errors import ServerFailed
from swarm.job import Job
from swarm.store.tables import CHECKPOINTS, EPISODES, ID_BYTES, NODES, STEPS, TRAININGS, TrainingRow
from swarm.wire import EvaluationSummary

MEASURED_KEPT = 100_000
"""Settled steps of which the metrics are kept; of earlier ones the trackers alone have them."""
AT_ONCE = 64
"""Episodes in one transaction, so that a group of changes never waits long behind it."""
CLOSINGS_KEPT = 10_000
"""Closings after which the tokens of an episode that is never trained are deleted."""

_E = EPISODES.c
_NODES_OF = NODES.c.episode == _E.serial
CALLS = sa.select(sa.func.count()).select_from(NODES).where(_NODES_OF).scalar_subquery()
"""Calls of the episode at hand, as long as its nodes are there."""
TOKENS = (
    sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(NODES.c.sampled)), 0) / ID_BYTES)
    .where(_NODES_OF)
    .scalar_subquery()
)
"""Its sampled tokens."""


def read_evaluations(connection: sa.Connection, training: int) -> list[EvaluationSummary]:
    """Return how the kept checkpoints were evaluated, oldest first; nothing of those that were not."""
    query = sa.select(CHECKPOINTS).where(CHECKPOINTS.c.training == training).order_by(CHECKPOINTS.c.step)
    return [
        EvaluationSummary(step=row.step, episodes=row.episodes, reward=row.reward, success=row.success)
        for row in connection.execute(query)
        if row.episodes is not None
    ]


def oldest_needed(connection: sa.Connection, training: int, kept: int) -> int:
    """Return the step of the oldest checkpoint that may have to be gone on from."""
    query = sa.select(CHECKPOINTS.c.step).where(CHECKPOINTS.c.training == training)
    steps = [*connection.execute(query.order_by(CHECKPOINTS.c.step.desc())).scalars(), 0]
    return int(steps[:kept][-1])


def collect_garbage(connection: sa.Connection, training: int, kept: int) -> bool:
    """Delete metrics of old steps, and the nodes of some episodes that nothing needs; return whether there may be
    more."""
    newest = sa.select(sa.func.max(STEPS.c.step)).where(STEPS.c.training == training)
    if (last := connection.execute(newest).scalar() or 0) > MEASURED_KEPT:
        old = (STEPS.c.training == training, STEPS.c.step <= last - MEASURED_KEPT, STEPS.c.metrics.is_not(None))
        connection.execute(sa.update(STEPS).where(*old).values(metrics=None))
    oldest = oldest_needed(connection, training, kept)
    trained = sa.and_(_E.state == "consumed", _E.step <= oldest)
    untrained = sa.or_(_E.state.in_(("aborted", "fenced", "dropped")), _E.kind == "eval")
    last_closed = sa.select(sa.func.max(_E.closed)).where(_E.training == training).scalar_subquery()
    closed_long_ago = sa.or_(_E.closed_after < oldest, _E.closed <= last_closed - CLOSINGS_KEPT)
    unneeded = sa.or_(trained, sa.and_(untrained, closed_long_ago))
    query = sa.select(_E.serial).where(_E.training == training, sa.text("calls IS NULL"), unneeded)
    serials = list(connection.execute(query.order_by(_E.serial).limit(AT_ONCE)).scalars())
    _delete_nodes(connection, serials)
    return len(serials) == AT_ONCE


def erase_tokens(connection: sa.Connection, training: int, episode: str) -> None:
    """Delete the nodes of an episode that is over and in no batch that may have to be learned again. SQLite overwrites
    what it deletes here, so that the file does not keep it."""
    given_up = _E.state.in_(("aborted", "fenced", "dropped", "consumed"))
    over = sa.or_(given_up, sa.and_(_E.kind == "eval", _E.state == "ended"))
    query = sa.select(_E.serial).where(_E.training == training, _E.episode == episode, sa.text("calls IS NULL"), over)
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
    _delete_nodes(connection, list(connection.execute(query).scalars()))
    if sqlite:
        connection.exec_driver_sql("PRAGMA secure_delete=OFF")


def _delete_nodes(connection: sa.Connection, serials: Sequence[int]) -> None:
    if serials:
        counted = sa.update(EPISODES).where(_E.serial.in_(serials)).values(calls=CALLS, tokens=TOKENS)
        connection.execute(counted)
        connection.execute(sa.delete(NODES).where(NODES.c.episode.in_(serials)))


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


def find_or_begin(connection: sa.Connection, job: Job) -> tuple[StoredTraining, str | None]:
    """Return the training of a job, which is recorded as its job from now on. Where there is none it begins, with one
    line for people about what it leaves behind: the checkpoints that it begins beside, the furthest first."""
    trainings = read_trainings(connection)
    its = find_training(trainings, job)
    if its is not None:
        this = TRAININGS.c.id == its.number
        connection.execute(sa.update(TRAININGS).where(this).values(job=job.canonical()))
        return its, None
    new = StoredTraining(1 + max((one.number for one in trainings), default=0), job.digest(), job, 0, None)
    connection.execute(sa.insert(TRAININGS), TrainingRow(new.number, new.digest, job.canonical()).values())
    beside = sorted((one for one in trainings if one.checkpoint is not None), key=lambda one: one.step, reverse=True)
    named = []
    for one in beside[:_NAMED]:
        unreadable = "a job that this version of ajet does not read"
        differs = unreadable if one.job is None else ", ".join(job.differences(one.job))
        named.append(f"checkpoints/{one.digest[:12]} (step {one.checkpoint}; {differs})")
    more = f"; and {len(beside) - _NAMED} more" if beside[_NAMED:] else ""
    told = f"begins at step 0 beside what other jobs trained here: {'; '.join(named)}{more}"
    return new, told if named else None


def find_training(trainings: Sequence[StoredTraining], job: Job) -> StoredTraining | None:
    """Return the training of a job, None where it has none. Raises ServerFailed, in one line, where the only one that
    the job could go on with has more steps than it asks for."""
    readable = [(training, training.job) for training in trainings if training.job is not None]
    for training, its in readable:
        if job.equals(its):
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


def read_trainings(connection: sa.Connection) -> list[StoredTraining]:
    def newest(column: sa.Column[int]) -> sa.ScalarSelect[int]:
        return sa.select(sa.func.max(column)).where(column.table.c.training == TRAININGS.c.id).scalar_subquery()

    query = sa.select(TRAININGS, newest(STEPS.c.step).label("step"), newest(CHECKPOINTS.c.step).label("checkpoint"))
    trainings = []
    for row in connection.execute(query.order_by(TRAININGS.c.id)):
        job: Job | None = None
        with suppress(ValidationError):
            job = Job.from_record(row.job)
        trainings.append(StoredTraining(row.id, row.job_digest, job, row.step or 0, row.checkpoint))
    return trainings
