"""The store's tables.

    meta          what the database knows of itself: the installation that writes it
    trainings     one per job (`swarm.store.tables.trainings`); `written` numbers its committed groups of changes
    episodes      one row each for ever; `serial` is the order of their beginnings over all trainings
    nodes         one row per captured call of an episode, until it is collected
    steps         the settled ones, with what was measured of each
    checkpoints   the kept ones, with how they were evaluated (`swarm.store.tables.checkpoints`)
    streams       shares, cursors, and where each stands in its task list
    task_lists    the task lists of streams
    events        state transitions, recoveries

A change here is another NEWEST, to which `swarm.store.databases.database.migrate` brings what was written before.
"""

from __future__ import annotations

import sqlalchemy as sa

FIRST = "0001"
"""The schema of 0.1.0."""
NEWEST = "0009"
"""The schema that is written."""

METADATA = sa.MetaData()

Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")

META = sa.Table(
    "meta",
    METADATA,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

TRAININGS = sa.Table(
    "trainings",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job_digest", sa.Text, nullable=False, unique=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("written", sa.BigInteger, nullable=False),
)

_WHOLE = sa.text("calls IS NULL")  # has its nodes still

EPISODES = sa.Table(
    "episodes",
    METADATA,
    sa.Column("serial", Serial, primary_key=True, autoincrement=False),
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
    sa.Column("closed", sa.BigInteger),  # its place among all closings
    sa.Column("closed_after", sa.Integer),  # the last settled step then
    sa.Column("step", sa.Integer),
    sa.Column("place", sa.Integer),  # in the learner's order
    sa.Column("calls", sa.Integer),  # null while its nodes can be counted
    sa.Column("tokens", sa.BigInteger),
    sa.Column("turn", sa.BigInteger),  # in the stream's task list
    sa.Column("call_rewards", sa.Text),  # JSON: [call, reward, agent] each; null where all are worth `reward`
    sa.Column("code", sa.Text),  # sha256 of its agent's files
    sa.UniqueConstraint("training", "id", name="episodes_id"),
    sa.Index("episodes_state", "training", "kind", "state"),
    sa.Index("episodes_closed", "training", "closed"),
    sa.Index("episodes_step", "training", "step", "place"),
    sa.Index("episodes_whole", "training", "serial", sqlite_where=_WHOLE, postgresql_where=_WHOLE),
)

NODES = sa.Table(
    "nodes",
    METADATA,
    sa.Column("episode", Serial, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),  # Node.index
    sa.Column("parent", sa.Integer),
    sa.Column("drift", sa.Text, nullable=False),
    sa.Column("context", sa.LargeBinary, nullable=False),
    sa.Column("sampled", sa.LargeBinary, nullable=False),
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("versions", sa.LargeBinary, nullable=False),
    sa.Column("trained", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("cut", sa.Boolean, nullable=False, server_default=sa.false()),
)

STEPS = sa.Table(
    "steps",
    METADATA,
    sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("episodes", sa.Integer, nullable=False),
    sa.Column("metrics", sa.Text),  # JSON: until the step is learned, what is known of it by then
)

CHECKPOINTS = sa.Table(
    "checkpoints",
    METADATA,
    sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("episodes", sa.Integer),  # of the evaluation of its weights, null where there was none
    sa.Column("reward", sa.Double),
    sa.Column("success", sa.Double),
)

STREAMS = sa.Table(
    "streams",
    METADATA,
    sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("share", sa.Double),
    sa.Column("cursor", sa.BigInteger, nullable=False),
    sa.Column("trained", sa.BigInteger, nullable=False),
    sa.Column("credit", sa.Double, nullable=False),
    sa.Column("turn", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("unfinished", sa.Text, nullable=False, server_default="[]"),  # JSON: turns that are not over
)

TASK_LISTS = sa.Table(
    "task_lists",
    METADATA,
    sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("ids", sa.Text, nullable=False),  # JSON
)

EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("serial", Serial, primary_key=True),
    sa.Column("training", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("details", sa.Text, nullable=False),
)

VERSION = sa.Table(
    "alembic_version",
    METADATA,
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Which schema it is, FIRST or NEWEST, under the name that alembic once gave it."""

SINCE_FIRST = (
    EPISODES.c.turn, EPISODES.c.call_rewards, EPISODES.c.code, NODES.c.trained, NODES.c.cut, STEPS.c.metrics,
    CHECKPOINTS.c.episodes, CHECKPOINTS.c.reward, CHECKPOINTS.c.success, STREAMS.c.turn, STREAMS.c.unfinished,
)  # fmt: skip
"""What FIRST lacks, beside the task lists."""
