"""What is read back from the tables: episodes for people, and all a restarted server goes on from."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from swarm import wire
from swarm.backends.protocols import CallReward
from swarm.store.changes import Closing, HighWaterMarks
from swarm.store.retention import CALLS, TOKENS, StoredTraining, oldest_needed, read_evaluations
from swarm.store.tables import CHECKPOINTS, EPISODES, NODES, STEPS, Sample, StreamRow, TaskListRow
from swarm.timelines import Drift, Node

T = TypeVar("T")
R = TypeVar("R", StreamRow, TaskListRow)
FINISHED = "training/global_step"
"""A metric that the measures of finished steps alone have: the step itself."""
CLOSED_KEPT = 65_536
"""Closed episodes a restarted server can tell precisely about."""
_SERIALS_AT_ONCE = 500
_E = EPISODES.c


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What a restarted server goes on from.

    checkpoints: names by step, newest first. step: the last one that is settled. replay: the batches from the oldest
    kept checkpoint on, by step, ascending, each in the learner's order. pool: ended, not in a step, in the order of the
    ends. prepared: samples that wait for a team's decision. fencing_tokens: with state and reason, of the latest closed
    episodes, among them those that were open at the crash, fenced now. begun: episodes ever begun. counts: of closed
    episodes, by `aborted`, `fenced`, `drop_<reason>`, `ended`, and of these by `trained`, `evaluated`. job_digest: that
    of the job which began the training; its checkpoints lie under it. fresh_start: a line that names the checkpoints of
    other jobs, where this training begins just now beside them. played: of turns that are not over, how many plays
    ended and wait no more, by stream, turn and the reason why they were dropped ("" where they were not). measured:
    what is known of settled steps, by step, ascending; nothing of those that an earlier release settled. evaluations:
    of the kept checkpoints, by their steps. advantages: of the batches to replay, where a client gave them.
    """

    checkpoints: Sequence[tuple[int, str]]
    step: int
    replay: Mapping[int, Sequence[Sample]]
    pool: Sequence[Sample]
    prepared: Sequence[Sample]
    fencing_tokens: Mapping[str, tuple[int, Closing, str | None]]
    streams: Sequence[StreamRow]
    begun: int
    counts: Mapping[str, int]
    job_digest: str = ""
    fresh_start: str | None = None
    lists: Sequence[TaskListRow] = ()
    played: Mapping[tuple[str, int, str], int] = field(default_factory=dict)
    measured: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    evaluations: Sequence[wire.EvaluationSummary] = ()
    advantages: Mapping[int, Sequence[float]] = field(default_factory=dict)


class EpisodeReader(ABC):
    """What was written of episodes and steps, to be read."""

    @abstractmethod
    async def _read(self, query: Callable[[sa.Connection, int], T]) -> T | None:
        """Return what a query finds, None where there is no training; StoreUnavailable if it cannot be read."""

    async def episodes(self, limit: int) -> wire.EpisodeList:
        return await self._read(lambda connection, of: episodes(connection, of, limit)) or wire.EpisodeList(episodes=())

    async def episode(self, episode: str) -> wire.EpisodeRecord | None:
        def find(connection: sa.Connection, training: int) -> wire.EpisodeRecord | None:
            query = _summaries(training, "serial", "call_rewards").where(_E.episode == episode)
            row = connection.execute(query).mappings().one_or_none()
            if row is None:
                return None
            fields = dict(row)
            serial, rewards = fields.pop("serial"), {each.call: each for each in fields.pop("call_rewards") or ()}
            calls = (call_record(node, rewards.get(node.index)) for node in _nodes(connection, [serial])[serial])
            return wire.EpisodeRecord(**fields, record=tuple(calls))

        return await self._read(find)

    async def list_exportable(self) -> tuple[Sequence[str], wire.ExportCounts]:
        """Return the ids of episodes whose tokens may be there, the oldest first, and how many there are of all."""

        def find(connection: sa.Connection, training: int) -> tuple[Sequence[str], wire.ExportCounts]:
            own, there = _E.training == training, sa.select(_E.episode).where(_E.calls.is_(None)).order_by(_E.serial)
            gone = sa.select(sa.func.count(), sa.func.count(sa.case((_E.tokens > 0, 1)))).select_from(EPISODES)
            count, pruned = connection.execute(gone.where(own, _E.calls.is_not(None))).one()
            names = connection.execute(there.where(own)).scalars().all()
            return names, wire.ExportCounts(episodes=len(names), pruned=pruned, no_tokens=count - pruned)

        return await self._read(find) or ((), wire.ExportCounts())

    async def history(
        self, after: int, most: int, *, newest: bool = False
    ) -> Sequence[tuple[int, Mapping[str, float]]]:
        """Return the metrics of finished steps above `after`, ascending, at most so many: the first, or the newest."""

        def find(connection: sa.Connection, training: int) -> Sequence[tuple[int, Mapping[str, float]]]:
            finished = sa.type_coerce(STEPS.c.metrics, sa.Text).contains(f'"{FINISHED}"')
            these = (STEPS.c.training == training, STEPS.c.step > after, finished)
            order = STEPS.c.step.desc() if newest else STEPS.c.step
            query = sa.select(STEPS.c.step, STEPS.c.metrics).where(*these).order_by(order).limit(most)
            return sorted((row.step, row.metrics) for row in connection.execute(query))

        return await self._read(find) or ()


def _summaries(training: int, *more: str) -> sa.Select[Any]:
    plain = ("task_id", "stream", "kind", "owner", "state", "reason", "group", "step", "reward", "success", "code")
    calls = sa.func.coalesce(_E.calls, CALLS).label("calls"), sa.func.coalesce(_E.tokens, TOKENS).label("tokens")
    named = (_E.episode.label("id"), *(_E[name].label(name) for name in plain), *calls)
    return sa.select(*named, *(_E[name] for name in more)).where(_E.training == training)


def episodes(connection: sa.Connection, training: int, limit: int) -> wire.EpisodeList:
    query = _summaries(training).order_by(_E.serial.desc()).limit(limit)
    return wire.EpisodeList(episodes=tuple(wire.EpisodeSummary(**row) for row in connection.execute(query).mappings()))


def checkpoints(connection: sa.Connection, training: int) -> list[tuple[int, str]]:
    saved = sa.select(CHECKPOINTS.c.step, CHECKPOINTS.c.name).where(CHECKPOINTS.c.training == training)
    return [(row.step, row.name) for row in connection.execute(saved.order_by(CHECKPOINTS.c.step.desc()))]


def call_record(node: Node, own: CallReward | None = None) -> wire.CallRecord:
    return wire.CallRecord(
        index=node.index, parent=None if node.parent is None else node.parent.index, drift=node.drift.value,
        context=wire.TokenSpan(ids=node.context, texts=()),
        sampled=wire.TokenSpan(ids=node.sampled, texts=(), logprobs=node.logprobs, versions=node.versions),
        trained=node.trained, reward=None if own is None else own.reward,
        agent=(node.agent if own is None else own.agent) or None,
    )  # fmt: skip


def read_high_water_marks(connection: sa.Connection, training: int) -> HighWaterMarks:
    serial = connection.execute(sa.select(sa.func.max(_E.serial))).scalar()
    closed = connection.execute(sa.select(sa.func.max(_E.closed)).where(_E.training == training)).scalar()
    step = connection.execute(sa.select(sa.func.max(STEPS.c.step)).where(STEPS.c.training == training)).scalar()
    return HighWaterMarks(serial or 0, closed or 0, step or 0)


class _ByStep(Mapping[int, T]):
    """What is known of steps; each is read when it is asked for, so that one is in memory at a time."""

    def __init__(self, engine: sa.Engine, steps: Sequence[int], read: Callable[[sa.Connection, int], T | None]) -> None:
        self._engine = engine
        self._steps = dict.fromkeys(steps)
        self._read = read

    def __getitem__(self, step: int) -> T:
        if step in self._steps:
            with self._engine.connect() as connection:
                if (value := self._read(connection, step)) is not None:
                    return value
        raise KeyError(step)

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


def recover_state(engine: sa.Engine, stored: StoredTraining, kept: int, fresh_start: str | None) -> RecoveredState:
    """Return what a restarted server goes on from; batches and metrics are read when they are asked for."""
    training = stored.number
    own = _E.training == training

    def read_column(column: sa.ColumnElement[Any], connection: sa.Connection, step: int) -> Any:
        query = sa.select(column).where(STEPS.c.training == training, STEPS.c.step == step)
        return connection.execute(query).scalar()

    with engine.connect() as connection:
        step = read_high_water_marks(connection, training).step
        # a job that keeps more checkpoints than before has no more of the steps whose tokens are gone
        collected = sa.select(sa.func.max(_E.step)).where(own, _E.state == "consumed", _E.calls.is_not(None))
        gone = connection.execute(collected).scalar() or 0
        batches = range(max(oldest_needed(connection, training, kept), gone) + 1, step + 1)
        known = sa.select(STEPS.c.step).where(STEPS.c.training == training, STEPS.c.metrics.is_not(None))
        measured = connection.execute(known.order_by(STEPS.c.step)).scalars().all()
        streams = _rows(connection, StreamRow, training)
        begun = sa.select(sa.func.count()).select_from(EPISODES).where(own)
        ends = sa.select(_E.episode, _E.fencing_token, _E.state, _E.reason).where(own, _E.closed.is_not(None))
        closed = connection.execute(ends.order_by(_E.closed.desc()).limit(CLOSED_KEPT)).all()
        played: dict[tuple[str, int, str], int] = {}
        reason = sa.case((_E.state == "dropped", sa.func.coalesce(_E.reason, "")), else_="")
        by_turn = sa.select(_E.task_index, reason, sa.func.count()).group_by(_E.task_index, reason)
        over = by_turn.where(own, _E.state.in_(("in_step", "consumed", "dropped")))
        for stream in streams:
            for start in range(0, len(stream.unfinished), _SERIALS_AT_ONCE):
                part = _E.task_index.in_(stream.unfinished[start : start + _SERIALS_AT_ONCE])
                for task_index, why, plays in connection.execute(over.where(_E.stream == stream.name, part)):
                    played[stream.name, task_index, why] = plays
        return RecoveredState(
            checkpoints=checkpoints(connection, training),
            step=step,
            replay=_ByStep(engine, batches, lambda of, batch: _samples(of, _E.place, own, _E.step == batch)),
            advantages=_ByStep(engine, batches, partial(read_column, STEPS.c.advantages)),
            pool=_samples(connection, _E.closed, own, _E.kind == "train", _E.state == "ended"),
            prepared=_samples(connection, _E.serial, own, _E.kind == "train", _E.state == "prepared"),
            fencing_tokens={episode: (token, _closing(state), why) for episode, token, state, why in reversed(closed)},
            streams=streams,
            begun=connection.execute(begun).scalar_one(),
            counts=_counts(connection, training),
            job_digest=stored.digest,
            fresh_start=fresh_start,
            lists=_rows(connection, TaskListRow, training),
            measured=_ByStep(engine, measured, partial(read_column, STEPS.c.metrics)),
            evaluations=read_evaluations(connection, training),
            played=played,
        )


def _rows(connection: sa.Connection, kind: type[R], training: int) -> list[R]:
    table = cast(sa.Table, kind.__table__)
    columns = [column.label(column.key) for column in table.columns if column.key != "training"]
    query = sa.select(*columns).where(table.c.training == training).order_by(*table.primary_key)
    return [kind(**row) for row in connection.execute(query).mappings()]


_SAMPLE = tuple(name for name in Sample.__dataclass_fields__ if name != "nodes")


def _samples(connection: sa.Connection, order: sa.Column[Any], *where: sa.ColumnElement[bool]) -> list[Sample]:
    columns = (_E[name].label(name) for name in ("serial", *_SAMPLE))
    rows = connection.execute(sa.select(*columns).where(*where).order_by(order, _E.serial)).all()
    nodes = _nodes(connection, [row.serial for row in rows])
    return [Sample(**dict(zip(_SAMPLE, fields, strict=True)), nodes=tuple(nodes[serial])) for serial, *fields in rows]


def _nodes(connection: sa.Connection, serials: Sequence[int]) -> dict[int, list[Node]]:
    by_episode: dict[int, dict[int, Node]] = defaultdict(dict)
    for start in range(0, len(serials), _SERIALS_AT_ONCE):
        part = NODES.c.episode.in_(serials[start : start + _SERIALS_AT_ONCE])
        for row in connection.execute(sa.select(NODES).where(part).order_by(NODES.c.episode, NODES.c.place)):
            nodes = by_episode[row.episode]
            nodes[row.place] = Node(
                index=row.place, parent=None if row.parent is None else nodes[row.parent],
                context=row.context, sampled=row.sampled, logprobs=row.logprobs, versions=row.versions, text="",
                drift=Drift(row.drift), trained=row.trained, cut=bool(row.cut),
            )  # fmt: skip
    return {serial: list(by_episode[serial].values()) for serial in serials}


def _closing(state: str) -> Closing:
    return "ended" if state in ("in_step", "consumed") else cast(Closing, state)


def _counts(connection: sa.Connection, training: int) -> dict[str, int]:
    closed = (_E.training == training, _E.closed.is_not(None))
    given_up = sa.case((_E.state.in_(("fenced", "dropped")), _E.reason))  # an abort's reason is its client's own words
    by, counts = (_E.kind, _E.state, given_up), Counter[str]()
    for kind, state, reason, number in connection.execute(sa.select(*by, sa.func.count()).where(*closed).group_by(*by)):
        counts["ended" if state == "dropped" else _closing(state)] += number
        if reason is not None:
            counts[f"drop_{reason}"] += number
        if state in ("in_step", "consumed"):
            counts["trained"] += number
        if (kind, state) == ("eval", "ended"):
            counts["evaluated"] += number
    return dict(counts)
