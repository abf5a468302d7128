from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from research.installation.home import Home
from research.shown.listing import FILE, read_listing
from studies.proof import DOES_NOT_FOLLOW
from tests.research.factories import make_study
from tests.research.fakes import create_study
from tests.studies.synthetic import STUDY, Synthetic


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Synthetic]:
    monkeypatch.setenv("AJET_HOME", str(tmp_path / "home"))
    made = make_study()
    made.whole()
    yield made
    made.log.close()


@pytest.fixture
def place(finished: Synthetic) -> Home:
    return Home.locate().prepare()


Reads = Callable[[], tuple[list[dict[str, Any]], int]]


@pytest.fixture
def reads(place: Home, finished: Synthetic, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """List studies, and count the logs that were read for it; what is said is the same without what was kept."""
    read, file = Mock(wraps=finished.log.read), place.path / FILE
    monkeypatch.setattr(finished.log, "read", read)

    def summaries() -> list[dict[str, Any]]:
        return [dict(line.summary) for line in read_listing(place, finished.log)]

    def look() -> tuple[list[dict[str, Any]], int]:
        read.reset_mock()
        found, count = summaries(), read.call_count
        kept = file.read_bytes()
        file.unlink()
        assert json.dumps(found) == json.dumps(summaries())
        file.write_bytes(kept)
        return found, count

    return look


@pytest.mark.slow
def test_a_verdict_whose_file_is_changed_is_doubted(finished: Synthetic, reads: Reads) -> None:
    assert [reads()[0][0]["verdicts"][0][name] for name in ("verdict", "by_margin")] == ["supported", False]
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


def test_a_log_that_cannot_be_read_is_named_each_time(place: Home, finished: Synthetic, reads: Reads) -> None:
    create_study(finished.log, "another")
    reads()
    with finished.log.transaction("write") as connection:
        connection.exec_driver_sql("DELETE FROM events WHERE study = 'another'")
        connection.exec_driver_sql(f"UPDATE events SET hash = 'x' WHERE study = '{STUDY}' AND seq > 5")
    for _ in range(2):
        found, count = reads()
        assert ([entry["status"] for entry in found], count) == (["corrupt"], 1)
    assert json.loads((place.path / FILE).read_text())["studies"] == {}
