"""The first schema. Written out, not taken from `swarm.store.tables.schema`: a migration never changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make all tables."""
    _make_trainings()
    _make_episodes()
    _make_nodes()
    _make_steps()
    _make_streams_and_events()


def _make_trainings() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "trainings",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("job_digest", sa.Text, nullable=False, unique=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("written", sa.BigInteger, nullable=False),
    )


def _make_episodes() -> None:
    op.create_table(
        "episodes",
        sa.Column("serial", _SERIAL, primary_key=True, autoincrement=False),
        sa.Column("training", sa.Integer, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("group_name", sa.Text),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("reward", sa.Double),
        sa.Column("success", sa.Boolean),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("decider", sa.Text),
        sa.Column("decider_token", sa.Text),
        sa.Column("closed", sa.BigInteger),
        sa.Column("closed_after", sa.Integer),
        sa.Column("step", sa.Integer),
        sa.Column("place", sa.Integer),
        sa.Column("calls", sa.Integer),
        sa.Column("tokens", sa.BigInteger),
        sa.UniqueConstraint("training", "id", name="episodes_id"),
    )
    op.create_index("episodes_state", "episodes", ["training", "kind", "state"])
    op.create_index("episodes_closed", "episodes", ["training", "closed"])
    op.create_index("episodes_step", "episodes", ["training", "step", "place"])
    whole = sa.text("calls IS NULL")
    op.create_index("episodes_whole", "episodes", ["training", "serial"], sqlite_where=whole, postgresql_where=whole)


def _make_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("episode", _SERIAL, primary_key=True, autoincrement=False),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("parent", sa.Integer),
        sa.Column("drift", sa.Text, nullable=False),
        sa.Column("context", sa.LargeBinary, nullable=False),
        sa.Column("sampled", sa.LargeBinary, nullable=False),
        sa.Column("logprobs", sa.LargeBinary, nullable=False),
        sa.Column("versions", sa.LargeBinary, nullable=False),
    )


def _make_steps() -> None:
    op.create_table(
        "steps",
        sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("episodes", sa.Integer, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
    )


def _make_streams_and_events() -> None:
    op.create_table(
        "streams",
        sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("share", sa.Double),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("trained", sa.BigInteger, nullable=False),
        sa.Column("credit", sa.Double, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("serial", _SERIAL, primary_key=True),
        sa.Column("training", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
    )
