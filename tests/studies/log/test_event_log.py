from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from studies import Event, EventLog, EventType, LogCorrupt, StoreError, UnknownStudy
from studies.log.event import GENESIS
from tests.studies.raw import append, event_hash
from tests.studies.synthetic import Ticking

STUDY = "s-1"
WRITER = (sys.executable, "-m", "tests.studies.log_writer")
ROOT = Path(__file__).parents[3]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "\\ud" not in ascii(value))  # lone surrogates have no UTF-8
PAYLOADS = st.dictionaries(st.text(max_size=8).filter(lambda s: "\\ud" not in ascii(s)), JSON, max_size=4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def log(path: Path) -> Iterator[EventLog]:
    opened = EventLog(f"sqlite:///{path}", clock=Ticking())
    yield opened
    opened.close()


def fill(log: EventLog, count: int, study: str = STUDY) -> list[Event]:
    return [append(log, study, EventType.DECISION_TAKEN, {"number": n, "text": "µ"}) for n in range(count)]


def tamper(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def test_what_is_appended_is_read_back_in_order(log: EventLog) -> None:
    events = fill(log, 5)
    assert log.read(STUDY) == events
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert events[0].prev_hash == GENESIS
    assert events[0].ts == "2031-03-04T09:30:01.500Z"
    assert events[0].actor == "system"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(EventType), PAYLOADS, st.sampled_from(["s-a", "s-b"])), max_size=8))
def test_any_sequence_of_appends_verifies(appends: list[tuple[EventType, dict[str, Any], str]]) -> None:
    log = EventLog("sqlite://", clock=Ticking())
    for kind, payload, study in appends:
        append(log, study, kind, payload)
    for study in log.studies():
        events = log.read(study)
        assert [e.payload for e in events] == [p for _, p, s in appends if s == study]
        assert all(event_hash(event) == event.hash for event in events)
    log.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payload", '{"number":99,"text":"µ"}'), ("payload", '{"number":2, "text":"µ"}'), ("payload", "no json"),
        ("payload", "[1]"), ("payload", b"\x00"), ("type", "run.collected"), ("type", "x"), ("actor", "someone"),
        ("ts", "2031-03-04T09:30:09.000Z"), ("prev_hash", "0" * 64), ("hash", "f" * 64), ("seq", 77), ("study", "s-2"),
    ],
)  # fmt: skip
def test_a_changed_field_is_detected_and_named(log: EventLog, path: Path, field: str, value: object) -> None:
    fill(log, 5)
    tamper(path, f"UPDATE events SET {field} = ? WHERE seq = 3", value)
    before = path.read_bytes()
    with pytest.raises(LogCorrupt) as caught:
        log.read(STUDY)
    assert str(caught.value).startswith("event 3 (")
    assert f"of study {STUDY}" in str(caught.value)
    assert "restore the event log from a backup" in str(caught.value)
    assert path.read_bytes() == before


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_forged_field_with_a_matching_hash_still_breaks_the_chain(data: st.DataObject) -> None:
    """An attacker who recomputes the hash of the changed row is found at the row after it."""
    log = EventLog("sqlite://", clock=Ticking())
    events = fill(log, 6)
    victim = events[data.draw(st.integers(0, 4))]
    forged = Event(**{**_fields(victim), "payload": {"number": data.draw(st.integers(100, 10**9))}})
    with log._engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE events SET payload = ?, hash = ? WHERE seq = ?",
            (f'{{"number":{forged.payload["number"]}}}', event_hash(forged), victim.seq),
        )
    with pytest.raises(LogCorrupt, match=rf"event {victim.seq + 1} .* expected it to follow"):
        log.read(STUDY)
    log.close()


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in Event.__slots__}


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_an_event_removed_before_the_end_is_detected(log: EventLog, path: Path, seq: int) -> None:
    fill(log, 5)
    tamper(path, "DELETE FROM events WHERE seq = ?", seq)
    with pytest.raises(LogCorrupt, match=rf"event {seq} \(missing\)"):
        log.read(STUDY)


def test_a_removed_event_whose_gap_was_closed_is_detected(log: EventLog, path: Path) -> None:
    fill(log, 5)
    tamper(path, "DELETE FROM events WHERE seq = 3")
    tamper(path, "UPDATE events SET seq = seq - 1 WHERE seq > 3")
    with pytest.raises(LogCorrupt, match="event 3 "):
        log.read(STUDY)


def test_two_swapped_events_are_detected(log: EventLog, path: Path) -> None:
    fill(log, 5)
    for old, new in ((2, 99), (3, 2), (99, 3)):
        tamper(path, "UPDATE events SET seq = ? WHERE seq = ?", new, old)
    with pytest.raises(LogCorrupt, match="event 2 "):
        log.read(STUDY)


def test_a_log_cut_off_at_its_end_still_verifies_as_the_docstring_says(log: EventLog, path: Path) -> None:
    fill(log, 5)
    tamper(path, "DELETE FROM events WHERE seq > 3")
    assert len(log.read(STUDY)) == 3


def test_nothing_is_appended_after_a_tampered_head(log: EventLog, path: Path) -> None:
    fill(log, 3)
    tamper(path, "UPDATE events SET actor = 'x' WHERE seq = 3")
    with pytest.raises(LogCorrupt, match="event 3 "):
        fill(log, 1)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM events").fetchone() == (3,)


def test_an_event_of_an_unknown_type_is_refused_with_a_hint(log: EventLog, path: Path) -> None:
    event = fill(log, 1)[0]
    unknown = Event(**{**_fields(event), "type": type("Kind", (), {"value": "run.paused"})()})
    tamper(path, "UPDATE events SET type = 'run.paused', hash = ?", event_hash(unknown))
    with pytest.raises(LogCorrupt, match="a newer ajet may have written it"):
        log.read(STUDY)


def test_studies_are_listed_newest_first(log: EventLog) -> None:
    for name in ("s-old", "s-mid", "s-new"):
        fill(log, 1, name)
    fill(log, 2, "s-old")
    assert log.studies() == ["s-new", "s-mid", "s-old"]


def test_an_unknown_study_is_named_beside_the_known_ones(log: EventLog) -> None:
    fill(log, 1)
    with pytest.raises(UnknownStudy, match=r"no study 's-9' in .*; it holds s-1"):
        log.read("s-9")


@pytest.mark.parametrize(
    "payload",
    [{"x": float("nan")}, {"x": object()}, {"x": "\ud800"}, {"x": {1, 2}}],
    ids=["nan", "an object", "half a character", "a set"],
)
def test_a_payload_that_is_no_json_is_refused(log: EventLog, payload: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"payload of decision\.taken must be JSON"):
        append(log, STUDY, EventType.DECISION_TAKEN, payload)
    assert log.studies() == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "\x00"])
def test_a_name_that_cannot_be_stored_is_refused(log: EventLog, name: str) -> None:
    with pytest.raises(ValueError, match="study's name"):
        append(log, name, EventType.DECISION_TAKEN, {})


def test_a_log_is_durable_by_default(log: EventLog) -> None:
    with log._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


def not_a_database(path: Path) -> None:
    path.write_bytes(b"these are notes, not a database\n" * 100)


def another_table(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE events (id INTEGER, what TEXT)")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(not_a_database, "file is not a database. The file is something else"), (another_table, "of another shape")],
)
def test_a_file_that_is_no_event_log_is_refused_and_left_alone(
    path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=said) as caught:
        EventLog(f"sqlite:///{path}")
    assert "\n" not in str(caught.value)
    if spoil is not_a_database:
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("notaurl", "must be one SQLAlchemy reads"), ("sqlite:////no/such/folder/e.db", "Check that its folder exists"),
        ("postgresql+nodriver://u:secret@127.0.0.1/db", "must be one SQLAlchemy reads"),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_opened_is_one_clear_line(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        EventLog(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_read_only_log_can_be_read_but_not_written(log: EventLog, path: Path) -> None:
    events = fill(log, 2)
    read_only = EventLog(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert read_only.read(STUDY) == events
    with pytest.raises(StoreError, match="Make the file and its folder writable"):
        fill(read_only, 1)
    read_only.close()


def test_a_full_disk_is_reported_and_loses_nothing_durable(path: Path) -> None:
    """A real writer meets a real limit on file size, as on a full disk; what it had said to be durable stays."""

    def no_more_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    command = [*WRITER, f"sqlite:///{path}", STUDY, "100000", "w"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=no_more_room, check=False)
    assert done.returncode != 0
    assert "StoreError: could not write the event log" in done.stderr.strip().splitlines()[-1]
    assert "disk" in done.stderr.splitlines()[-1]
    log = EventLog(f"sqlite:///{path}")
    assert len(log.read(STUDY)) >= int(done.stdout.split()[-1])
    log.close()


def writer(path: Path, limit: int, name: str) -> subprocess.Popen[str]:
    command = [*WRITER, f"sqlite:///{path}", STUDY, str(limit), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_two_processes_append_at_once_and_lose_nothing(path: Path) -> None:
    writers = [writer(path, 60, name) for name in ("a", "b")]
    said = [int(line) for process in writers for line in process.communicate()[0].split()]
    assert [process.returncode for process in writers] == [0, 0]
    log = EventLog(f"sqlite:///{path}")
    events = log.read(STUDY)
    log.close()
    assert sorted(said) == [event.seq for event in events] == list(range(1, 121))
    for name in ("a", "b"):
        assert [e.payload["number"] for e in events if e.payload["writer"] == name] == list(range(60))


def test_kill_9_at_random_moments_leaves_a_log_that_verifies_and_holds_all_that_was_durable(path: Path) -> None:
    rng, durable = random.Random(3), 0
    for round_ in range(4):
        process = writer(path, 100_000, str(round_))
        assert process.stdout is not None
        for _ in range(rng.randint(1, 60)):
            durable = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
        durable = int(rest[-1]) if rest and rest[-1].isdigit() else durable
        process.wait()
        process.stdout.close()
        log = EventLog(f"sqlite:///{path}")
        assert len(log.read(STUDY)) >= durable
        log.close()


def test_the_table_needs_nothing_that_only_sqlite_has(log: EventLog) -> None:
    from studies.log.event_log import _TABLE

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    ddl = str(CreateTable(_TABLE, if_not_exists=True).compile(dialect=dialect))
    assert "PRIMARY KEY (study, seq)" in ddl
    assert "payload TEXT NOT NULL" in ddl
    assert "SERIAL" not in ddl
