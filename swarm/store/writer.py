"""The SQL store: one training, written by one thread with group commit, read by others.

Requests that arrive while a group is written make up the next group. Futures are resolved once their group is
committed; if that fails, its writes fail, its notes (requests nobody waits for) are kept and tried again, and the
connection is made anew. Groups are numbered in the database together with their changes, so whether a commit arrived is
never guessed. The writer is `broken`, until a restart, where the database refuses for good or a note is lost: nothing
later may be stored without it.

Changes of one kind are written together, except around Withdrawn, InStep, Consumed, Evaluated and Erased, whose order
matters. No episode is settled twice (an InStep of one that is not ended and free is refused whole), and no reward is
taken for an episode whose beginning was given up. `open_store` migrates, finds or begins the training and fences what
was open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import ServerFailed, StoreRefused, StoreUnavailable
from swarm.job import Job
from swarm.store import database, reading, retention
from swarm.store.database import AUTOMATIC, WalCheckpointer, error_message, open_database, redacted_url
from swarm.store.retention import erase, find_or_begin
from swarm.store.tables import (
    CHECKPOINTS,
    EPISODES,
    EVENTS,
    NODES,
    STEPS,
    STREAMS,
    TASK_LISTS,
    TRAININGS,
    BatchScheduled,
    CallCaptured,
    CallWithdrawn,
    Change,
    CheckpointEvaluated,
    CheckpointSaved,
    EpisodeBegan,
    EpisodeClosed,
    EpisodeErased,
    EpisodePrepared,
    ExportableEpisodes,
    HighWaterMarks,
    RecoveredState,
    StepMeasured,
    StoredEvent,
    StreamMoved,
    TasksListed,
    choose_kept_steps,
    evaluations,
    pack_floats,
    pack_ints,
    pack_rewards,
)
from swarm.wire import EpisodeList, EpisodeRecord


class FakeStore:
    """`changes` holds all that was written, in order. `hold()` makes writes wait; `fail` makes them raise. `broken` is
    what it says of itself, and makes every write be refused for good."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.fail: str | None = None
        self.broken: str | None = None
        self._released = asyncio.Event()
        self._released.set()

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def write(self, *changes: Change) -> None:
        await self._released.wait()
        if self.broken is not None:
            raise StoreRefused(self.broken)
        if self.fail is not None:
            raise StoreUnavailable(self.fail)
        self.changes += changes

    def note(self, *changes: Change) -> None:
        self.changes += changes

    async def episodes(self, limit: int) -> EpisodeList:
        return EpisodeList(episodes=())

    async def episode(self, episode: str) -> EpisodeRecord | None:
        return None

    async def list_exportable(self) -> ExportableEpisodes:
        return ExportableEpisodes()

    async def history(
        self, after: int, most: int, *, newest: bool = False
    ) -> Sequence[tuple[int, Mapping[str, float]]]:
        return ()

    def failure(self) -> str | None:
        return self.broken

    async def close(self) -> None:
        """Nothing to let go of."""


_NODES_AT_ONCE = 32
_THIS = sa.and_(EPISODES.c.training == sa.bindparam("of"), EPISODES.c.id == sa.bindparam("episode"))
_UPDATE = sa.update(EPISODES).where(_THIS)
_SETTLE = sa.update(EPISODES).where(_THIS, EPISODES.c.state == "ended", EPISODES.c.kind == "train")
_MEASURE = (
    sa.update(STEPS)
    .where(STEPS.c.training == sa.bindparam("of"), STEPS.c.step == sa.bindparam("at"))
    .values(metrics=sa.bindparam("found"))
)
_WITHDRAW = sa.delete(NODES).where(NODES.c.episode == sa.bindparam("of"), NODES.c.place == sa.bindparam("at"))


class ContradictoryChanges(ValueError):
    """The changes contradict what is written; they cannot be written however often one tries."""


class RowWriter:
    """Writes the changes of one training. Numbers of a transaction that fails are left out, and nothing else."""

    def __init__(self, training: int, checkpoints_kept: int, marks: HighWaterMarks) -> None:
        self._training = training
        self._kept = checkpoints_kept
        self._marks = marks
        self._serials: dict[str, int] = {}  # of open episodes
        self._writers: dict[type[Change], Callable[[sa.Connection, Sequence[Any]], None]] = {
            EpisodeBegan: self._write_episodes,
            CallCaptured: self._write_calls,
            CallWithdrawn: self._delete_calls,
            EpisodePrepared: self._write_preparations,
            EpisodeClosed: self._write_closings,
            EpisodeErased: self._erase_tokens,
            BatchScheduled: self._write_batches,
            StepMeasured: self._write_metrics,
            CheckpointSaved: self._write_checkpoints,
            CheckpointEvaluated: self._write_evaluations,
            StreamMoved: self._write_streams,
            TasksListed: self._write_task_lists,
            StoredEvent: self._write_events,
        }

    def write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        for kind, alike in _group_changes(changes, self._writers):
            self._writers[kind](connection, alike)

    def forget(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, EpisodeBegan):
                self._serials.pop(change.episode, None)

    def _write_episodes(self, connection: sa.Connection, changes: Sequence[EpisodeBegan]) -> None:
        connection.execute(sa.insert(EPISODES), [self._episode(change) for change in changes])

    def _episode(self, change: EpisodeBegan) -> dict[str, Any]:
        self._marks.serial += 1
        self._serials[change.episode] = self._marks.serial
        return {
            "serial": self._marks.serial, "training": self._training, "id": change.episode,
            "task_id": _text(change.task_id), "stream": _text(change.stream), "kind": change.kind,
            "owner": _text(change.owner), "group_name": _text(change.group), "version": change.version,
            "state": "open", "epoch": 1, "weight": 1.0, "turn": change.task_index, "code": change.code,
        }  # fmt: skip

    def _write_calls(self, connection: sa.Connection, changes: Sequence[CallCaptured]) -> None:
        for start in range(0, len(changes), _NODES_AT_ONCE):
            part = changes[start : start + _NODES_AT_ONCE]
            values = tuple(value for change in part for value in self._node(connection, change))
            connection.exec_driver_sql(_insert_nodes(connection.dialect.paramstyle, len(part)), values)

    def _node(self, connection: sa.Connection, change: CallCaptured) -> tuple[Any, ...]:
        node = change.node
        return (
            self._serial(connection, change.episode), node.index, None if node.parent is None else node.parent.index,
            node.drift.value, pack_ints(node.context), pack_ints(node.sampled), pack_floats(node.logprobs),
            pack_ints(node.versions), node.trained, node.cut,
        )  # fmt: skip

    def _delete_calls(self, connection: sa.Connection, changes: Sequence[CallWithdrawn]) -> None:
        rows = [{"of": self._serial(connection, change.episode), "at": change.node.index} for change in changes]
        connection.execute(_WITHDRAW, rows)

    def _write_preparations(self, connection: sa.Connection, changes: Sequence[EpisodePrepared]) -> None:
        self._check_begun(connection, changes)
        rows = [
            {
                **self._episode_key(change.episode), "state": "prepared", "reward": change.reward,
                "success": change.success, "weight": change.weight, "decider": change.decider,
                "decider_token": change.decider_token, "call_rewards": pack_rewards(change.call_rewards),
            }
            for change in changes
        ]  # fmt: skip
        connection.execute(_UPDATE, rows)

    def _write_closings(self, connection: sa.Connection, changes: Sequence[EpisodeClosed]) -> None:
        self._check_begun(connection, [change for change in changes if change.state == "ended"])
        for change in changes:
            self._serials.pop(change.episode, None)
        rewarded = [self._reward(change) for change in changes if change.state == "ended"]
        given_up = [self._closing(change) for change in changes if change.state != "ended"]
        for rows in (rewarded, given_up):  # the same episode may be ended, then dropped; never the other way
            if rows:
                connection.execute(_UPDATE, rows)

    def _closing(self, change: EpisodeClosed) -> dict[str, Any]:
        self._marks.closed += 1
        return {
            **self._episode_key(change.episode), "state": change.state, "epoch": change.fencing_token,
            "reason": _text(change.reason), "closed": self._marks.closed, "closed_after": self._marks.step,
        }  # fmt: skip

    def _reward(self, change: EpisodeClosed) -> dict[str, Any]:
        return {
            **self._closing(change), "reward": change.reward, "success": change.success, "weight": change.weight,
            "group_name": _text(change.group), "turn": change.task_index,
            "call_rewards": pack_rewards(change.call_rewards),
        }  # fmt: skip

    def _erase_tokens(self, connection: sa.Connection, changes: Sequence[EpisodeErased]) -> None:
        for change in changes:
            erase(connection, self._training, change.episode)

    def _write_batches(self, connection: sa.Connection, changes: Sequence[BatchScheduled]) -> None:
        for change in changes:
            settled = {"training": self._training, "step": change.step, "episodes": len(change.episodes)}
            connection.execute(sa.insert(STEPS), settled)
            rows = [
                {**self._episode_key(episode), "state": "in_step", "step": change.step, "place": place}
                for place, episode in enumerate(change.episodes)
            ]
            if rows:
                connection.execute(_SETTLE, rows)
            self._check_scheduled(connection, change)
            self._marks.step = change.step

    def _check_scheduled(self, connection: sa.Connection, change: BatchScheduled) -> None:
        where = (EPISODES.c.training == self._training, EPISODES.c.step == change.step)
        found = connection.execute(sa.select(sa.func.count()).select_from(EPISODES).where(*where)).scalar_one()
        if found != len(change.episodes):
            raise ContradictoryChanges(
                f"step {change.step}: expected {len(change.episodes)} ended episodes that are in no step, found {found}"
            )

    def _write_metrics(self, connection: sa.Connection, changes: Sequence[StepMeasured]) -> None:
        rows = [
            {"of": self._training, "at": change.step, "found": json.dumps(dict(change.metrics))} for change in changes
        ]
        connection.execute(_MEASURE, rows)

    def _write_checkpoints(self, connection: sa.Connection, changes: Sequence[CheckpointSaved]) -> None:
        episodes, saved = EPISODES.c, CHECKPOINTS.c
        for change in changes:
            settled = (episodes.training == self._training, episodes.state == "in_step", episodes.step <= change.step)
            connection.execute(sa.update(EPISODES).where(*settled).values(state="consumed"))
            this = (saved.training == self._training, saved.step == change.step)
            again = connection.execute(sa.update(CHECKPOINTS).where(*this).values(name=change.name)).rowcount
            if not again:
                row = {"training": self._training, "step": change.step, "name": change.name}
                connection.execute(sa.insert(CHECKPOINTS), row)
            self._rotate(connection)

    def _write_evaluations(self, connection: sa.Connection, changes: Sequence[CheckpointEvaluated]) -> None:
        saved = CHECKPOINTS.c
        for found in (change.evaluation for change in changes):
            this = (saved.training == self._training, saved.step == found.step)
            scores = found.model_dump(include={"episodes", "reward", "success"})
            connection.execute(sa.update(CHECKPOINTS).where(*this).values(**scores))
        self._rotate(connection)

    def _rotate(self, connection: sa.Connection) -> None:
        saved = CHECKPOINTS.c
        here = saved.training == self._training
        steps = list(connection.execute(sa.select(saved.step).where(here)).scalars())
        kept = choose_kept_steps(steps, self._kept, evaluations(connection, self._training))
        connection.execute(sa.delete(CHECKPOINTS).where(here, saved.step.not_in(kept)))

    def _write_streams(self, connection: sa.Connection, changes: Sequence[StreamMoved]) -> None:
        latest = {change.name: change for change in changes}
        gone = sa.and_(STREAMS.c.training == self._training, STREAMS.c.name.in_(list(latest)))
        connection.execute(sa.delete(STREAMS).where(gone))
        rows = [
            {
                "training": self._training, "name": change.name, "share": change.share, "cursor": change.cursor,
                "trained": change.trained, "credit": change.credit, "turn": change.next_task_index,
                "unfinished": json.dumps(change.unfinished),
            }
            for change in latest.values()
        ]  # fmt: skip
        connection.execute(sa.insert(STREAMS), rows)

    def _write_task_lists(self, connection: sa.Connection, changes: Sequence[TasksListed]) -> None:
        rows = [
            {
                "training": self._training,
                "stream": listed.stream,
                "digest": listed.digest,
                "ids": json.dumps(listed.ids),
            }
            for listed in changes
        ]
        connection.execute(sa.insert(TASK_LISTS), rows)

    def _write_events(self, connection: sa.Connection, changes: Sequence[StoredEvent]) -> None:
        rows = [
            {"training": self._training, "kind": event.kind, "at": event.at, "details": json.dumps(dict(event.details))}
            for event in changes
        ]
        connection.execute(sa.insert(EVENTS), rows)

    def _episode_key(self, episode: str) -> dict[str, Any]:
        return {"of": self._training, "episode": episode}

    def _check_begun(self, connection: sa.Connection, changes: Sequence[EpisodePrepared | EpisodeClosed]) -> None:
        """Raise Refused for an episode that is not written: an update of nothing would be no error."""
        for change in changes:
            self._serial(connection, change.episode)

    def _serial(self, connection: sa.Connection, episode: str) -> int:
        known = self._serials.get(episode)
        if known is None:  # it closed, or began before a restart
            query = sa.select(EPISODES.c.serial).where(_THIS)
            known = connection.execute(query, self._episode_key(episode)).scalar()
        if known is None:
            raise ContradictoryChanges(f"episode {episode} never began")
        return int(known)


_BARRIERS = (CallWithdrawn, BatchScheduled, CheckpointSaved, CheckpointEvaluated, EpisodeErased)


def _group_changes(
    changes: Sequence[Change], order: Sequence[type[Change]] | Any
) -> Iterator[tuple[type[Change], list[Any]]]:
    alike: dict[type[Change], list[Any]] = {}
    for change in changes:
        if isinstance(change, _BARRIERS):
            yield from _sort_changes(alike, order)
            alike = {}
            yield type(change), [change]
        else:
            alike.setdefault(type(change), []).append(change)
    yield from _sort_changes(alike, order)


def _sort_changes(alike: dict[type[Change], list[Any]], order: Any) -> Iterator[tuple[type[Change], list[Any]]]:
    return ((kind, alike[kind]) for kind in order if kind in alike)


@cache
def _insert_nodes(paramstyle: str, rows: int) -> str:
    """Return the SQL that inserts several nodes in one statement: one hand-over of the interpreter for all."""
    mark = "?" if paramstyle == "qmark" else "%s"
    row = f"({', '.join([mark] * len(NODES.columns))})"
    columns = ", ".join(column.name for column in NODES.columns)
    return f"INSERT INTO {NODES.name} ({columns}) VALUES {', '.join([row] * rows)}"


def _text(value: str | None) -> str | None:
    """Return text as every database takes it: PostgreSQL's has no NUL."""
    return value if value is None or "\0" not in value else value.replace("\0", "\ufffd")


log = logging.getLogger(__name__)

GROUP = 2048
"""Most requests in one transaction."""
NOTES_KEPT = 16_384
"""Most requests without anyone waiting that are kept while the database takes nothing; with more, it is broken."""
CLOSINGS = 1000
"""Closings after which to look for garbage, if no checkpoint comes first."""
RETRY_S = 0.5
"""Seconds between tries to write kept notes while nothing else comes."""
DOUBT_S = 20.0
"""Seconds to find out whether a commit arrived, over a database that went away during it."""

_NUMBER = sa.update(TRAININGS).where(TRAININGS.c.id == sa.bindparam("of")).values(written=sa.bindparam("written"))


@dataclass(slots=True, eq=False)
class WriteRequest:
    """Changes that are written together or not at all; `done` is resolved on its own loop."""

    changes: tuple[Change, ...]
    done: asyncio.Future[None] | None = None


class Writer:
    """Runs from construction to `stop`. `put` may be called from any thread."""

    def __init__(self, engine: sa.Engine, training: int, rows: RowWriter, checkpoints_kept: int) -> None:
        self.broken: str | None = None
        """Why nothing is written any more before a restart."""
        self._engine = engine
        self._training = training
        self._rows = rows
        self._kept_checkpoints = checkpoints_kept
        self._queue: queue.SimpleQueue[WriteRequest | None] = queue.SimpleQueue()
        self._notes: deque[WriteRequest] = deque()
        self._connection: sa.Connection | None = None
        self._synchronous = "NORMAL"
        self._garbage = True  # what a restart left
        self._closings = 0  # since it last looked for garbage
        self._failing = False
        self._stopping = False
        self._checkpointer = WalCheckpointer(engine) if engine.dialect.name == "sqlite" else None
        with engine.connect() as connection:
            self._written = _read_written(connection, training)
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, item: WriteRequest) -> None:
        self._queue.put(item)

    def stop(self) -> None:
        """Write what is left, end the thread and close its connection. Blocks."""
        self._queue.put(None)
        self._thread.join()
        if self._checkpointer is not None:
            self._checkpointer.stop()
        self._disconnect()
        if self._notes:
            log.error("event=store_lost notes=%d reason=closed_while_unavailable", len(self._notes))

    def _run(self) -> None:
        while not self._stopping:
            group = self._next_group()
            if group or self._notes:
                self._write([*self._notes, *group])
            self._collect_garbage()

    def _next_group(self) -> list[WriteRequest]:
        group: list[WriteRequest] = []
        with contextlib.suppress(queue.Empty):  # nothing more waits
            item = self._queue.get(timeout=self._next_timeout())
            while item is not None:
                group.append(item)
                if len(group) == GROUP:
                    return group
                item = self._queue.get_nowait()
            self._stopping = True
        return group

    def _next_timeout(self) -> float | None:
        if self._notes:
            return RETRY_S
        return 0.0 if self._garbage else None

    def _write(self, items: Sequence[WriteRequest]) -> Exception | None:
        """Write the items in one transaction; where that cannot ever succeed, each by itself. Returns an error that
        passes, for which nothing was written and the notes are kept."""
        self._notes.clear()
        try:
            self._transact(items)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one item must not end the writer
            if self.broken is not None:
                self._report_failure(items, self.broken)
            elif database.is_database_failure(error):
                self._break(f"it refuses for good: {error_message(error)}", items)
            elif not database.is_permanent(error):
                self._handle_failure(items, error)
                return error
            elif len(items) == 1:
                self._handle_refusal(items[0], error)
            else:
                self._write_each(items)
        else:
            self._acknowledge(items)
        return None

    def _write_each(self, items: Sequence[WriteRequest]) -> None:
        """Write each item by itself; what comes after a note that has to wait waits with it, or is told so."""
        for place, item in enumerate(items, 1):
            passing = self._write([item])
            if passing is not None and self._notes:
                self._handle_failure(items[place:], passing)
                return

    def _transact(self, items: Sequence[WriteRequest]) -> None:
        """Write the items' changes and commit; raise if that did not happen."""
        if self.broken is not None:
            raise StoreRefused(self.broken)
        changes = [change for item in items for change in item.changes]
        if not changes:
            return
        committing = False
        try:
            connection = self._connect(full=any(map(_must_survive_power_loss, changes)))
            with connection.begin() as transaction:
                self._rows.write(connection, changes)
                connection.execute(_NUMBER, {"of": self._training, "written": self._written + 1})
                committing = True
                transaction.commit()
        except Exception:
            self._disconnect()
            if not committing or not self._is_committed():
                self._rows.forget(changes)
                raise
        self._written += 1
        if self._checkpointer is not None:
            self._checkpointer.notify_commit()
        self._closings += sum(isinstance(change, EpisodeClosed) for change in changes)
        if self._closings >= CLOSINGS or any(isinstance(change, CheckpointSaved) for change in changes):
            self._garbage, self._closings = True, 0

    def _connect(self, *, full: bool) -> sa.Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            self._synchronous = "NORMAL"
            if self._checkpointer is not None:
                self._connection.exec_driver_sql(AUTOMATIC)
                self._connection.commit()
        level = "FULL" if full else "NORMAL"
        if level != self._synchronous and self._engine.dialect.name == "sqlite":
            self._connection.exec_driver_sql(f"PRAGMA synchronous={level}")
            self._connection.commit()
            self._synchronous = level
        return self._connection

    def _is_committed(self) -> bool:
        """Return whether the group whose commit failed is in the database all the same."""
        until = time.monotonic() + DOUBT_S
        while True:
            try:
                with self._engine.connect() as connection:
                    return _read_written(connection, self._training) > self._written
            except SQLAlchemyError as error:
                if time.monotonic() > until:
                    self._break(f"it went away during a commit and did not come back: {error_message(error)}", [])
                    return False
                time.sleep(RETRY_S)

    def _acknowledge(self, items: Sequence[WriteRequest]) -> None:
        if self._failing:
            self._failing = False
            log.warning("event=store_available written=%d", len(items))
        _resolve_futures([item.done for item in items if item.done is not None], None)

    def _handle_failure(self, items: Sequence[WriteRequest], error: Exception) -> None:
        said = error_message(error)
        if not self._failing:
            self._failing = True
            log.error("event=store_unavailable reason=%r", said)
        self._notes.extend(item for item in items if item.done is None)
        if len(self._notes) > NOTES_KEPT:
            self._break(f"it took nothing for so long that notes were lost (more than {NOTES_KEPT}): {said}", items)
        else:
            self._report_failure(
                items, f"{said}; free space or mend the database; then it goes on by itself", passing=True
            )

    def _handle_refusal(self, item: WriteRequest, error: Exception) -> None:
        log.error("event=store_refused changes=%r error=%r", [type(c).__name__ for c in item.changes], error)
        said = str(error) if isinstance(error, ContradictoryChanges) else f"{type(error).__name__}: {error}"
        if item.done is None:
            self._break(f"a note was refused, and so is lost: {said}", [])
        self._report_failure([item], said)

    def _break(self, said: str, items: Sequence[WriteRequest]) -> None:
        self.broken = (
            f"the store {redacted_url(self._engine)} writes nothing any more: {said}; mend it and restart the server"
        )
        log.error("event=store_broken reason=%r", self.broken)
        self._notes.clear()
        self._report_failure(items, self.broken)

    def _report_failure(self, items: Sequence[WriteRequest], said: str, *, passing: bool = False) -> None:
        told = f"the store {redacted_url(self._engine)} could not write this down, so it does not count: {said}"
        if said is self.broken:
            told = said
        failure = StoreUnavailable(told, retry_after=1.0) if passing else StoreRefused(told)
        _resolve_futures([item.done for item in items if item.done is not None], failure)

    def _collect_garbage(self) -> None:
        """Collect some garbage; nothing depends on it, so a failure waits for the next checkpoint."""
        if not self._garbage or self._notes or self.broken:
            return
        try:
            connection = self._connect(full=False)
            with connection.begin():
                self._garbage = retention.collect_garbage(connection, self._training, self._kept_checkpoints)
        except Exception as error:  # noqa: BLE001 - nothing that is wrong with old garbage must end the writer
            self._garbage = False
            self._disconnect()
            log.warning("event=store_garbage_left reason=%r", error_message(error))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):  # it is being thrown away
                connection.invalidate()
                connection.close()


def _must_survive_power_loss(change: Change) -> bool:
    """Return whether a change, and so all before it, must be on the disk itself before it counts."""
    return isinstance(change, BatchScheduled | CheckpointSaved | EpisodePrepared | TasksListed) or (
        isinstance(change, EpisodeClosed) and change.team
    )


def _read_written(connection: sa.Connection, training: int) -> int:
    query = sa.select(TRAININGS.c.written).where(TRAININGS.c.id == training)
    return int(connection.execute(query).scalar_one())


def _resolve_futures(waiting: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in waiting:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_results, futures, error)
        except RuntimeError:
            log.warning("event=store_nobody_waits writes=%d reason=the_event_loop_is_closed", len(futures))


def _set_results(futures: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if future.done():  # its caller was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


RESTARTED = "server_restarted"
"""Why episodes that were open at a restart are fenced."""

T = TypeVar("T")


def open_store(url: str, job: Job, installation: str) -> tuple[SqlStore, RecoveredState]:
    """Open the job's training in the database at `url`, for the server directory with that id. Blocks.

    Raises ServerFailed, in one line, if the database cannot be opened, is not this server's, or has trained the job
    further than it asks for.
    """
    engine = open_database(url, installation)
    try:
        with engine.begin() as connection:
            opened = find_or_begin(connection, job)
            fence_open_episodes(connection, opened.number)
            heads = reading.read_high_water_marks(connection, opened.number)
        kept = job.checkpoints_kept
        recovered = reading.recover_state(engine, opened, kept)
        writer = Writer(engine, opened.number, RowWriter(opened.number, kept, heads), kept)
    except SQLAlchemyError as error:
        engine.dispose()
        raise ServerFailed(f"the store {redacted_url(engine)} cannot be read: {error_message(error)}") from error
    except ServerFailed:
        engine.dispose()
        raise
    return SqlStore(engine, opened.number, writer), recovered


class SqlStore(reading.TrainingReader):
    """Implements `Store`."""

    def __init__(self, engine: sa.Engine, training: int, writer: Writer) -> None:
        self._engine = engine
        self._training = training
        self._writer = writer
        self._closed = False

    async def write(self, *changes: Change) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed: the engine was stopped", retry_after=1.0)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.put(WriteRequest(changes, done))
        await done

    def note(self, *changes: Change) -> None:
        if not self._closed:
            self._writer.put(WriteRequest(changes))

    def failure(self) -> str | None:
        return self._writer.broken

    async def close(self) -> None:
        """Write what is left and let go of the database; safe to call twice."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._writer.stop)
            self._engine.dispose()

    async def _read(self, query: Callable[[sa.Connection, int], T]) -> T:
        return await asyncio.to_thread(self._query, query)

    def _query(self, query: Callable[[sa.Connection, int], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return query(connection, self._training)
        except SQLAlchemyError as error:
            raise StoreUnavailable(
                f"the store {redacted_url(self._engine)} cannot be read: {error_message(error)}", retry_after=1.0
            ) from error


def fence_open_episodes(connection: sa.Connection, training: int) -> None:
    """Close what was open, in the order of its beginning: nobody's lease outlives the server."""
    episodes = EPISODES.c
    heads = reading.read_high_water_marks(connection, training)
    open_ones = sa.select(episodes.serial).where(episodes.training == training, episodes.state == "open")
    serials = list(connection.execute(open_ones.order_by(episodes.serial)).scalars())
    fenced = sa.update(EPISODES).where(episodes.serial == sa.bindparam("which"))
    fenced = fenced.values(
        state="fenced", epoch=episodes.epoch + 1, reason=RESTARTED, closed=sa.bindparam("at"), closed_after=heads.step
    )
    rows = [{"which": serial, "at": heads.closed + place} for place, serial in enumerate(serials, start=1)]
    if rows:
        connection.execute(fenced, rows)
