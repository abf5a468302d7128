"""The memory of a study: an append-only, hash-chained log of events in one SQL table.

Promises. An appended event is on disk when `append` returns (SQLite: WAL with synchronous=FULL). `read`
returns what was appended, in order, or raises LogCorrupt naming the first event that is not: any change of a
field, any event removed before the last one and any two events swapped break the chain of hashes. An event is
written directly after the one it was composed after, or not at all (HeadMoved): (study, seq) is the primary key,
so of two processes that append at once one is told to look again. There is no update and no delete in this file.

Does not know. A chain alone cannot show that events are missing at its *end*, nor that the whole log was
written anew by someone with write access: for that the head hash must be kept elsewhere (reports print it).
What events mean is `studies.state`'s business, and `studies.study_log` writes only what has a meaning there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateTable

from studies.errors import HeadMoved, LogCorrupt, StoreError, UnknownStudy
from studies.records import canonical

GENESIS: Final = "0" * 64
"""`prev_hash` of a study's first event."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BUSY_MS: Final = 30_000

Clock = Callable[[], datetime]


class EventType(StrEnum):
    """What can happen in a study; `studies.state` says what may follow what."""

    STUDY_CREATED = "study.created"
    PLANNER_ACTED = "planner.acted"
    HYPOTHESIS_PROPOSED = "hypothesis.proposed"
    NOISE_PLANNED = "noise.planned"
    DESIGN_LOCKED = "design.locked"
    DESIGN_AMENDED = "design.amended"
    HYPOTHESIS_VETOED = "hypothesis.vetoed"
    CANDIDATE_ASKED = "candidate.asked"
    SCREEN_DECIDED = "screen.decided"
    MODEL_PREPARED = "model.prepared"
    RUN_PLANNED = "run.planned"
    ATTEMPT_LAUNCHED = "attempt.launched"
    ATTEMPT_ENDED = "attempt.ended"
    RUN_COLLECTED = "run.collected"
    MEASUREMENT_RECORDED = "measurement.recorded"
    RUN_INVALIDATED = "run.invalidated"
    VERDICT_COMPUTED = "verdict.computed"
    DECISION_TAKEN = "decision.taken"
    STUDY_WORKED = "study.worked"
    STUDY_PAUSED = "study.paused"
    STUDY_STOPPED = "study.stopped"
    STUDY_RESUMED = "study.resumed"
    STUDY_CONCLUDED = "study.concluded"
    REPORT_BUILT = "report.built"


_TYPES: Final = frozenset(kind.value for kind in EventType)


@dataclass(frozen=True, slots=True)
class Event:
    """One appended event. `ts` is ISO-8601 UTC with milliseconds; `hash` covers every other field."""

    study: str
    seq: int
    ts: str
    actor: str
    type: EventType
    payload: Mapping[str, Any]
    prev_hash: str
    hash: str


class _Base(DeclarativeBase):
    pass


class _Row(_Base):
    """The table. `payload` holds canonical JSON as text, so that the hash covers the very bytes stored."""

    __tablename__ = "events"

    study: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    seq: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    ts: Mapped[str] = mapped_column(sa.String(32), nullable=False)
    actor: Mapped[str] = mapped_column(sa.String(64), nullable=False)
    type: Mapped[str] = mapped_column(sa.String(64), nullable=False)
    payload: Mapped[str] = mapped_column(sa.Text, nullable=False)
    prev_hash: Mapped[str] = mapped_column(sa.String(64), nullable=False)
    hash: Mapped[str] = mapped_column(sa.String(64), nullable=False)


_TABLE: Final = _Base.metadata.tables[_Row.__tablename__]
FIELDS: Final = tuple(column.name for column in _TABLE.columns)
"""What is stored of an event, in the order in which its hash covers it."""
_OF_STUDY: Final = sa.select(_TABLE).where(_TABLE.c.study == sa.bindparam("name"))
_ALL: Final = _OF_STUDY.order_by(_TABLE.c.seq)
_FROM: Final = _ALL.where(_TABLE.c.seq >= sa.bindparam("first"))
_HEAD: Final = _OF_STUDY.order_by(_TABLE.c.seq.desc()).limit(1)
_INSERT: Final = sa.insert(_TABLE)
"""Made once: a study of a hundred events asks them hundreds of times."""


class EventLog:
    """An open event log; close it when done. Every failure of the database is raised as StoreError."""

    def __init__(self, url: str, *, clock: Clock = lambda: datetime.now(UTC)) -> None:
        """Open the log at an SQLAlchemy URL (`sqlite:///PATH`), and create its table if there is none.

        A file that cannot be written, or lies where nothing can, is opened to be read.
        """
        self._clock = clock
        self._engine = _engine(url)
        self._where = sa.make_url(url).render_as_string(hide_password=True)
        self._open()

    def compose(
        self, study: str, type: EventType, payload: Mapping[str, Any], *, after: Event | None, actor: str = "system"
    ) -> Event:
        """Return the event that may be appended after `after`, the study's last one; None for its first.

        Raise ValueError for names or a payload that cannot be stored.
        """
        _check_names(study, actor)
        row = {
            "study": study, "seq": 1 if after is None else after.seq + 1, "ts": _timestamp(self._clock()),
            "actor": actor, "type": EventType(type).value, "payload": _canonical_payload(payload, type),
            "prev_hash": GENESIS if after is None else after.hash,
        }  # fmt: skip
        return _event(row | {"hash": _hash(row)})

    def append(self, event: Event) -> None:
        """Write a composed event, durable; HeadMoved when the one that it follows is not the last, StoreError else."""
        row = {name: getattr(event, name) for name in FIELDS}
        row |= {"type": event.type.value, "payload": _canonical_payload(event.payload, event.type)}
        before = _FROM.where(_TABLE.c.seq < event.seq)
        try:
            with self._guarded("write"), self._engine.begin() as connection:
                connection.execute(_INSERT, row)
                found = connection.execute(before, {"name": event.study, "first": event.seq - 1}).mappings().first()
                if (GENESIS if found is None else found["hash"]) != event.prev_hash:
                    raise HeadMoved(event.study, event.seq)  # which takes the row back
        except _Raced as error:
            raise HeadMoved(event.study, event.seq) from error

    def last(self, study: str) -> Event | None:
        """Return a study's last event, None when there is none; LogCorrupt when it does not match its own hash."""
        heads = self._rows(_HEAD, name=study)
        for fault in (_row_fault(study, head) for head in heads):
            if fault is not None:
                raise fault
        return _event(heads[0]) if heads else None

    def read(self, study: str, after: Event | None = None) -> list[Event]:
        """Return all events of a study, oldest first, each verified; or those that follow `after`, which was read here.

        Raise UnknownStudy when there are none, LogCorrupt naming the first one that is not what was appended, also when
        `after` is not in the log any more as it was.
        """
        if after is not None:
            return self._verified_after(after, self._rows(_FROM, name=study, first=after.seq))
        return _verified(study, self.stored(study))

    def stored(self, study: str) -> list[dict[str, Any]]:
        """Return a study's events as they are stored, oldest first and unverified: what `examine` looks at.

        Raise UnknownStudy when there are none.
        """
        rows = self._rows(_ALL, name=study)
        if not rows:
            raise UnknownStudy(
                f"no study {study!r} in {self._where}; it holds {', '.join(self.studies()[:8]) or 'none yet'}"
            )
        return rows

    def _verified_after(self, known: Event, rows: list[dict[str, Any]]) -> list[Event]:
        if not rows or rows[0]["seq"] != known.seq:
            raise LogCorrupt(known.study, known.seq, known.type.value, "it was read before and is not there any more")
        if rows[0]["hash"] != known.hash:
            raise LogCorrupt(known.study, known.seq, known.type.value, "it held something else when it was read before")
        return _verified(known.study, rows[1:], known.seq, known.hash)

    def studies(self) -> list[str]:
        """Return the names of all studies, newest first."""
        started = sa.func.min(_TABLE.c.ts)
        query = sa.select(_TABLE.c.study).group_by(_TABLE.c.study).order_by(started.desc(), _TABLE.c.study.desc())
        return [str(row["study"]) for row in self._rows(query)]

    @contextmanager
    def transaction(self, action: str) -> Iterator[sa.Connection]:
        """Yield a connection to the log's database for one transaction on another table; errors are StoreErrors."""
        with self._guarded(action), self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Let go of the database; closing twice is fine."""
        self._engine.dispose()

    def _open(self) -> None:
        """Create the table; try again while another process is creating the same database."""
        deadline = time.monotonic() + _BUSY_MS / 1000
        while True:
            try:
                self._create()
                return
            except (_Raced, StoreError) as error:
                if time.monotonic() > deadline or not _is_locked(error):
                    self.close()
                    raise
            time.sleep(0.05)

    def _create(self) -> None:
        with self._guarded("open"):
            if not _is_read_only(self._engine.url):
                with self._engine.begin() as connection:
                    connection.execute(CreateTable(_TABLE, if_not_exists=True))
            found = {column["name"] for column in sa.inspect(self._engine).get_columns(_TABLE.name)}
        if found != set(FIELDS):
            raise StoreError(
                f"{self._where} holds a table `events` of another shape: expected the columns "
                f"{', '.join(FIELDS)}; found {', '.join(sorted(found))}. Use another file for the event log"
            )

    def _rows(self, query: sa.Select[Any], **values: str | int) -> list[dict[str, Any]]:
        with self._guarded("read"), self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query, values).mappings()]

    @contextmanager
    def _guarded(self, action: str) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise _Raced(f"another process was faster in {self._where}. Try again") from error
        except SQLAlchemyError as error:
            _raise_store_error(action, self._where, error)


class _Raced(StoreError):
    """Another writer took the place this one wanted."""


def event_hash(event: Event) -> str:
    """Return what `event.hash` must be: sha256 of canonical([study, seq, ts, actor, type, payload, prev_hash])."""
    values = [event.study, event.seq, event.ts, event.actor, event.type.value, event.payload, event.prev_hash]
    return hashlib.sha256(canonical(values).encode()).hexdigest()


def _hash(row: Mapping[str, Any]) -> str:
    """Hash a row over the payload's stored text, which is the canonical JSON of the payload."""
    parts = [row["payload"] if name == "payload" else canonical(row[name]) for name in FIELDS if name != "hash"]
    return hashlib.sha256(f"[{','.join(parts)}]".encode()).hexdigest()


def _event(row: Mapping[str, Any]) -> Event:
    return Event(**{**row, "type": EventType(row["type"]), "payload": json.loads(row["payload"])})


def examine(study: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Event], list[LogCorrupt]]:
    """Return the events of stored rows, and every fault of their chain; one that is no event at all is left out."""
    faults = list(_faults(study, rows, 0, GENESIS))
    return [_event(row) for row in rows if _is_event(row)], faults


def _verified(study: str, rows: Sequence[Mapping[str, Any]], seq: int = 0, previous: str = GENESIS) -> list[Event]:
    for fault in _faults(study, rows, seq, previous):
        raise fault
    return [_event(row) for row in rows]


def _faults(study: str, rows: Sequence[Mapping[str, Any]], seq: int, previous: str) -> Iterator[LogCorrupt]:
    """Yield what is wrong with rows that are to follow the event `seq` of hash `previous`, the first fault first."""
    for row in rows:
        seq += 1
        if row["seq"] != seq:
            yield LogCorrupt(study, seq, "missing", f"expected event {seq} here, found {row['seq']!r}")
            seq = row["seq"] if isinstance(row["seq"], int) else seq
        if (fault := _row_fault(study, row)) is not None:
            yield fault
        if row["prev_hash"] != previous:
            said = f"expected it to follow the event with hash {previous[:12]}, found {str(row['prev_hash'])[:12]}"
            yield LogCorrupt(study, seq, str(row["type"]), said)
        previous = str(row["hash"])


def _row_fault(study: str, row: Mapping[str, Any]) -> LogCorrupt | None:
    """Return what keeps a row from being whole by itself: types, payload, hash, a known type."""
    kind, seq = str(row["type"]), row["seq"]
    for name in FIELDS:
        if not isinstance(row[name], int if name == "seq" else str):
            return LogCorrupt(study, seq, kind, f"its {name} is no {'number' if name == 'seq' else 'text'}")
    if not _is_object(row["payload"]):
        return LogCorrupt(study, seq, kind, "its payload is not a JSON object")
    found = _hash(row)
    if found != row["hash"]:
        return LogCorrupt(study, seq, kind, f"expected the hash {row['hash'][:12]}, its fields give {found[:12]}")
    if kind not in _TYPES:
        return LogCorrupt(study, seq, kind, "its type is unknown here; a newer ajet may have written it")
    return None


def _is_event(row: Mapping[str, Any]) -> bool:
    """Whether a row can be read as an event, be its hash what it may."""
    typed = all(isinstance(row[name], int if name == "seq" else str) for name in FIELDS)
    return typed and row["type"] in _TYPES and _is_object(row["payload"])


def _is_object(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _check_names(study: str, actor: str) -> None:
    for what, name in (("study", study), ("actor", actor)):
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"a {what}'s name must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or "
                f"digit; found {name[:80]!r}"
            )


def _canonical_payload(payload: Mapping[str, Any], type: EventType) -> str:
    try:
        text = canonical(dict(payload))
        text.encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the payload of {type} must be JSON with finite numbers and valid text: {error}") from error
    return text


def _timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _engine(url: str) -> sa.Engine:
    try:
        engine = sa.create_engine(_openable(sa.make_url(url)))
    except ImportError as error:
        raise StoreError(f"the event log's URL needs a database driver that is not installed: {error}") from error
    except (SQLAlchemyError, ValueError) as error:
        raise StoreError(
            f"the event log's URL must be one SQLAlchemy reads, such as sqlite:///PATH; {_cause(error)}"
        ) from error
    if engine.dialect.name == "sqlite":
        sa_event.listen(engine, "connect", _patient if _is_read_only(engine.url) else _durable)
    return engine


def _openable(url: sa.URL) -> sa.URL:
    """Return the URL itself, or the one that reads an SQLite file which cannot be written.

    Such a file is taken as it is, unless a log of its own beside it holds events that are not in it yet.
    """
    path = Path(url.database or "")
    if url.get_backend_name() != "sqlite" or not path.is_file():
        return url
    if all(os.access(place, os.W_OK) for place in (path, path.parent)):
        return url
    pending = Path(f"{path}-wal")
    whole = {} if pending.exists() and pending.stat().st_size else {"immutable": "1"}
    return url.set(database=f"file:{quote(str(path.absolute()))}", query={"uri": "true", "mode": "ro", **whole})


def _is_read_only(url: sa.URL) -> bool:
    return url.query.get("mode") == "ro"


def _patient(connection: Any, _record: object) -> None:
    connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")


def _durable(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={_BUSY_MS}", "journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _raise_store_error(action: str, where: str, error: SQLAlchemyError) -> NoReturn:
    cause = _cause(error)
    raise StoreError(f"could not {action} the event log at {where}: {cause}. {_advice(cause.lower())}") from error


def _cause(error: Exception) -> str:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(origin).split()).rstrip(".") or type(origin).__name__


def _advice(cause: str) -> str:
    """Return what to do about a database's complaint, by the words SQLite and its peers use."""
    advices = {
        "not a database": "The file is something else or is damaged: name another file, or restore it from a backup",
        "malformed": "The file is damaged: restore it from a backup",
        "readonly": "Make the file and its folder writable",
        "read-only": "Make the file and its folder writable",
        "unable to open": "Check that its folder exists and may be written",
        "full": "Free some disk space, then resume the study",
        "disk i/o": "Check the disk (full, removed, failing?), then resume the study",
        "locked": "Another process holds the database: wait for it, or end it",
    }
    return next((text for word, text in advices.items() if word in cause), "Check the database, then try again")


def _is_locked(error: StoreError) -> bool:
    return isinstance(error, _Raced) or "locked" in str(error)
