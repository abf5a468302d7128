"""Garbage collection: tokens of samples that no kept checkpoint needs again, and of episodes given up before it.

Metrics of steps go once MEASURED_KEPT later ones are settled.

Episodes that are never trained (given up, dropped, evaluations) lose their tokens also once CLOSINGS_KEPT later ones
are closed, as evaluations may go on long after the last checkpoint.

The episodes' rows stay for ever, with the numbers of their calls and sampled tokens, so that the balance of what was
served always adds up. The initial weights count as the checkpoint of step 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from swarm.store.tables.blobs import ID_BYTES
from swarm.store.tables.schema import CHECKPOINTS, EPISODES, NODES, STEPS

MEASURED_KEPT = 100_000
"""Settled steps of which the metrics are kept; of earlier ones the trackers alone have them."""
AT_ONCE = 64
"""Episodes in one transaction, so that a group of changes never waits long behind it."""
CLOSINGS_KEPT = 10_000
"""Closings after which the tokens of an episode that is never trained are deleted."""

_NODES_OF = NODES.c.episode == EPISODES.c.serial
CALLS = sa.select(sa.func.count()).select_from(NODES).where(_NODES_OF).scalar_subquery()
"""Calls of the episode at hand, as long as its nodes are there."""
TOKENS = (
    sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(NODES.c.sampled)), 0) / ID_BYTES)
    .where(_NODES_OF)
    .scalar_subquery()
)
"""Its sampled tokens."""


def oldest_needed(connection: sa.Connection, training: int, kept: int) -> int:
    """Return the step of the oldest checkpoint that may have to be gone on from."""
    query = sa.select(CHECKPOINTS.c.step).where(CHECKPOINTS.c.training == training)
    steps = [*connection.execute(query.order_by(CHECKPOINTS.c.step.desc())).scalars(), 0]
    return int(steps[:kept][-1])


def collect(connection: sa.Connection, training: int, kept: int) -> bool:
    """Delete the nodes of some episodes that nothing needs; return whether there may be more."""
    oldest = oldest_needed(connection, training, kept)
    _forget_metrics(connection, training)
    found = EPISODES.c
    trained = sa.and_(found.state == "consumed", found.step <= oldest)
    untrained = sa.or_(found.state.in_(("aborted", "fenced", "dropped")), found.kind == "eval")
    newest = sa.select(sa.func.max(found.closed)).where(found.training == training).scalar_subquery()
    old = sa.or_(found.closed_after < oldest, found.closed <= newest - CLOSINGS_KEPT)
    query = sa.select(found.serial).where(
        found.training == training,
        sa.text("calls IS NULL"),
        sa.or_(trained, sa.and_(untrained, old)),
    )
    serials = list(connection.execute(query.order_by(found.serial).limit(AT_ONCE)).scalars())
    _forget(connection, serials)
    return len(serials) == AT_ONCE


def erase(connection: sa.Connection, training: int, episode: str) -> None:
    """Delete the nodes of an episode that is over and in no batch that may have to be learned again.

    SQLite overwrites what it deletes here, so that the file does not keep it.
    """
    found = EPISODES.c
    over = sa.or_(
        found.state.in_(("aborted", "fenced", "dropped", "consumed")),
        sa.and_(found.kind == "eval", found.state == "ended"),
    )
    query = sa.select(found.serial).where(
        found.training == training, found.id == episode, sa.text("calls IS NULL"), over
    )
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
    _forget(connection, list(connection.execute(query).scalars()))
    if sqlite:
        connection.exec_driver_sql("PRAGMA secure_delete=OFF")


def _forget(connection: sa.Connection, serials: Sequence[int]) -> None:
    if serials:
        counted = sa.update(EPISODES).where(EPISODES.c.serial.in_(serials)).values(calls=CALLS, tokens=TOKENS)
        connection.execute(counted)
        connection.execute(sa.delete(NODES).where(NODES.c.episode.in_(serials)))


def _forget_metrics(connection: sa.Connection, training: int) -> None:
    """Delete what was measured of steps long ago."""
    newest = connection.execute(sa.select(sa.func.max(STEPS.c.step)).where(STEPS.c.training == training)).scalar() or 0
    if newest > MEASURED_KEPT:
        old = (STEPS.c.training == training, STEPS.c.step <= newest - MEASURED_KEPT, STEPS.c.metrics.is_not(None))
        connection.execute(sa.update(STEPS).where(*old).values(metrics=None))
