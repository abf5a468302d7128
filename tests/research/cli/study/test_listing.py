"""The list of studies is read from where it was kept, and is never another than what would be computed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from research.cli.listing import FILE, listed
from research.installation import studies
from research.installation.home import Home
from studies import EventLog, EventType
from studies.proof import DOES_NOT_FOLLOW
from tests.research.fakes import create_study
from tests.studies.raw import append
from tests.studies.synthetic import STUDY, Synthetic


@pytest.fixture
def place(home: Path) -> Home:
    return Home.locate().prepare()


class Reads:
    """Lists studies, and counts the logs that were read for it."""

    def __init__(self, home: Home, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home = home
        self._log = log
        self._read = log.read
        self.count = 0
        monkeypatch.setattr(log, "read", self._counted)

    def _counted(self, *arguments: Any) -> Any:
        self.count += 1
        return self._read(*arguments)

    def __call__(self) -> tuple[list[dict[str, Any]], int]:
        """Return the summaries, and how many logs were read for them; they are the same without what was kept."""
        self.count = 0
        found, count = [dict(line.summary) for line in listed(self._home, self._log)], self.count
        kept = (self._home.path / FILE).read_bytes()
        (self._home.path / FILE).unlink()
        again = [dict(line.summary) for line in listed(self._home, self._log)]
        assert json.dumps(found) == json.dumps(again)
        (self._home.path / FILE).write_bytes(kept)
        return found, count


@pytest.fixture
def reads(place: Home, finished: Synthetic, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(place, finished.log, monkeypatch)


@pytest.mark.slow
def test_a_study_is_read_once_until_something_is_added_to_it(finished: Synthetic, reads: Reads) -> None:
    create_study(finished.log, "another")
    assert reads()[1] == 2
    assert reads()[1] == 0
    append(finished.log, "another", EventType.STUDY_STOPPED, {"reason": "enough"}, actor="user")
    found, count = reads()
    assert count == 1
    assert {entry["study"]: entry["status"] for entry in found} == {STUDY: "concluded", "another": "stopped"}


@pytest.mark.slow
def test_a_verdict_whose_file_is_changed_is_doubted_though_the_log_is_as_it_was(
    finished: Synthetic, reads: Reads
) -> None:
    assert reads()[0][0]["verdicts"][0]["verdict"] == "supported"
    path = next(finished.folder.glob("runs/*/evaluation.json"))
    before, times = path.read_bytes(), path.stat()
    path.write_bytes(before.replace(b"true", b"1234", 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # of the same size and time, it was still written to
    found, count = reads()
    assert (found[0]["verdicts"][0]["verdict"], count) == (DOES_NOT_FOLLOW, 1)
    path.unlink()
    assert "cannot be read" in reads()[0][0]["verdicts"][0]["reason"]
    path.write_bytes(before)
    assert reads()[0][0]["verdicts"][0]["verdict"] == "supported"
    (finished.folder / "design.lock").write_text("{}")
    assert reads()[0][0]["verdicts"][0]["verdict"] == DOES_NOT_FOLLOW


def test_a_folder_that_is_moved_away_and_back_is_seen(finished: Synthetic, reads: Reads) -> None:
    away = finished.folder.with_name("away")
    counts = [reads()[1]]
    for source, target in ((finished.folder, away), (away, finished.folder)):
        source.rename(target)
        counts.append(reads()[1])
    assert ([*counts, reads()[1]]) == [1, 1, 1, 0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: "no JSON",
        lambda kept: json.dumps({**kept, "form": "of another version"}),
        lambda kept: json.dumps({**kept, "home": "/elsewhere"}),
        lambda kept: json.dumps({**kept, "studies": {STUDY: {"head": kept["studies"][STUDY]["head"]}}}),
        lambda kept: json.dumps([]),
    ],
)
def test_what_was_kept_otherwise_is_not_taken(place: Home, reads: Reads, spoil: Any) -> None:
    assert reads()[1] == 1
    kept = place.path / FILE
    kept.write_text(spoil(json.loads(kept.read_text())))
    assert reads()[1] == 1
    assert reads()[1] == 0


def test_a_log_that_cannot_be_read_is_named_each_time_and_what_is_gone_is_forgotten(
    place: Home, finished: Synthetic, reads: Reads
) -> None:
    create_study(finished.log, "another")
    reads()
    with finished.log.transaction("write") as connection:
        connection.exec_driver_sql("DELETE FROM events WHERE study = 'another'")
        connection.exec_driver_sql(f"UPDATE events SET hash = 'x' WHERE study = '{STUDY}' AND seq > 5")
    for _ in range(2):
        found, count = reads()
        assert ([entry["status"] for entry in found], count) == (["corrupt"], 1)
    assert json.loads((place.path / FILE).read_text())["studies"] == {}


def test_a_disk_that_takes_nothing_costs_time_and_nothing_else(
    place: Home, finished: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **more: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(studies, "write_bytes", full)
    assert [line.row[0] for line in listed(place, finished.log)] == [STUDY]


def test_who_reads_long_is_told_how_far(place: Home, finished: Synthetic) -> None:
    create_study(finished.log, "another")
    told: list[tuple[int, int]] = []
    listed(place, finished.log, lambda done, of: told.append((done, of)))
    assert told == [(0, 2), (1, 2)]
