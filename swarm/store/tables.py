"""The store's tables: one mapped class each, which is also the record of a row that is written as it stands.

A sample goes captured -> rewarded -> in_step(k) -> consumed(k). Token ids and policy versions are little-endian int32,
log-probs float64 (exact). A change of the schema is another NEWEST, to which `swarm.store.database.migrate` brings
older databases. The keys of columns are this package's names; their names on disk are older, and stay.

Kept are the newest checkpoints and the best evaluated one: by the lower end of the 95 % Wilson (1927) interval of
success, else by mean reward; the earlier of equals. The best of noisy numbers is biased upwards: no verdict may rest on
it.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from swarm.backends.protocols import CallReward
from swarm.timelines import Drift, Node
from swarm.wire import EvaluationSummary

FIRST, BEFORE, NEWEST = "0001", "0009", "0010"
"""The schema of 0.1.0, the one before there were advantages from outside, and the one that is written."""
ID_BYTES = 4
"""Bytes of one id."""


class PlainText(sa.TypeDecorator[str]):
    """Text as every database takes it: PostgreSQL's has no NUL."""

    impl, cache_ok = sa.Text, True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return value and value.replace("\0", "\ufffd")


class Json(sa.TypeDecorator[Any]):
    """A value as JSON; lists come back as tuples."""

    impl, cache_ok = sa.Text, True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, default=dict)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        read = None if value is None else json.loads(value)
        return tuple(read) if isinstance(read, list) else read


class Rewards(sa.TypeDecorator[tuple[CallReward, ...]]):
    """JSON: call, reward and agent of each call; null where all are worth the episode's reward."""

    impl, cache_ok = sa.Text, True

    def process_bind_param(self, value: Sequence[CallReward] | None, dialect: sa.Dialect) -> str | None:
        return json.dumps([[each.call, each.reward, each.agent] for each in value]) if value else None

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> tuple[CallReward, ...]:
        return tuple(CallReward(*each) for each in json.loads(value or "[]"))


Big = sa.BigInteger()
Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")


class Base(MappedAsDataclass, DeclarativeBase):
    """A row. What is not given when it is made is set by the writer, or later."""

    type_annotation_map = {str: PlainText(), int: sa.Integer(), float: sa.Double(), bool: sa.Boolean()}  # noqa: RUF012

    def values(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_sa_instance_state"}


class MetaRow(Base):
    """A fact about the database: which server directory's it is."""

    __tablename__ = "meta"

    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class TrainingRow(Base):
    """The training of a job; `written` counts the transactions."""

    __tablename__ = "trainings"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    job_digest: Mapped[str] = mapped_column(unique=True)
    job: Mapped[str]
    written: Mapped[int] = mapped_column(Big, default=0)


_WHOLE = sa.text("calls IS NULL")


class EpisodeRow(Base):
    """An episode, made as it begins. `group` is the group of its place in the batch, None for an evaluation;
    `task_index` its turn in the stream's task list, None where it counts for none; `code` the sha256 of its agent's
    files, None where its client did not say."""

    __tablename__ = "episodes"
    __table_args__ = (
        sa.UniqueConstraint("training", "episode", name="episodes_id"),
        sa.Index("episodes_state", "training", "kind", "state"),
        sa.Index("episodes_closed", "training", "closed"),
        sa.Index("episodes_step", "training", "step", "place"),
        sa.Index("episodes_whole", "training", "serial", sqlite_where=_WHOLE, postgresql_where=_WHOLE),
    )

    serial: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=False, init=False)
    training: Mapped[int] = mapped_column(init=False)
    episode: Mapped[str] = mapped_column("id", key="episode")
    task_id: Mapped[str]
    stream: Mapped[str]
    kind: Mapped[str]
    owner: Mapped[str]
    group: Mapped[str | None] = mapped_column("group_name", key="group")
    version: Mapped[int]
    state: Mapped[str] = mapped_column(init=False, default="open")
    fencing_token: Mapped[int] = mapped_column("epoch", key="fencing_token", init=False, default=1)
    reason: Mapped[str | None] = mapped_column(init=False)
    reward: Mapped[float | None] = mapped_column(init=False)
    success: Mapped[bool | None] = mapped_column(init=False)
    weight: Mapped[float] = mapped_column(init=False, default=1.0)
    decider: Mapped[str | None] = mapped_column(init=False)
    decider_token: Mapped[str | None] = mapped_column(init=False)
    closed: Mapped[int | None] = mapped_column(Big, init=False)  # its place among all closings
    closed_after: Mapped[int | None] = mapped_column(init=False)  # the last settled step then
    step: Mapped[int | None] = mapped_column(init=False)
    place: Mapped[int | None] = mapped_column(init=False)  # in the learner's order
    calls: Mapped[int | None] = mapped_column(init=False)  # null while its nodes can be counted
    tokens: Mapped[int | None] = mapped_column(Big, init=False)
    task_index: Mapped[int | None] = mapped_column("turn", Big, key="task_index", default=None)
    call_rewards: Mapped[tuple[CallReward, ...] | None] = mapped_column(Rewards, init=False)
    code: Mapped[str | None] = mapped_column(default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A training episode with a reward, whole enough to be trained. Its fields but `nodes` are columns."""

    episode: str
    task_id: str
    stream: str
    owner: str
    group: str
    reward: float
    success: bool | None
    weight: float
    nodes: tuple[Node, ...]
    decider: str | None = None
    """Set for one that is prepared: where the team's decision can be asked."""
    decider_token: str | None = None
    task_index: int | None = None
    """Its turn in the stream's task list; None where it counts for none."""
    code: str | None = None
    """sha256 of its agent's files; None where its client did not say."""
    call_rewards: tuple[CallReward, ...] = ()
    """Of all its calls, or none where each is worth `reward` and nobody said which agent made it."""

    def columns(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @property
    def untrained_reason(self) -> str | None:
        """Why nothing of it can be trained; None where some call is."""
        if any(node.trained for node in self.nodes):
            return None
        return "no_trained_calls" if self.nodes else "no_calls"

    @property
    def side_conversations(self) -> int:
        """Return how many trained conversations began beside the first one, where no call says which agent made it."""
        began = sum(node.trained and node.drift is Drift.START for node in self.nodes)
        return 0 if any(node.agent for node in self.nodes) else max(0, began - 1)

    @property
    def trained_rewards(self) -> tuple[CallReward, ...]:
        trained = {node.index for node in self.nodes if node.trained}
        return tuple(each for each in self.call_rewards if each.call in trained)


class NodeRow(Base):
    """A served call, by the serial of its episode."""

    __tablename__ = "nodes"

    episode: Mapped[int] = mapped_column(Serial, primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)  # `Node.index`
    parent: Mapped[int | None]
    drift: Mapped[str]
    context: Mapped[bytes]
    sampled: Mapped[bytes]
    logprobs: Mapped[bytes]
    versions: Mapped[bytes]
    trained: Mapped[bool] = mapped_column(server_default=sa.true())
    cut: Mapped[bool] = mapped_column(server_default=sa.false())


class StepRow(Base):
    """A settled step; until it is learned, `metrics` are what is known of it by then."""

    __tablename__ = "steps"

    training: Mapped[int] = mapped_column(primary_key=True, init=False)
    step: Mapped[int] = mapped_column(primary_key=True)
    episodes: Mapped[int]
    metrics: Mapped[Mapping[str, float] | None] = mapped_column(Json, default=None)
    advantages: Mapped[tuple[float, ...] | None] = mapped_column(Json, default=None)  # that a client gave, by place


class CheckpointRow(Base):
    """A checkpoint and the evaluation of its weights, None where there was none."""

    __tablename__ = "checkpoints"

    training: Mapped[int] = mapped_column(primary_key=True, init=False)
    step: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    episodes: Mapped[int | None] = mapped_column(default=None)
    reward: Mapped[float | None] = mapped_column(default=None)
    success: Mapped[float | None] = mapped_column(default=None)


class StreamRow(Base):
    """Where a stream stands; the last one written is it. `share` is None without shares; `credit` what deficit round
    robin owes it, in groups (under the batch rule `episodes`: in episodes), as of the last batch. `next_task_index` is
    the next turn of its task list, `unfinished` are those that were begun and are not over."""

    __tablename__ = "streams"

    training: Mapped[int] = mapped_column(primary_key=True, init=False, compare=False)
    name: Mapped[str] = mapped_column(primary_key=True)
    share: Mapped[float | None]
    cursor: Mapped[int] = mapped_column(Big)
    trained: Mapped[int] = mapped_column(Big)
    credit: Mapped[float]
    next_task_index: Mapped[int] = mapped_column("turn", Big, key="next_task_index", server_default="0", default=0)
    unfinished: Mapped[tuple[int, ...]] = mapped_column(Json, server_default="[]", default=())


class TaskListRow(Base):
    """A stream's task list, for ever: the ids in the order in which they are played, with their digest."""

    __tablename__ = "task_lists"

    training: Mapped[int] = mapped_column(primary_key=True, init=False, compare=False)
    stream: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    ids: Mapped[tuple[str, ...]] = mapped_column(Json)


METADATA = Base.metadata
META, TRAININGS, EPISODES, NODES, STEPS, CHECKPOINTS, STREAMS, TASK_LISTS = (
    cast(sa.Table, row.__table__)
    for row in (MetaRow, TrainingRow, EpisodeRow, NodeRow, StepRow, CheckpointRow, StreamRow, TaskListRow)
)
VERSION = sa.Table(
    "alembic_version",
    METADATA,
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Which schema it is, FIRST, BEFORE or NEWEST, under the name that alembic once gave it."""
SINCE_FIRST = (
    EPISODES.c.task_index, EPISODES.c.call_rewards, EPISODES.c.code, NODES.c.trained, NODES.c.cut, STEPS.c.metrics,
    STEPS.c.advantages, CHECKPOINTS.c.episodes, CHECKPOINTS.c.reward, CHECKPOINTS.c.success, STREAMS.c.next_task_index,
    STREAMS.c.unfinished,
)  # fmt: skip
"""What FIRST lacks, beside the task lists."""

_Z = 1.959964
"""Of the normal distribution 95 % lie within so many standard deviations."""


def best_of(evaluations: Iterable[EvaluationSummary]) -> EvaluationSummary | None:
    def rank(found: EvaluationSummary) -> tuple[bool, float, int]:
        if found.success is None:
            return False, found.reward, -found.step
        share, count = found.success, found.episodes
        spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
        return True, (share + _Z**2 / (2 * count) - spread) / (1 + _Z**2 / count), -found.step

    return max(evaluations, key=rank, default=None)


def choose_kept_steps(saved: Collection[int], newest: int, evaluations: Iterable[EvaluationSummary]) -> set[int]:
    """Return the steps of the checkpoints to keep: so many of the newest, and the best of those that are saved."""
    best = best_of(evaluation for evaluation in evaluations if evaluation.step in saved)
    return {*sorted(saved, reverse=True)[:newest], *(() if best is None else (best.step,))}
