from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from studies import Event, EventLog, EventType, HeadMoved, LogCorrupt, StoreError, StudiesError, StudyLog, fold
from studies.log import event_log
from studies.log.event_log import LOCK_FILE, lock_error, write_lock
from tests.golden import assert_golden, refused
from tests.studies.processes import COMMAND, start
from tests.studies.synthetic import Synthetic, Ticking, append, design, event_hash

STUDY = "s-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def fill(log: EventLog, count: int, study: str = STUDY) -> list[Event]:
    return [append(log, study, EventType.DECISION_TAKEN, {"number": n, "text": "µ"}) for n in range(count)]


def tamper(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


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
    with refused(LogCorrupt, "event 3 (", f"of study {STUDY}", "backup"):
        log.read(STUDY)
    assert path.read_bytes() == before


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
    with pytest.raises(LogCorrupt, match=rf"event {victim.seq + 1} .* follow"):
        log.read(STUDY)
    log.close()


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in Event.__slots__}


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        *(([f"DELETE FROM events WHERE seq = {seq}"], rf"event {seq} \(missing\)") for seq in (1, 2, 4)),
        (["DELETE FROM events WHERE seq = 3", "UPDATE events SET seq = seq - 1 WHERE seq > 3"], "event 3 "),
        ([f"UPDATE events SET seq = {new} WHERE seq = {old}" for new, old in ((99, 2), (2, 3), (3, 99))], "event 2 "),
    ],
    ids=["first removed", "second removed", "fourth removed", "gap closed", "swapped"],
)
def test_events_that_are_gone_or_moved_are_named(log: EventLog, path: Path, statements: list[str], named: str) -> None:
    fill(log, 5)
    for statement in statements:
        tamper(path, statement)
    with pytest.raises(LogCorrupt, match=named):
        log.read(STUDY)


def test_nothing_is_appended_after_a_tampered_head(log: EventLog, path: Path) -> None:
    fill(log, 3)
    tamper(path, "UPDATE events SET actor = 'x' WHERE seq = 3")
    with pytest.raises(LogCorrupt, match="event 3 "):
        fill(log, 1)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM events").fetchone() == (3,)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_an_event_that_follows_what_is_not_the_last_one_is_refused_and_not_written(log: EventLog, known: int) -> None:
    """Where nothing is there, the one between is missing, and another one came first."""
    written = fill(log, known)
    other = log.compose(STUDY, EventType.DECISION_TAKEN, {}, after=written[0] if written else None)
    with pytest.raises(HeadMoved):
        log.append(log.compose(STUDY, EventType.DECISION_TAKEN, {}, after=other))
    assert (log.read(STUDY) if written else log.studies()) == written


def test_an_event_of_an_unknown_type_is_refused_with_a_hint(log: EventLog, path: Path) -> None:
    event = fill(log, 1)[0]
    unknown = Event(**{**_fields(event), "type": type("Kind", (), {"value": "run.paused"})()})
    tamper(path, "UPDATE events SET type = 'run.paused', hash = ?", event_hash(unknown))
    with refused(LogCorrupt, "run.paused", "newer"):
        log.read(STUDY)


def test_studies_are_listed_newest_first_and_an_unknown_one_is_named_beside_them(log: EventLog) -> None:
    for name in ("s-old", "s-mid", "s-new"):
        fill(log, 1, name)
    fill(log, 2, "s-old")
    assert log.studies() == ["s-new", "s-mid", "s-old"]
    fill(log, 1)
    with refused(StudiesError, "'s-9'", "s-1"):
        log.read("s-9")


@pytest.mark.parametrize(
    ("study", "value", "said"),
    [
        *((STUDY, value, r"payload of decision\.taken") for value in (float("nan"), object(), "\ud800", {1, 2})),
        *((name, 1, "study's name") for name in ("", "a b", "../x", "x" * 65, "\x00")),
    ],
)
def test_a_payload_that_is_no_json_or_a_name_that_cannot_be_stored_is_refused(
    log: EventLog, study: str, value: object, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        append(log, study, EventType.DECISION_TAKEN, {"x": value})
    assert log.studies() == []


def test_a_log_is_durable_by_default(log: EventLog) -> None:
    with log._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


@pytest.mark.parametrize("shape", ["file is not a database", "another shape"])
def test_a_file_that_is_no_event_log_is_refused_and_left_alone(path: Path, shape: str) -> None:
    path.write_bytes(b"these are notes, not a database\n" * 100)
    if shape == "another shape":
        path.unlink()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE events (id INTEGER, what TEXT)")
    before = path.read_bytes()
    with refused(StoreError, shape):
        EventLog(f"sqlite:///{path}")
    assert shape == "another shape" or path.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("notaurl", "SQLAlchemy"), ("sqlite:////no/such/folder/e.db", "folder exists"),
        ("postgresql+nodriver://u:secret@127.0.0.1/db", "SQLAlchemy"),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_opened_is_one_clear_line(url: str, named: str) -> None:
    with pytest.raises(StoreError, match=named) as caught:
        EventLog(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_full_disk_is_reported_and_loses_nothing_durable(path: Path) -> None:
    """A real writer meets a real limit on file size, as on a full disk; what it had said to be durable stays."""

    def no_more_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    command = [*COMMAND, "log", f"sqlite:///{path}", STUDY, "100000", "w"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=no_more_room, check=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "StoreError: " in last
    assert "disk" in last
    with closing(EventLog(f"sqlite:///{path}")) as log:
        assert len(log.read(STUDY)) >= int(done.stdout.split()[-1])


@pytest.mark.slow
def test_two_processes_append_at_once_and_lose_nothing(url: str) -> None:
    writers = [start("log", url, STUDY, "60", name) for name in ("a", "b")]
    said = [int(line) for process in writers for line in process.communicate()[0].split()]
    assert [process.returncode for process in writers] == [0, 0]
    with closing(EventLog(url)) as log:
        events = log.read(STUDY)
    assert sorted(said) == [event.seq for event in events] == list(range(1, 121))
    for name in ("a", "b"):
        assert [e.payload["number"] for e in events if e.payload["writer"] == name] == list(range(60))


@pytest.mark.slow
def test_kill_9_at_random_moments_leaves_a_log_that_verifies_and_holds_all_that_was_durable(path: Path) -> None:
    rng, durable = random.Random(3), 0
    for round_ in range(4):
        process = start("log", f"sqlite:///{path}", STUDY, "100000", str(round_))
        for _ in range(rng.randint(1, 60)):
            durable = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
        durable = int(rest[-1]) if rest and rest[-1].isdigit() else durable
        process.communicate()
        with closing(EventLog(f"sqlite:///{path}")) as log:
            assert len(log.read(STUDY)) >= durable


def test_a_whole_study_is_written_read_and_folded_and_a_changed_row_is_named(url: str, tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path / "study")
    with closing(EventLog(url, clock=Ticking())) as synthetic.log, closing(EventLog(url)) as again:
        state = synthetic.whole()
        assert fold(again.read(state.id)) == state
        assert again.studies() == [state.id]
        with again.transaction("write") as connection:
            connection.execute(sa.text("update events set payload = '{}' where seq = 3"))
        with pytest.raises(LogCorrupt, match="event 3"):
            again.read(state.id)


def test_a_server_that_is_not_there_is_one_clear_error_without_its_password(postgres_url: str) -> None:
    gone = sa.make_url(postgres_url).set(port=1, password="hush").render_as_string(hide_password=False)
    with pytest.raises(StoreError) as caught:
        EventLog(gone)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("told", ['type "events" already exists', 'relation "events" already exists'])
def test_a_table_that_another_process_makes_at_once_is_opened(path: Path, told: str) -> None:
    refusals = [sa.exc.ProgrammingError("CREATE TABLE", None, RuntimeError(told))]

    def another_was_faster(*_: object) -> None:
        if refusals:
            raise refusals.pop()

    sa.event.listen(sa.Engine, "before_execute", another_was_faster)
    try:
        with closing(EventLog(f"sqlite:///{path}")) as opened:
            assert (opened.studies(), refusals) == ([], [])
    finally:
        sa.event.remove(sa.Engine, "before_execute", another_was_faster)


def test_a_postgresql_that_is_silent_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may stand still while its machine acknowledges; a byte in time begins the wait anew."""
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr(event_log, "time", SimpleNamespace(monotonic=iter((0.0, 29.0, 58.0, 60.0)).__next__))
    closed: list[bool] = []
    waits = event_log._wait_for_answer(
        (wanted for wanted in range(9)), SimpleNamespace(close=lambda: closed.append(True))
    )
    next(waits)
    waits.send("ready")
    waits.send(0)
    with pytest.raises(psycopg.OperationalError):
        waits.send(0)
    assert closed == [True]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM events WHERE seq = 5", "not there any"),
        ("UPDATE events SET hash = 'x' WHERE seq = 5", "held something else"),
        ("UPDATE events SET payload = '{}' WHERE seq = 6", "its fields give"),
        ("UPDATE events SET seq = 9 WHERE seq = 6", "expected event 6"),
    ],
)
def test_a_log_that_was_written_anew_is_refused(study: Synthetic, statement: str, said: str) -> None:
    study.create()
    study.lock()
    following = StudyLog(study.log, study.study)
    assert following.state().event_count == 5
    study.append(EventType.STUDY_STOPPED, reason="x")
    with study.log.transaction("write") as connection:
        connection.execute(sa.text(statement))
    with pytest.raises(LogCorrupt, match=said):
        following.state()


def test_after_a_refusal_it_begins_anew(study: Synthetic) -> None:
    study.create()
    following = StudyLog(study.log, study.study)
    following.state()
    study.append(EventType.RUN_INVALIDATED, run_id="none", code="", reason="")
    for _ in range(2):
        with pytest.raises(LogCorrupt, match="no run 'none'"):
            following.state()


def test_the_lock_files_sha256_is_the_designs_hash(tmp_path: Path) -> None:
    assert write_lock(tmp_path / "new", design()) == design().hash()
    assert hashlib.sha256((tmp_path / "new" / LOCK_FILE).read_bytes()).hexdigest() == design().hash()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK_FILE]


def test_a_lock_that_is_gone_or_changed_is_told_and_before_it_there_is_no_file_to_be_wrong(
    study: Synthetic, tmp_path: Path
) -> None:
    study.create()
    assert lock_error(study.state(), tmp_path) is None
    study.lock()
    state = study.state()
    assert lock_error(state, tmp_path) is None
    assert_golden(lock_error(state, tmp_path / "elsewhere"))
    write_lock(tmp_path, study.design.model_copy(update={"alpha": 0.5}))
    assert_golden(lock_error(state, tmp_path))
