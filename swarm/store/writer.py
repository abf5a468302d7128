"""The writer: one thread that writes everything of a training, many changes in one transaction.

Requests that come while a group is being written make up the next group (group commit). A group's futures are resolved
once it is committed; if it cannot be, exactly its writes fail, its notes (requests nobody waits for) are kept and tried
again before the next group, and the connection is made anew, so that writing goes on once the disk has room again.

It goes on by itself where that may help. It is `broken`, until a restart, where the database refuses for good
(`swarm.store.databases.failures`), and where a note is lost: what was noted has happened, and nothing that came after
may be in the database without it. Then what is there is what a kill at that moment would have left.

Whether a commit arrived is never guessed: each group is numbered in the database with the changes themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import StoreRefused, StoreUnavailable
from swarm.store.databases import failures
from swarm.store.databases.database import cause, where
from swarm.store.databases.wal import AUTOMATIC, LogMover
from swarm.store.tables import garbage
from swarm.store.tables.records import Change, Closed, Consumed, InStep, Prepared, TasksListed
from swarm.store.tables.row_writer import ContradictoryChanges, RowWriter
from swarm.store.tables.schema import TRAININGS

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
        self._mover = LogMover(engine) if engine.dialect.name == "sqlite" else None
        with engine.connect() as connection:
            self._written = _written(connection, training)
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, item: WriteRequest) -> None:
        """Hand changes over, to be written after all that were before."""
        self._queue.put(item)

    def stop(self) -> None:
        """Write what is left, end the thread and close its connection. Blocks."""
        self._queue.put(None)
        self._thread.join()
        if self._mover is not None:
            self._mover.stop()
        self._disconnect()
        if self._notes:
            log.error("event=store_lost notes=%d reason=closed_while_unavailable", len(self._notes))

    def _run(self) -> None:
        while not self._stopping:
            group = self._next_group()
            if group or self._notes:
                self._write([*self._notes, *group])
            self._tidy()

    def _next_group(self) -> list[WriteRequest]:
        """Return all that was handed over; wait for something unless there is other work."""
        group: list[WriteRequest] = []
        with contextlib.suppress(queue.Empty):  # nothing more waits
            item = self._queue.get(timeout=self._patience())
            while item is not None:
                group.append(item)
                if len(group) == GROUP:
                    return group
                item = self._queue.get_nowait()
            self._stopping = True
        return group

    def _patience(self) -> float | None:
        if self._notes:
            return RETRY_S
        return 0.0 if self._garbage else None

    def _write(self, items: Sequence[WriteRequest]) -> Exception | None:
        """Write the items in one transaction; where that cannot ever succeed, each by itself.

        Returns an error that passes, for which nothing was written and the notes are kept.
        """
        self._notes.clear()
        try:
            self._transact(items)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one item must not end the writer
            if self.broken is not None:
                self._tell(items, self.broken)
            elif failures.of_database(error):
                self._break(f"it refuses for good: {cause(error)}", items)
            elif not failures.for_good(error):
                self._failed(items, error)
                return error
            elif len(items) == 1:
                self._refused(items[0], error)
            else:
                self._write_each(items)
        else:
            self._succeeded(items)
        return None

    def _write_each(self, items: Sequence[WriteRequest]) -> None:
        """Write each item by itself; what comes after a note that has to wait waits with it, or is told so."""
        for place, item in enumerate(items, 1):
            passing = self._write([item])
            if passing is not None and self._notes:
                self._failed(items[place:], passing)
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
            connection = self._ready(full=any(map(_survives_power, changes)))
            with connection.begin() as transaction:
                self._rows.write(connection, changes)
                connection.execute(_NUMBER, {"of": self._training, "written": self._written + 1})
                committing = True
                transaction.commit()
        except Exception:
            self._disconnect()
            if not committing or not self._arrived():
                self._rows.forget(changes)
                raise
        self._written += 1
        if self._mover is not None:
            self._mover.committed()
        self._closings += sum(isinstance(change, Closed) for change in changes)
        if self._closings >= CLOSINGS or any(isinstance(change, Consumed) for change in changes):
            self._garbage, self._closings = True, 0

    def _ready(self, *, full: bool) -> sa.Connection:
        """Return the writer's connection, in the wanted durability."""
        if self._connection is None:
            self._connection = self._engine.connect()
            self._synchronous = "NORMAL"
            if self._mover is not None:
                self._connection.exec_driver_sql(AUTOMATIC)
                self._connection.commit()
        level = "FULL" if full else "NORMAL"
        if level != self._synchronous and self._engine.dialect.name == "sqlite":
            self._connection.exec_driver_sql(f"PRAGMA synchronous={level}")
            self._connection.commit()
            self._synchronous = level
        return self._connection

    def _arrived(self) -> bool:
        """Return whether the group whose commit failed is in the database all the same."""
        until = time.monotonic() + DOUBT_S
        while True:
            try:
                with self._engine.connect() as connection:
                    return _written(connection, self._training) > self._written
            except SQLAlchemyError as error:
                if time.monotonic() > until:
                    self._break(f"it went away during a commit and did not come back: {cause(error)}", [])
                    return False
                time.sleep(RETRY_S)

    def _succeeded(self, items: Sequence[WriteRequest]) -> None:
        if self._failing:
            self._failing = False
            log.warning("event=store_available written=%d", len(items))
        _resolve([item.done for item in items if item.done is not None], None)

    def _failed(self, items: Sequence[WriteRequest], error: Exception) -> None:
        """Tell the writes, keep the notes."""
        said = cause(error)
        if not self._failing:
            self._failing = True
            log.error("event=store_unavailable reason=%r", said)
        self._notes.extend(item for item in items if item.done is None)
        if len(self._notes) > NOTES_KEPT:
            self._break(f"it took nothing for so long that notes were lost (more than {NOTES_KEPT}): {said}", items)
        else:
            self._tell(items, f"{said}; free space or mend the database; then it goes on by itself", passing=True)

    def _refused(self, item: WriteRequest, error: Exception) -> None:
        log.error("event=store_refused changes=%r error=%r", [type(c).__name__ for c in item.changes], error)
        said = str(error) if isinstance(error, ContradictoryChanges) else f"{type(error).__name__}: {error}"
        if item.done is None:
            self._break(f"a note was refused, and so is lost: {said}", [])
        self._tell([item], said)

    def _break(self, said: str, items: Sequence[WriteRequest]) -> None:
        """Write nothing any more, and tell the items' writes why."""
        self.broken = f"the store {where(self._engine)} writes nothing any more: {said}; mend it and restart the server"
        log.error("event=store_broken reason=%r", self.broken)
        self._notes.clear()
        self._tell(items, self.broken)

    def _tell(self, items: Sequence[WriteRequest], said: str, *, passing: bool = False) -> None:
        told = f"the store {where(self._engine)} could not write this down, so it does not count: {said}"
        if said is self.broken:
            told = said
        failure = StoreUnavailable(told, retry_after=1.0) if passing else StoreRefused(told)
        _resolve([item.done for item in items if item.done is not None], failure)

    def _tidy(self) -> None:
        """Collect some garbage; nothing depends on it, so a failure waits for the next checkpoint."""
        if not self._garbage or self._notes or self.broken:
            return
        try:
            connection = self._ready(full=False)
            with connection.begin():
                self._garbage = garbage.collect(connection, self._training, self._kept_checkpoints)
        except Exception as error:  # noqa: BLE001 - nothing that is wrong with old garbage must end the writer
            self._garbage = False
            self._disconnect()
            log.warning("event=store_garbage_left reason=%r", cause(error))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):  # it is being thrown away
                connection.invalidate()
                connection.close()


def _survives_power(change: Change) -> bool:
    """Return whether a change, and so all before it, must be on the disk itself before it counts."""
    return isinstance(change, InStep | Consumed | Prepared | TasksListed) or (
        isinstance(change, Closed) and change.team
    )


def _written(connection: sa.Connection, training: int) -> int:
    query = sa.select(TRAININGS.c.written).where(TRAININGS.c.id == training)
    return int(connection.execute(query).scalar_one())


def _resolve(waiting: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    """Resolve futures, each on the loop it belongs to."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in waiting:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, futures, error)
        except RuntimeError:
            log.warning("event=store_nobody_waits writes=%d reason=the_event_loop_is_closed", len(futures))


def _settle(futures: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if future.done():  # its caller was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
