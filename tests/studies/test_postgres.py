"""The event log on a real PostgreSQL: the same promises as on SQLite."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from studies import EventLog, EventType, LogCorrupt, StoreError, fold
from tests.studies.raw import append
from tests.studies.synthetic import STUDY, Synthetic, Ticking


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


def test_a_whole_study_is_written_read_and_folded(url: str, tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path)
    synthetic.log.close()
    synthetic.log = EventLog(url, clock=Ticking())
    state = synthetic.whole()
    again = EventLog(url)
    assert fold(again.read(STUDY)) == state
    assert again.studies() == [STUDY]
    again.close()
    synthetic.log.close()


def test_a_changed_row_is_named(url: str) -> None:
    log = EventLog(url)
    for number in range(5):
        append(log, STUDY, EventType.DECISION_TAKEN, {"number": number})
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("update events set payload = :changed where seq = 3"), {"changed": '{"number":7}'})
    with pytest.raises(LogCorrupt, match="event 3"):
        log.read(STUDY)
    log.close()


def test_writers_at_once_lose_nothing(url: str) -> None:
    def write(writer: int) -> None:
        log = EventLog(url)
        for number in range(20):
            append(log, STUDY, EventType.DECISION_TAKEN, {"writer": writer, "number": number})
        log.close()

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    log = EventLog(url)
    events = log.read(STUDY)
    log.close()
    assert [event.seq for event in events] == list(range(1, 61))
    assert {(event.payload["writer"], event.payload["number"]) for event in events} == {
        (writer, number) for writer in range(3) for number in range(20)
    }


def test_a_server_that_is_not_there_is_one_clear_error_without_its_password(url: str) -> None:
    gone = sa.make_url(url).set(port=1, password="hush").render_as_string(hide_password=False)
    with pytest.raises(StoreError) as caught:
        EventLog(gone)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
