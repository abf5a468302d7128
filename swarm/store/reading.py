"""What is read back from the tables: episodes for people, and all a restarted server goes on from."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from swarm.backends.protocols import CallReward
from swarm.store import tables as evaluated
from swarm.store.database import columns_of
from swarm.store.retention import CALLS, TOKENS, OpenedTraining, oldest_needed
from swarm.store.tables import (
    CHECKPOINTS,
    EPISODES,
    FINISHED,
    NODES,
    STEPS,
    STREAMS,
    TASK_LISTS,
    Closing,
    ExportableEpisodes,
    HighWaterMarks,
    RecoveredState,
    Sample,
    StreamMoved,
    TasksListed,
    unpack_floats,
    unpack_ints,
    unpack_rewards,
)
from swarm.timelines import Drift, Node
from swarm.wire import CallRecord, EpisodeList, EpisodeRecord, EpisodeSummary, EvaluationSummary, TokenSpan

T = TypeVar("T")
EPOCHS_KEPT = 65_536
"""Closed episodes a restarted server can tell precisely about."""
_SERIALS_AT_ONCE = 500
_E = EPISODES.c
_SUMMARY = (
    _E.serial, _E.id, _E.task_id, _E.stream, _E.kind, _E.owner, _E.state, _E.reason, _E.group_name, _E.step,
    _E.reward, _E.success, sa.func.coalesce(_E.calls, CALLS).label("calls"),
    sa.func.coalesce(_E.tokens, TOKENS).label("tokens"),
)  # fmt: skip


def episodes(connection: sa.Connection, training: int, limit: int) -> EpisodeList:
    query = sa.select(*_SUMMARY, _code(connection)).where(_E.training == training)
    query = query.order_by(_E.serial.desc()).limit(limit)
    return EpisodeList(episodes=tuple(EpisodeSummary(**_fields(row)) for row in connection.execute(query).mappings()))


def list_exportable(connection: sa.Connection, training: int) -> ExportableEpisodes:
    """Return which episodes can be exported: of the others only their sums are left."""
    own = _E.training == training
    names = connection.execute(sa.select(_E.id).where(own, _E.calls.is_(None)).order_by(_E.serial)).scalars().all()
    gone = sa.select(sa.func.count(), sa.func.count(sa.case((_E.tokens > 0, 1)))).select_from(EPISODES)
    count, pruned = connection.execute(gone.where(own, _E.calls.is_not(None))).one()
    return ExportableEpisodes(names, pruned, count - pruned)


def find_episode(connection: sa.Connection, training: int, id: str) -> EpisodeRecord | None:
    where = (_E.training == training, _E.id == id)
    row = connection.execute(sa.select(*_SUMMARY, _code(connection)).where(*where)).mappings().one_or_none()
    if row is None:
        return None
    column = next(each for each in columns_of(connection, EPISODES) if each.name == "call_rewards")
    found = connection.execute(sa.select(column).select_from(EPISODES).where(*where)).scalar()
    rewards = {each.call: each for each in unpack_rewards(found)}
    nodes = _nodes(connection, [row["serial"]])[row["serial"]]
    return EpisodeRecord(**_fields(row), record=tuple(call_record(node, rewards.get(node.index)) for node in nodes))


def history(
    connection: sa.Connection, training: int, after: int, most: int, newest: bool
) -> Sequence[tuple[int, Mapping[str, float]]]:
    step, metrics = (column for column in columns_of(connection, STEPS) if column.key in ("step", "metrics"))
    known = sa.select(step, metrics).where(STEPS.c.training == training, STEPS.c.step > after, metrics.is_not(None))
    order = STEPS.c.step.desc() if newest else STEPS.c.step
    finished = known.where(metrics.contains(f'"{FINISHED}"')).order_by(order).limit(most)
    return sorted(((int(row.step), json.loads(row.metrics)) for row in connection.execute(finished)), key=itemgetter(0))


def checkpoints(connection: sa.Connection, training: int) -> list[tuple[int, str]]:
    saved = sa.select(CHECKPOINTS.c.step, CHECKPOINTS.c.name).where(CHECKPOINTS.c.training == training)
    return [(int(row.step), str(row.name)) for row in connection.execute(saved.order_by(CHECKPOINTS.c.step.desc()))]


def evaluations(connection: sa.Connection, training: int) -> list[EvaluationSummary]:
    return evaluated.evaluations(connection, training, columns_of(connection, CHECKPOINTS))


def _code(connection: sa.Connection) -> sa.ColumnElement[Any]:
    return next(column for column in columns_of(connection, EPISODES) if column.key == _E.code.key)


def read_high_water_marks(connection: sa.Connection, training: int) -> HighWaterMarks:
    serial = connection.execute(sa.select(sa.func.max(_E.serial))).scalar()
    closed = connection.execute(sa.select(sa.func.max(_E.closed)).where(_E.training == training)).scalar()
    return HighWaterMarks(serial or 0, closed or 0, _last_scheduled_step(connection, training))


def recover_state(engine: sa.Engine, opened: OpenedTraining, kept: int) -> RecoveredState:
    """Return what a restarted server goes on from; the replayed batches are read when they are asked for."""
    training = opened.number
    with engine.connect() as connection:
        oldest = max(oldest_needed(connection, training, kept), _last_collected_step(connection, training))
        step = _last_scheduled_step(connection, training)
        free = (_E.training == training, _E.kind == "train")
        return RecoveredState(
            checkpoints=checkpoints(connection, training),
            step=step,
            replay=_Replay(engine, training, range(oldest + 1, step + 1)),
            pool=_samples(connection, _E.closed, *free, _E.state == "ended"),
            prepared=_samples(connection, _E.serial, *free, _E.state == "prepared"),
            fencing_tokens=_fencing_tokens(connection, training),
            streams=(streams := _streams(connection, training)),
            begun=_count_begun(connection, training),
            counts=_counts(connection, training),
            job_digest=opened.digest,
            fresh_start=opened.fresh_start,
            lists=_lists(connection, training),
            measured=_StepMetrics(engine, training, step),
            evaluations=evaluations(connection, training),
            stream_order=_stream_order(connection, training),
            played={key: plays for stream in streams for key, plays in _count_plays(connection, training, stream)},
        )


class _Replay(Mapping[int, Sequence[Sample]]):
    """The settled batches by step. One is in memory at a time: each is read when it is asked for."""

    def __init__(self, engine: sa.Engine, training: int, steps: range) -> None:
        self._engine = engine
        self._training = training
        self._steps = steps

    def __getitem__(self, step: int) -> Sequence[Sample]:
        if step not in self._steps:
            raise KeyError(step)
        with self._engine.connect() as connection:
            return _samples(connection, _E.place, _E.training == self._training, _E.step == step)

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


class _StepMetrics(Mapping[int, Mapping[str, float]]):
    """What is known of the steps up to the last settled one. Each is read when it is asked for."""

    def __init__(self, engine: sa.Engine, training: int, last: int) -> None:
        self._engine = engine
        self._known = (STEPS.c.training == training, STEPS.c.metrics.is_not(None), STEPS.c.step <= last)

    def __getitem__(self, step: int) -> Mapping[str, float]:
        query = sa.select(STEPS.c.metrics).where(*self._known, STEPS.c.step == step)
        with self._engine.connect() as connection:
            found = connection.execute(query).scalar()
        if found is None:
            raise KeyError(step)
        return cast(dict[str, float], json.loads(found))

    def __iter__(self) -> Iterator[int]:
        query = sa.select(STEPS.c.step).where(*self._known).order_by(STEPS.c.step)
        with self._engine.connect() as connection:
            return iter(connection.execute(query).scalars().all())

    def __len__(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).where(*self._known)).scalar_one())


def _last_scheduled_step(connection: sa.Connection, training: int) -> int:
    query = sa.select(sa.func.max(STEPS.c.step)).where(STEPS.c.training == training)
    return int(connection.execute(query).scalar() or 0)


def _last_collected_step(connection: sa.Connection, training: int) -> int:
    """Return the last step whose tokens are gone: a job that keeps more checkpoints than before has no more for it."""
    gone = (_E.training == training, _E.state == "consumed", _E.calls.is_not(None))
    return int(connection.execute(sa.select(sa.func.max(_E.step)).where(*gone)).scalar() or 0)


def _samples(connection: sa.Connection, order: sa.Column[Any], *where: sa.ColumnElement[bool]) -> list[Sample]:
    rows = connection.execute(sa.select(EPISODES).where(*where).order_by(order, _E.serial)).all()
    nodes = _nodes(connection, [row.serial for row in rows])
    return [_sample(row, nodes[row.serial]) for row in rows]


def _sample(row: Any, nodes: Sequence[Node]) -> Sample:
    return Sample(
        episode=row.id, task_id=row.task_id, stream=row.stream, owner=row.owner, group=row.group_name,
        reward=row.reward, success=row.success, weight=row.weight, nodes=tuple(nodes), decider=row.decider,
        decider_token=row.decider_token, task_index=row.turn, code=row.code,
        call_rewards=unpack_rewards(row.call_rewards),
    )  # fmt: skip


def _nodes(connection: sa.Connection, serials: Sequence[int]) -> dict[int, list[Node]]:
    found: dict[int, dict[int, Node]] = defaultdict(dict)
    columns = columns_of(connection, NODES)
    for start in range(0, len(serials), _SERIALS_AT_ONCE):
        part = NODES.c.episode.in_(serials[start : start + _SERIALS_AT_ONCE])
        for row in connection.execute(sa.select(*columns).where(part).order_by(NODES.c.episode, NODES.c.place)):
            known = found[row.episode]
            known[row.place] = Node(
                index=row.place, parent=None if row.parent is None else known[row.parent],
                context=unpack_ints(row.context), sampled=unpack_ints(row.sampled),
                logprobs=unpack_floats(row.logprobs), versions=unpack_ints(row.versions), text="",
                drift=Drift(row.drift), trained=row.trained, cut=bool(row.cut),
            )  # fmt: skip
    return {serial: list(found[serial].values()) for serial in serials}


def _fencing_tokens(connection: sa.Connection, training: int) -> dict[str, tuple[int, Closing, str | None]]:
    """Return the latest closed episodes, oldest first."""
    query = sa.select(_E.id, _E.epoch, _E.state, _E.reason).where(_E.training == training, _E.closed.is_not(None))
    rows = connection.execute(query.order_by(_E.closed.desc()).limit(EPOCHS_KEPT)).all()
    return {row.id: (row.epoch, _closing(row.state), row.reason) for row in reversed(rows)}


def _closing(state: str) -> Closing:
    return "ended" if state in ("in_step", "consumed") else cast(Closing, state)


def _streams(connection: sa.Connection, training: int) -> list[StreamMoved]:
    rows = connection.execute(sa.select(STREAMS).where(STREAMS.c.training == training).order_by(STREAMS.c.name))
    return [
        StreamMoved(
            row.name, row.share, row.cursor, row.trained, row.credit, row.turn, tuple(json.loads(row.unfinished))
        )
        for row in rows
    ]


def _stream_order(connection: sa.Connection, training: int) -> tuple[str, ...]:
    trained = sa.select(_E.stream).where(_E.training == training, _E.kind == "train")
    return tuple(connection.execute(trained.group_by(_E.stream).order_by(sa.func.min(_E.serial))).scalars())


def _lists(connection: sa.Connection, training: int) -> list[TasksListed]:
    rows = connection.execute(sa.select(TASK_LISTS).where(TASK_LISTS.c.training == training))
    return [TasksListed(row.stream, row.digest, tuple(json.loads(row.ids))) for row in rows]


def _count_plays(
    connection: sa.Connection, training: int, stream: StreamMoved
) -> Iterator[tuple[tuple[str, int, str], int]]:
    """Yield how many plays ended, and wait no more, of each turn of the stream that is not over, by their reasons."""
    ended = (_E.training == training, _E.stream == stream.name, _E.state.in_(("in_step", "consumed", "dropped")))
    reason = sa.case((_E.state == "dropped", sa.func.coalesce(_E.reason, "")), else_="")
    for start in range(0, len(stream.unfinished), _SERIALS_AT_ONCE):
        part = _E.turn.in_(stream.unfinished[start : start + _SERIALS_AT_ONCE])
        counted = sa.select(_E.turn, reason.label("why"), sa.func.count().label("plays")).where(*ended, part)
        for row in connection.execute(counted.group_by(_E.turn, reason)):
            yield (stream.name, int(row.turn), str(row.why)), int(row.plays)


def _count_begun(connection: sa.Connection, training: int) -> int:
    query = sa.select(sa.func.count()).select_from(EPISODES).where(_E.training == training)
    return int(connection.execute(query).scalar_one())


def _counts(connection: sa.Connection, training: int) -> dict[str, int]:
    closed = (_E.training == training, _E.closed.is_not(None))
    given_up = sa.case((_E.state.in_(("fenced", "dropped")), _E.reason))  # an abort's reason is its client's own words
    by = (_E.kind, _E.state, given_up)
    counts: Counter[str] = Counter()
    for kind, state, reason, number in connection.execute(sa.select(*by, sa.func.count()).where(*closed).group_by(*by)):
        counts["ended" if state == "dropped" else _closing(state)] += number
        if reason is not None:
            counts[f"drop_{reason}"] += number
        if state in ("in_step", "consumed"):
            counts["trained"] += number
        if (kind, state) == ("eval", "ended"):
            counts["evaluated"] += number
    return dict(counts)


def _fields(row: sa.RowMapping) -> dict[str, Any]:
    renamed = {**row, "group": row["group_name"]}
    return {name: value for name, value in renamed.items() if name not in ("serial", "group_name")}


def call_record(node: Node, own: CallReward | None = None) -> CallRecord:
    """Return a call's ids, without texts, with its own reward and agent where it has them."""
    return CallRecord(
        index=node.index,
        parent=None if node.parent is None else node.parent.index,
        drift=node.drift.value,
        context=TokenSpan(ids=node.context, texts=()),
        sampled=TokenSpan(ids=node.sampled, texts=(), logprobs=node.logprobs, versions=node.versions),
        trained=node.trained,
        reward=None if own is None else own.reward,
        agent=(node.agent if own is None else own.agent) or None,
    )


class TrainingReader(ABC):
    """Implements `EpisodeReader` by queries over one training."""

    async def episodes(self, limit: int) -> EpisodeList:
        found = await self._read(lambda connection, training: episodes(connection, training, limit))
        return found or EpisodeList(episodes=())

    async def episode(self, episode: str) -> EpisodeRecord | None:
        return await self._read(lambda connection, training: find_episode(connection, training, episode))

    async def list_exportable(self) -> ExportableEpisodes:
        return await self._read(list_exportable) or ExportableEpisodes()

    async def history(
        self, after: int, most: int, *, newest: bool = False
    ) -> Sequence[tuple[int, Mapping[str, float]]]:
        found = await self._read(lambda connection, training: history(connection, training, after, most, newest))
        return found or ()

    @abstractmethod
    async def _read(self, query: Callable[[sa.Connection, int], T]) -> T | None:
        """Return what a query finds, None where there is no training; StoreUnavailable if it cannot be read."""
