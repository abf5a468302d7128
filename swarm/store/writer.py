"""The SQL store: one training, written by one thread with group commit, read by others.

Requests that arrive while a group is written make up the next group. Futures are resolved once their group is
committed; if that fails, its writes fail, its notes (requests nobody waits for) are kept and tried again, and the
connection is made anew. Groups are numbered in the database together with their changes, so whether a commit arrived is
never guessed. The writer is `broken`, until a restart, where the database refuses for good or a note is lost: nothing
later may be stored without it. `open_store` migrates, finds or begins the training and fences what was open.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.errors import StoreRefused, StoreUnavailable
from swarm.job import Job
from swarm.store import database, reading, retention
from swarm.store.changes import Change, CheckpointSaved, EpisodeClosed, RowWriter, must_survive_power_loss
from swarm.store.database import error_message, open_database, opening, redacted_url
from swarm.store.tables import EPISODES, TRAININGS

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

RESTARTED = "server_restarted"
"""Why episodes that were open at a restart are fenced."""
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class WriteRequest:
    """Changes that are written together or not at all; `done` is resolved on its own loop."""

    changes: tuple[Change, ...]
    done: asyncio.Future[None] | None = None


class Store(reading.EpisodeReader):
    """One training's durable record, written by a thread of its own from construction to `close`. The methods that are
    public belong to one event loop."""

    def __init__(self, engine: sa.Engine, training: int, rows: RowWriter, checkpoints_kept: int) -> None:
        self.broken: str | None = None
        """Why nothing can be written any more before a restart. What was written until then is whole, as after a kill:
        notes were lost, but nothing that came after them is there."""
        self._closed = False
        self._engine = engine
        self._training = training
        self._rows = rows
        self._kept_checkpoints = checkpoints_kept
        self._queue: queue.SimpleQueue[list[WriteRequest] | None] = queue.SimpleQueue()
        self._outbox: list[WriteRequest] = []
        self._notes: deque[WriteRequest] = deque()
        self._connection: sa.Connection | None = None
        self._synchronous = "NORMAL"
        self._garbage = True  # what a restart left
        self._closings = 0  # since it last looked for garbage
        self._failing = False
        self._stopping = False
        with engine.connect() as connection:
            self._written = _read_written(connection, training)
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, *changes: Change) -> None:
        """Write changes, after all that came before; return when they are durable. Raises StoreUnavailable if they
        could not be written, StoreRefused if they never can be: then none of them was, and the caller must not
        acknowledge what they stand for."""
        if self._closed:
            raise StoreUnavailable("the store is closed: the engine was stopped", retry_after=1.0)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._submit(WriteRequest(changes, done))
        await done

    def note(self, *changes: Change) -> None:
        """Write changes in order without waiting; they are durable before any later `write` returns."""
        if not self._closed:
            self._submit(WriteRequest(changes))

    async def close(self) -> None:
        """Write what is left and let go of the database; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._send()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._engine.dispose()
        if self._notes:
            log.error("event=store_lost notes=%d reason=closed_while_unavailable", len(self._notes))

    def _submit(self, request: WriteRequest) -> None:
        """Give the writer all requests of one turn of the event loop together: each time it is woken costs a switch."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send)
        self._outbox.append(request)

    def _send(self) -> None:
        self._queue.put(self._outbox)
        self._outbox = []

    async def _read(self, query: Callable[[sa.Connection, int], T]) -> T:
        def read() -> T:
            with self._engine.connect() as connection:
                return query(connection, self._training)

        try:
            return await asyncio.to_thread(read)
        except SQLAlchemyError as error:
            raise StoreUnavailable(
                f"the store {redacted_url(self._engine)} cannot be read: {error_message(error)}", retry_after=1.0
            ) from error

    def _run(self) -> None:
        while not self._stopping:
            group: list[WriteRequest] = []
            timeout = RETRY_S if self._notes else 0.0 if self._garbage else None
            with contextlib.suppress(queue.Empty):  # nothing more waits
                while (items := self._queue.get(timeout=timeout)) is not None:
                    group += items
                    if len(group) >= GROUP:
                        break
                    timeout = 0.0
                self._stopping = items is None
            if group or self._notes:
                self._write_group([*self._notes, *group])
            self._collect_garbage()
        self._disconnect()

    def _write_group(self, items: Sequence[WriteRequest]) -> Exception | None:
        """Write the items in one transaction; where that cannot ever succeed, each by itself. Returns an error that
        passes, for which nothing was written and the notes are kept."""
        self._notes.clear()
        try:
            self._transact(items)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one item must not end the writer
            if self.broken is not None:
                _resolve_futures(items, StoreRefused(self.broken))
            elif database.is_database_failure(error):
                self._break(f"it refuses for good: {error_message(error)}", items)
            elif not database.is_permanent(error):
                self._wait_for_room(items, error)
                return error
            elif len(items) == 1:
                item = items[0]
                log.error("event=store_refused changes=%r error=%r", [type(c).__name__ for c in item.changes], error)
                reason = error.message if isinstance(error, StoreRefused) else f"{type(error).__name__}: {error}"
                if item.done is None:
                    self._break(f"a note was refused, and so is lost: {reason}", [])
                _resolve_futures([item], StoreRefused(self._describe_failure(reason)))
            else:
                for place, item in enumerate(items, 1):  # what comes after a note that has to wait waits with it
                    passing = self._write_group([item])
                    if passing is not None and self._notes:
                        self._wait_for_room(items[place:], passing)
                        break
            return None
        if self._failing:
            self._failing = False
            log.warning("event=store_available written=%d", len(items))
        _resolve_futures(items, None)
        return None

    def _transact(self, items: Sequence[WriteRequest]) -> None:
        if self.broken is not None:
            raise StoreRefused(self.broken)
        changes = [change for item in items for change in item.changes]
        if not changes:
            return
        committing = False
        try:
            connection = self._connect(full=any(map(must_survive_power_loss, changes)))
            with connection.begin() as transaction:
                self._rows.write(connection, changes)
                mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
                number = f"UPDATE {TRAININGS.name} SET written = {mark} WHERE id = {mark}"
                connection.exec_driver_sql(number, (self._written + 1, self._training))
                committing = True
                transaction.commit()
        except Exception:
            self._disconnect()
            if not committing or not self._is_committed():
                self._rows.forget(changes)
                raise
        self._written += 1
        self._closings += sum(isinstance(change, EpisodeClosed) for change in changes)
        if self._closings >= CLOSINGS or any(isinstance(change, CheckpointSaved) for change in changes):
            self._garbage, self._closings = True, 0

    def _connect(self, *, full: bool) -> sa.Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            self._synchronous = "NORMAL"
        level = "FULL" if full else "NORMAL"
        if level != self._synchronous and self._engine.dialect.name == "sqlite":
            self._connection.exec_driver_sql(f"PRAGMA synchronous={level}")
            self._connection.commit()
            self._synchronous = level
        return self._connection

    def _is_committed(self) -> bool:
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

    def _wait_for_room(self, items: Sequence[WriteRequest], error: Exception) -> None:
        said = error_message(error)
        if not self._failing:
            self._failing = True
            log.error("event=store_unavailable reason=%r", said)
        self._notes.extend(item for item in items if item.done is None)
        if len(self._notes) > NOTES_KEPT:
            self._break(f"it took nothing for so long that notes were lost (more than {NOTES_KEPT}): {said}", items)
        else:
            mended = f"{said}; free space or mend the database; then it goes on by itself"
            _resolve_futures(items, StoreUnavailable(self._describe_failure(mended), retry_after=1.0))

    def _describe_failure(self, said: str) -> str:
        return f"the store {redacted_url(self._engine)} could not write this down, so it does not count: {said}"

    def _break(self, said: str, items: Sequence[WriteRequest]) -> None:
        self.broken = (
            f"the store {redacted_url(self._engine)} writes nothing any more: {said}; mend it and restart the server"
        )
        log.error("event=store_broken reason=%r", self.broken)
        self._notes.clear()
        _resolve_futures(items, StoreRefused(self.broken))

    def _collect_garbage(self) -> None:
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


def _read_written(connection: sa.Connection, training: int) -> int:
    query = sa.select(TRAININGS.c.written).where(TRAININGS.c.id == training)
    return int(connection.execute(query).scalar_one())


def _resolve_futures(items: Sequence[WriteRequest], error: Exception | None) -> None:
    def resolve(futures: Sequence[asyncio.Future[None]]) -> None:
        for future in futures:
            if future.done():  # its caller was cancelled
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for item in items:
        if item.done is not None:
            by_loop.setdefault(item.done.get_loop(), []).append(item.done)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(resolve, futures)
        except RuntimeError:
            log.warning("event=store_nobody_waits writes=%d reason=the_event_loop_is_closed", len(futures))


def open_store(url: str, job: Job, installation: str) -> tuple[Store, reading.RecoveredState]:
    """Open the job's training in the database at `url`, for the server directory with that id. Blocks. Raises
    ServerFailed, in one line, if the database cannot be opened, is not this server's, or has trained the job further
    than it asks for."""
    engine, kept = open_database(url, installation), job.checkpoints_kept
    with opening(engine, "cannot be read"):
        with engine.begin() as connection:
            training, fresh_start = retention.find_or_begin(connection, job)
            fence_open_episodes(connection, training.number)
            marks = reading.read_high_water_marks(connection, training.number)
        recovered = reading.recover_state(engine, training, kept, fresh_start)
        store = Store(engine, training.number, RowWriter(training.number, kept, marks), kept)
    return store, recovered


def fence_open_episodes(connection: sa.Connection, training: int) -> None:
    """Close what was open, in the order of its beginning: nobody's lease outlives the server."""
    episodes = EPISODES.c
    marks = reading.read_high_water_marks(connection, training)
    query = sa.select(episodes.serial).where(episodes.training == training, episodes.state == "open")
    serials = connection.execute(query.order_by(episodes.serial)).scalars()
    rows = [{"this": serial, "closed": marks.closed + place} for place, serial in enumerate(serials, start=1)]
    fenced = {"state": "fenced", "fencing_token": episodes.fencing_token + 1, "reason": RESTARTED}
    if rows:
        update = sa.update(EPISODES).where(episodes.serial == sa.bindparam("this"))
        connection.execute(update.values(**fenced, closed=sa.bindparam("closed"), closed_after=marks.step), rows)
