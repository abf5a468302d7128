"""The log of a study: an append-only, hash-chained SQL table; and the lock as a file.

An appended event is on disk when `append` returns (SQLite: WAL with synchronous=FULL). `read` returns what was
appended, in order, or raises LogCorrupt naming the first event that is not (`studies.log.event`). An event is written
directly after the one it was composed after, or not at all (HeadMoved). A chain cannot show events missing at its
*end*, nor a log rewritten whole: for that reports print the head hash. `design.lock` (`design-2.lock`, ..., each naming
the hash before) is the canonical JSON of the locked design; `sha256sum` of it is the hash in log, runs and report.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, overload
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from studies.errors import HeadMoved, LogCorrupt, StoreError, StudiesError
from studies.log import event as chain
from studies.log.event import Event, EventType
from studies.log.fold import WORKED, fold
from studies.log.study import StudyState
from studies.records.base import canonical
from studies.records.design import Design

_BUSY_MS: Final = 30_000
ANSWER_S = 30.0
"""Seconds without a byte after which a PostgreSQL is taken for gone, half of what a lease lasts (`studies.log.locks`).

Its machine goes on acknowledging for a process that stands still, so that only this side can tell."""
_BOUNDED: Final[Mapping[str, str | int]] = {
    "connect_timeout": 10, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000, "options": "-c statement_timeout=25s",
}  # fmt: skip
"""Connections to PostgreSQL that notice other ways to hang; what the log's URL says itself stands."""

_ADVICE: Final = {
    "not a database": "The file is something else or is damaged: name another file, or restore it from a backup",
    "malformed": "The file is damaged: restore it from a backup",
    "readonly": "Make the file and its folder writable",
    "read-only": "Make the file and its folder writable",
    "unable to open": "Check that its folder exists and may be written",
    "full": "Free some disk space, then resume the study",
    "disk i/o": "Check the disk (full, removed, failing?), then resume the study",
    "locked": "Another process holds the database: wait for it, or end it",
}
"""What to do, by a word of what a database says."""

Clock = Callable[[], datetime]


def chain_table(name: str) -> sa.Table:
    """Return a table of hash-chained rows. `payload` holds canonical JSON as text: the hash covers the very bytes."""
    return sa.Table(
        name, sa.MetaData(), sa.Column("study", sa.String(64), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ts", sa.String(32), nullable=False), sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("type", sa.String(64), nullable=False), sa.Column("payload", sa.Text, nullable=False),
        sa.Column("prev_hash", sa.String(64), nullable=False), sa.Column("hash", sa.String(64), nullable=False),
    )  # fmt: skip


_TABLE: Final = chain_table("events")
_OF_STUDY: Final = sa.select(_TABLE).where(_TABLE.c.study == sa.bindparam("name"))
_ALL: Final = _OF_STUDY.order_by(_TABLE.c.seq)
_FROM: Final = _ALL.where(_TABLE.c.seq >= sa.bindparam("first"))
_HEAD: Final = _OF_STUDY.order_by(_TABLE.c.seq.desc()).limit(1)
_INSERT: Final = sa.insert(_TABLE)  # all made once: a study of a hundred events asks them hundreds of times
LOCK_FILE: Final = "design.lock"
Change = tuple[EventType, Mapping[str, Any]]
Stored = Callable[[Event], AbstractContextManager[Any]]
_TRIES: Final = 200


def _every_head() -> sa.Select[Any]:
    """Query each study's name and head, newest first, by two rows of each: a table of many studies has millions."""
    first = sa.select(sa.func.min(_TABLE.c.study).label("study")).cte("names", recursive=True)
    after = sa.select(sa.func.min(_TABLE.c.study)).where(_TABLE.c.study > first.c.study).correlate(first)
    names = first.union_all(sa.select(after.scalar_subquery()).where(first.c.study.is_not(None)))
    of_study = sa.select(_TABLE.c.ts).where(_TABLE.c.study == names.c.study).correlate(names)
    began = of_study.order_by(_TABLE.c.seq).limit(1).scalar_subquery()
    head = of_study.with_only_columns(_TABLE.c.hash).order_by(_TABLE.c.seq.desc()).limit(1).scalar_subquery()
    found = sa.select(names.c.study, head.label("head"), began.label("began")).where(names.c.study.is_not(None))
    return found.order_by(sa.desc("began"), names.c.study.desc())


_HEADS: Final = _every_head()


class EventLog:
    """An open event log; close it when done. Every failure of the database is raised as StoreError."""

    def __init__(self, url: str, *, clock: Clock = lambda: datetime.now(UTC)) -> None:
        """Open the log at an SQLAlchemy URL (`sqlite:///PATH`), or create it; what cannot be written, to read."""
        self.clock = clock
        self._engine = _engine(url)
        self._where = sa.make_url(url).render_as_string(hide_password=True)
        self._open()

    def compose(
        self, study: str, type: EventType, payload: Mapping[str, Any], *, after: Event | None, actor: str = "system"
    ) -> Event:
        return chain.compose_event(study, type, payload, after=after, actor=actor, at=self.clock())

    def append(self, event: Event) -> None:
        """Write a composed event, durable; HeadMoved when the one that it follows is not the last, StoreError else."""
        before = _FROM.where(_TABLE.c.seq < event.seq)
        with self._translate_errors("write"), self._engine.begin() as connection:
            try:
                connection.execute(_INSERT, chain.row_of(event))
            except IntegrityError as error:
                raise HeadMoved(event.study, event.seq) from error
            last = connection.execute(before, {"name": event.study, "first": event.seq - 1}).mappings().first()
            if (chain.GENESIS if last is None else last["hash"]) != event.prev_hash:
                raise HeadMoved(event.study, event.seq)  # which takes the row back

    def last(self, study: str) -> Event | None:
        """Return a study's last event, None when there is none; LogCorrupt when it does not match its own hash."""
        head = next(iter(self._rows(_HEAD, name=study)), None)
        if head is not None and (fault := chain.row_fault(study, head)) is not None:
            raise fault
        return None if head is None else chain.event_of(head)

    def read(self, study: str, after: Event | None = None) -> list[Event]:
        """Return all events of a study, verified, or those after `after`; StudiesError for none, else LogCorrupt."""
        if after is None:
            return chain.verify_events(study, self.read_unverified(study))
        rows = self._rows(_FROM, name=study, first=after.seq)
        if not rows or rows[0]["seq"] != after.seq:
            raise LogCorrupt(study, after.seq, after.type.value, "it was read before and is not there any more")
        if rows[0]["hash"] != after.hash:
            raise LogCorrupt(study, after.seq, after.type.value, "it held something else when it was read before")
        return chain.verify_events(study, rows[1:], after.seq, after.hash)

    def read_unverified(self, study: str) -> list[dict[str, Any]]:
        """Return a study's events as they are stored, oldest first, unverified; StudiesError when there are none."""
        rows = self._rows(_ALL, name=study)
        if not rows:
            raise StudiesError(
                f"no study {study!r} in {self._where}; it holds {', '.join(self.studies()[:8]) or 'none yet'}"
            )
        return rows

    def studies(self) -> list[str]:
        return list(self.heads())

    def heads(self) -> dict[str, str]:
        """Return the hash of each study's last event as it is stored, unverified, by the study's name, newest first."""
        return {str(row["study"]): str(row["head"]) for row in self._rows(_HEADS)}

    def naming(self, studies: Collection[str]) -> list[str]:
        """Return which others name one of these studies in an event: they follow it, or use what it measured."""
        named = sa.or_(*(_TABLE.c.payload.contains(study) for study in studies))
        return sorted({row["study"] for row in self._rows(sa.select(_TABLE.c.study).where(named))} - {*studies})

    def remove(self, study: str) -> None:
        """Delete all rows of a study for good, those of `studies.log.reviews` and `studies.log.locks` too."""
        with self.transaction("write") as connection:
            connection.execute(sa.delete(_TABLE).where(_TABLE.c.study == study))
            for name in {"reviews", "slots", "leases"} & {*sa.inspect(connection).get_table_names()}:
                connection.execute(sa.delete(sa.table(name)).where(sa.column("study") == study))

    @contextmanager
    def transaction(self, action: str) -> Iterator[sa.Connection]:
        """Yield a connection to the log's database for one transaction on another table; errors are StoreErrors."""
        with self._translate_errors(action), self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _open(self) -> None:
        deadline = time.monotonic() + _BUSY_MS / 1000
        while True:
            try:
                with self._translate_errors("open"):
                    if self._engine.url.query.get("mode") != "ro":
                        with self._engine.begin() as connection:
                            connection.execute(CreateTable(_TABLE, if_not_exists=True))
                    found = {column["name"] for column in sa.inspect(self._engine).get_columns(_TABLE.name)}
                break
            except StoreError as error:
                # PostgreSQL tells a table that another process makes at once as a duplicate key, type or table.
                busy = isinstance(error.__cause__, IntegrityError) or re.search("locked|already exists", str(error))
                if time.monotonic() > deadline or not busy:
                    self.close()
                    raise
            time.sleep(0.05)
        if found != set(chain.FIELDS):
            self.close()
            raise StoreError(
                f"{self._where} holds a table `events` of another shape: expected the columns "
                f"{', '.join(chain.FIELDS)}; found {', '.join(sorted(found))}. Use another file for the event log"
            )

    def _rows(self, query: sa.Select[Any], **values: str | int) -> list[dict[str, Any]]:
        with self._translate_errors("read"), self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query, values).mappings()]

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise StoreError(f"another process was faster in {self._where}. Try again") from error
        except SQLAlchemyError as error:
            cause, usual = _cause(error), "Check the database, then try again"
            advice = next((advice for word, advice in _ADVICE.items() if word in cause.lower()), usual)
            raise StoreError(f"could not {action} the event log at {self._where}: {cause}. {advice}") from error


def _engine(url: str) -> sa.Engine:
    try:
        engine = sa.create_engine(_resolve_url(sa.make_url(url)))
    except ImportError as error:
        raise StoreError(f"the event log's URL needs a database driver that is not installed: {error}") from error
    except (SQLAlchemyError, ValueError) as error:
        raise StoreError(
            f"the event log's URL must be one SQLAlchemy reads, such as sqlite:///PATH; {_cause(error)}"
        ) from error
    if engine.dialect.name == "sqlite":
        writing = () if engine.url.query.get("mode") == "ro" else ("journal_mode=WAL", "synchronous=FULL")

        def configure(connection: Any, _record: object) -> None:
            for pragma in (f"busy_timeout={_BUSY_MS}", *writing):
                connection.execute(f"PRAGMA {pragma}")

        sa_event.listen(engine, "connect", configure)
    if engine.dialect.driver == "psycopg":
        sa_event.listen(engine, "do_connect", _connect_with_timeout)
    return engine


def _connect_with_timeout(_dialect: object, _record: object, arguments: Any, fields: dict[str, Any]) -> Any:
    import psycopg

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 1.0, *more: Any, **named: Any) -> Any:
            return super().wait(_wait_for_answer(gen, self), interval, *more, **named)

    return Bounded.connect(*arguments, **{**_BOUNDED, **fields})


def _wait_for_answer(gen: Generator[Any, Any, Any], connection: Any) -> Generator[Any, Any, Any]:
    """Go on as psycopg waits for an answer; raise OperationalError, with the connection closed, after long silence."""
    import psycopg

    until, ready = time.monotonic() + ANSWER_S, None
    while True:
        try:
            ready = yield gen.send(ready)
        except StopIteration as done:
            return done.value
        if ready:
            until = time.monotonic() + ANSWER_S
        elif time.monotonic() > until:
            connection.close()
            raise psycopg.OperationalError(f"it did not answer for {ANSWER_S:g} s")


def _resolve_url(url: sa.URL) -> sa.URL:
    """Return the URL, or one that reads an SQLite file which cannot be written, with what its `-wal` holds."""
    path = Path(url.database or "")
    if url.get_backend_name() != "sqlite" or not path.is_file():
        return url
    if all(os.access(place, os.W_OK) for place in (path, path.parent)):
        return url
    pending = Path(f"{path}-wal")
    whole = {} if pending.exists() and pending.stat().st_size else {"immutable": "1"}
    return url.set(database=f"file:{quote(str(path.absolute()))}", query={"uri": "true", "mode": "ro", **whole})


def _cause(error: Exception) -> str:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(origin).split()).rstrip(".") or type(origin).__name__


def lock_name(round: int, repair: int = 0) -> str:
    """Return the file of a round's lock, or of its `repair`th lock with code repaired."""
    again = f"-repair-{repair}" if repair else ""
    return f"design{again}.lock" if round == 1 else f"design-{round}{again}.lock"


def write_lock(folder: Path, design: Design, name: str = LOCK_FILE) -> str:
    """Write the lock into a study's folder, durably and whole or not at all; return its sha256. Raise OSError."""
    data = canonical(design.model_dump(mode="json")).encode()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / name)
    return hashlib.sha256(data).hexdigest()


def lock_error(state: StudyState, folder: Path) -> str | None:
    """Return what is wrong with the lock's file, in a sentence; None if nothing is, or before the lock."""
    if state.lock_file is None or state.design_hash is None:
        return None
    name, expected = state.lock_file, state.design_hash
    try:
        sha256 = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    except OSError as error:
        return f"the lock {name} cannot be read ({error.strerror}): the design may have been changed after it"
    changed = f"the lock {name} was changed: expected the sha256 {expected[:12]} of the log, found {sha256[:12]}"
    return None if sha256 == expected else changed


class BudgetClock:
    """The seconds that a controller has worked and not yet charged; `seconds` stands still while the machine sleeps."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._since = seconds()

    def pending_seconds(self) -> float:
        return max(0.0, self._seconds() - self._since)

    def charge(self, seconds: float) -> None:
        self._since += seconds

    def skip(self) -> None:
        self._since = self._seconds()


class StudyLog:
    """Reads and writes one study of a log. A controller passes its `work`, which each event charges to the budget;
    who writes files that events name passes the `store` of them, within which the event is appended."""

    def __init__(self, log: EventLog, study: str, work: BudgetClock | None = None, store: Stored = nullcontext) -> None:
        self.study: Final = study
        self._store = store
        self._log = log
        self._work = work
        self._last: Event | None = None
        self._state: StudyState | None = None
        self._sent: tuple[str, float] | None = None
        """Hash and seconds of an event whose write failed midway: it may be in the log all the same."""

    def state(self) -> StudyState:
        """Return the state as of the log's last event; after another error than StoreError it is read anew."""
        try:
            events = self._log.read(self.study, self._last)
            state = fold(events, self._state) if events or self._state is None else self._state
        except LogCorrupt:
            self._last = self._state = None
            raise
        if self._work is not None:  # what new events have charged already, and the rest before a resumption
            if self._sent is not None and any(event.hash == self._sent[0] for event in events):
                self._work.charge(self._sent[1])
                self._sent = None
            resumed = any(event.type is EventType.STUDY_RESUMED for event in events)
            if resumed and self._state is not None and self._state.at_rest:
                self._work.skip()
        self._last = events[-1] if events else self._last
        self._state = state
        return state

    def active_seconds(self) -> float:
        worked = 0.0 if self._state is None else self._state.worked_s
        return worked + (0.0 if self._work is None else self._work.pending_seconds())

    def append(self, type: EventType, payload: Mapping[str, Any], *, actor: str = "system") -> Event:
        """Write one event after the last one read, durably; HeadMoved where it is not the last. Nothing is written
        then."""
        worked = None if self._work is None else round(self._work.pending_seconds(), 3)
        charged = payload if worked is None else {**payload, WORKED: worked}
        event = self._log.compose(self.study, type, charged, after=self._last, actor=actor)
        try:
            state = fold([event], self._state)
        except LogCorrupt as error:
            raise StudiesError(
                f"{error.type} cannot follow what happened in study {self.study}: {error.difference}. Nothing was "
                f"written; look at the study with: ajet study show {self.study}"
            ) from error
        with self._store(event):
            self._sent = (event.hash, worked or 0.0)
            self._log.append(event)
        self._sent = None
        if self._work is not None and worked is not None:
            self._work.charge(worked)
        self._last, self._state = event, state
        return event

    @overload
    def change(self, decide: Callable[[StudyState], Change], *, actor: str = "system") -> Event: ...
    @overload
    def change(self, decide: Callable[[StudyState], Change | None], *, actor: str = "system") -> Event | None: ...
    def change(self, decide: Callable[[StudyState], Change | None], *, actor: str = "system") -> Event | None:
        """Append what `decide` returns for the newest state, asking again while others write; None appends nothing."""
        for _ in range(_TRIES):
            if (change := decide(self.state())) is None:
                return None
            try:
                return self.append(*change, actor=actor)
            except HeadMoved as error:
                moved = error
        raise moved
