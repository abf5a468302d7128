"""The store's tables, the changes that are written to them, and which checkpoints are kept.

A sample goes captured -> rewarded -> in_step(k) -> consumed(k). What is durable, and when: `CallCaptured` before the
reply is finished, `CallWithdrawn` when nobody was left to take it; `EpisodeClosed` before an end is acknowledged
(`EpisodePrepared` first, for a team); `BatchScheduled(k)` before the learner sees the batch; `CheckpointSaved(k)` in
one transaction with the checkpoint's name; `CheckpointEvaluated(k)` before the next step. Recovery loads the newest
checkpoint c and learns batches c+1, c+2, ... again, so each sample is in the weights once, whenever the process died.

Token ids and policy versions are little-endian int32, log-probs float64 (exact). A change of the schema is another
NEWEST, to which `swarm.store.database.migrate` brings older databases.

Kept are the newest checkpoints and the best evaluated one: by the lower end of the 95 % Wilson (1927) interval of
success, else by mean reward; the earlier of equals. The best of noisy numbers is biased upwards: no verdict may rest on
it.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa

from swarm.backends.protocols import CallReward
from swarm.timelines import Drift, Node
from swarm.wire import EpisodeKind, EpisodeList, EpisodeRecord, EvaluationSummary

T = TypeVar("T", int, float)
_FOREIGN = sys.byteorder == "big"
ID_BYTES = 4
"""Bytes of one id."""


def pack_ints(values: Sequence[int]) -> bytes:
    """Return the bytes of ids or versions; raise OverflowError for one that is no int32."""
    return _native(array("i", values)).tobytes()


def pack_floats(values: Sequence[float]) -> bytes:
    return _native(array("d", values)).tobytes()


def unpack_ints(data: bytes) -> tuple[int, ...]:
    values = array("i")
    values.frombytes(data)
    return tuple(_native(values))


def unpack_floats(data: bytes) -> tuple[float, ...]:
    values = array("d")
    values.frombytes(data)
    return tuple(_native(values))


def pack_rewards(rewards: Sequence[CallReward]) -> str | None:
    return json.dumps([[each.call, each.reward, each.agent] for each in rewards]) if rewards else None


def unpack_rewards(data: str | None) -> tuple[CallReward, ...]:
    return tuple(CallReward(*each) for each in json.loads(data or "[]"))


def _native(values: array[T]) -> array[T]:
    if _FOREIGN:
        values.byteswap()
    return values


@dataclass(slots=True)
class HighWaterMarks:
    """The last numbers given in a database: of episodes begun, of closings, of settled steps."""

    serial: int
    closed: int
    step: int


FINISHED = "training/global_step"
"""A metric that `StepMeasured` has of finished steps alone: the step itself."""

Closing = Literal["ended", "aborted", "fenced", "dropped"]


@dataclass(frozen=True, slots=True)
class EpisodeBegan:
    """An episode was begun; `group` is the group of its place in the batch, None for an evaluation.

    `turn` is its turn in the stream's task list, None where it counts for none. `code` is the sha256 of its agent's
    files, None where its client did not say.
    """

    episode: str
    task_id: str
    stream: str
    kind: EpisodeKind
    owner: str
    group: str | None
    version: int
    task_index: int | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CallCaptured:
    """A call was served."""

    episode: str
    node: Node


@dataclass(frozen=True, slots=True, eq=False)
class CallWithdrawn:
    """A captured call was never served: its client went away while it was written. It is no part of the episode. Only
    noted, always before the episode's `EpisodeClosed`; until then nothing of the episode is trained."""

    episode: str
    node: Node


@dataclass(frozen=True, slots=True)
class EpisodePrepared:
    """An episode of a team has its reward, but waits for the team's decision. It may be asked of `decider`."""

    episode: str
    reward: float
    success: bool | None
    weight: float
    decider: str | None
    decider_token: str | None
    call_rewards: tuple[CallReward, ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeClosed:
    """An episode is over: ended with a reward, aborted, fenced, or (after its end) dropped from the pool.

    `epoch` is the one that is valid from now on; `group` the group it ended in, `turn` the turn it ended for; `reason`
    why it was given up. `team`: it was prepared, and what is told of it must stand whatever happens, a loss of power
    too.
    """

    episode: str
    state: Closing
    fencing_token: int
    reward: float | None = None
    success: bool | None = None
    weight: float = 1.0
    group: str | None = None
    reason: str | None = None
    task_index: int | None = None
    team: bool = False
    call_rewards: tuple[CallReward, ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeErased:
    """The tokens of an episode are to be deleted; nothing happens to one that is open, or may have to be learned."""

    episode: str


@dataclass(frozen=True, slots=True)
class BatchScheduled:
    """The batch of a step is settled: these episodes, in the learner's order."""

    step: int
    episodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepMeasured:
    """What is known of a settled step, by its metrics' names: of its rollout, and all of it once it was learned. Only
    noted, before the `CheckpointSaved` of a checkpoint holding the step: a restart has the rows of all such steps."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """Checkpoint `name` is on disk and holds everything up to step `step`."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class CheckpointEvaluated:
    """The weights of a checkpoint were evaluated; of one that is not kept nothing is written."""

    evaluation: EvaluationSummary


@dataclass(frozen=True, slots=True)
class StreamMoved:
    """A stream's share (None: no shares) or place changed. `credit` is what deficit round robin owes it, in groups
    (under the batch rule `episodes`: in episodes), as of the last batch. `turn` is the next one of its task list,
    `unfinished` those that were begun and are not over."""

    name: str
    share: float | None
    cursor: int
    trained: int
    credit: float
    next_task_index: int = 0
    unfinished: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TasksListed:
    """A stream has its task list, for ever: the ids in the order in which they are played, with their digest."""

    stream: str
    digest: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """Something worth remembering happened to the server: a state transition, a recovery, ..."""

    kind: str
    at: float
    details: Mapping[str, Any] = field(default_factory=dict)


Change = (
    EpisodeBegan
    | CallCaptured
    | CallWithdrawn
    | EpisodePrepared
    | EpisodeClosed
    | EpisodeErased
    | BatchScheduled
    | StepMeasured
    | CheckpointSaved
    | CheckpointEvaluated
    | StreamMoved
    | TasksListed
    | StoredEvent
)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A training episode with a reward, whole enough to be trained."""

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

    @property
    def teaches(self) -> bool:
        """Some call of it is trained."""
        return any(node.trained for node in self.nodes)

    @property
    def side_conversations(self) -> int:
        """Return how many trained conversations began beside the first one, where no call says which agent made it."""
        began = sum(node.trained and node.drift is Drift.START for node in self.nodes)
        return 0 if any(node.agent for node in self.nodes) else max(0, began - 1)

    @property
    def trained_rewards(self) -> tuple[CallReward, ...]:
        """The rewards of its trained calls."""
        trained = {node.index for node in self.nodes if node.trained}
        return tuple(each for each in self.call_rewards if each.call in trained)


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What a restarted server goes on from.

    checkpoints: names by step, newest first. step: the last one that is settled. replay: the batches from the
    oldest kept checkpoint on, by step, ascending, each in the learner's order. pool: ended, not in a step.
    prepared: samples that wait for a team's decision. epochs: (epoch, state, reason) of the latest closed episodes,
    among them those that were open at the crash, fenced now. begun: episodes ever begun. counts: of closed
    episodes, by `aborted`, `fenced`, `drop_<reason>`, `ended`, and of these by `trained`, `evaluated`. job_digest: that
    of the job which began the training, and its checkpoints lie under. fresh_start: a line that names the checkpoints
    of other jobs, where this training begins just now beside them. lists: the streams' task lists. played: of turns
    that are not over, how many plays ended and wait no more, by stream, turn and the reason why they were dropped (""
    where they were not). measured: what is known of settled steps, by step, ascending; nothing of those that an earlier
    release settled.
    """

    checkpoints: Sequence[tuple[int, str]]
    step: int
    replay: Mapping[int, Sequence[Sample]]
    pool: Sequence[Sample]
    prepared: Sequence[Sample]
    fencing_tokens: Mapping[str, tuple[int, Closing, str | None]]
    streams: Sequence[StreamMoved]
    begun: int
    counts: Mapping[str, int]
    job_digest: str = ""
    fresh_start: str | None = None
    lists: Sequence[TasksListed] = ()
    played: Mapping[tuple[str, int, str], int] = field(default_factory=dict)
    measured: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    evaluations: Sequence[EvaluationSummary] = ()
    """Of the checkpoints that are kept, by their steps."""
    stream_order: Sequence[str] = ()
    """The streams of training episodes, in the order of the first one of each."""


class ExportableEpisodes(NamedTuple):
    """Ids of episodes whose tokens may be there, the oldest first; how many lost theirs, and how many never had any."""

    names: Sequence[str] = ()
    pruned: int = 0
    no_tokens: int = 0


class EpisodeReader(Protocol):
    """What was written of episodes and steps, to be read."""

    async def list_exportable(self) -> ExportableEpisodes: ...

    async def episodes(self, limit: int) -> EpisodeList: ...

    async def episode(self, episode: str) -> EpisodeRecord | None:
        """Return an episode with its tokens (texts empty; tokens gone where they were collected), or None."""
        ...

    async def history(
        self, after: int, most: int, *, newest: bool = False
    ) -> Sequence[tuple[int, Mapping[str, float]]]:
        """Return the metrics of finished steps above `after`, ascending, at most so many: the first, or the newest."""
        ...


class Store(EpisodeReader, Protocol):
    """One training's durable record. All methods belong to one event loop."""

    async def write(self, *changes: Change) -> None:
        """Write changes, after all that came before; return when they are durable.

        Raises StoreUnavailable if they could not be written, StoreRefused if they never can be: then none of them was,
        and the caller must not acknowledge what they stand for.
        """
        ...

    def note(self, *changes: Change) -> None:
        """Write changes in order without waiting; they are durable before any later `write` returns."""
        ...

    def failure(self) -> str | None:
        """Return why nothing can be written any more before a restart, or None. What was written until then is whole,
        as after a kill: notes were lost, but nothing that came after them is there."""
        ...

    async def close(self) -> None:
        """Write what is left and let go of the database."""
        ...


FIRST = "0001"
"""The schema of 0.1.0."""
NEWEST = "0009"
"""The schema that is written."""

METADATA = sa.MetaData()

Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")

META = sa.Table(
    "meta", METADATA, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
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


_Z = 1.959964
"""Of the normal distribution 95 % lie within so many standard deviations."""


def best_of(evaluations: Iterable[EvaluationSummary]) -> EvaluationSummary | None:
    return max(evaluations, key=_rank, default=None)


def choose_kept_steps(saved: Collection[int], newest: int, evaluations: Iterable[EvaluationSummary]) -> set[int]:
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
