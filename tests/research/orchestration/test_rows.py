"""The rows under a flow run follow from the study's state, and are those of its session only."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.orchestration.rows import TaskRow, left, rows
from studies.log.event import EventType
from tests.studies.synthetic import Synthetic


@pytest.fixture
def synthetic(tmp_path: Path) -> Synthetic:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    return synthetic


def kinds(found: list[TaskRow]) -> dict[str, tuple[str, str]]:
    return {row.name.split(" (")[0]: (row.kind, row.state) for row in found}


def test_planning_is_a_row_of_the_sitting_that_began_without_a_design(synthetic: Synthetic) -> None:
    since = synthetic.state()
    assert kinds(list(rows(since, since))) == {"planning": ("RUNNING", "Running")}
    synthetic.lock()
    assert kinds(list(rows(synthetic.state(), since))) == {"planning": ("COMPLETED", "Completed")}
    assert list(rows(synthetic.state(), synthetic.state())) == []


def test_a_refusal_is_a_planning_that_failed_with_its_reason(synthetic: Synthetic) -> None:
    since = synthetic.state()
    synthetic.append(EventType.STUDY_STOPPED, reason="too dear: use --budget 2h")
    (row,) = rows(synthetic.state(), since)
    assert (row.kind, row.message) == ("FAILED", "too dear: use --budget 2h")


def test_a_run_is_retried_and_ends_and_one_that_never_began_has_no_row(synthetic: Synthetic) -> None:
    synthetic.lock()
    since = synthetic.state()
    first, second, *_ = synthetic.plan()
    synthetic.launch(first)
    assert [row.state for row in rows(synthetic.state(), since)] == ["Running"]
    synthetic.end(first, status="lost", code="lost", reason="its process is gone")
    (row,) = rows(synthetic.state(), since)
    assert (row.kind, row.state, row.message) == ("SCHEDULED", "AwaitingRetry", "try 1 lost: its process is gone")
    synthetic.launch(first, 2)
    assert [row.state for row in rows(synthetic.state(), since)] == ["Retrying"]
    synthetic.end(first, 2)
    synthetic.collect(first, 2)
    synthetic.launch(second)
    synthetic.end(second, status="failed", code="server_died", reason="killed")
    synthetic.append(EventType.RUN_INVALIDATED, run_id=second.run_id, code="server_died", reason="killed")
    done, failed = rows(synthetic.state(), since)
    assert (done.kind, failed.kind, failed.message) == ("COMPLETED", "FAILED", "server_died: killed")
    assert "hidden success" in done.message


def test_a_resumed_study_shows_no_run_that_was_over_before(synthetic: Synthetic) -> None:
    synthetic.lock()
    over, adopted, later, *_ = synthetic.plan()
    synthetic.run(over)
    synthetic.launch(adopted)
    since = synthetic.state()
    synthetic.launch(later)
    assert [row.key for row in rows(synthetic.state(), since)] == [adopted.run_id, later.run_id]


def test_nothing_stays_open_when_a_controller_ends() -> None:
    assert left(TaskRow("r", "r", "RUNNING", "Running")).kind == "CANCELLED"
    assert left(TaskRow("r", "r", "SCHEDULED", "AwaitingRetry")).kind == "CANCELLED"
    ended = TaskRow("r", "r", "FAILED", "Failed", "nan")
    assert left(ended) == ended
