"""What orchestration is measured on is what a controller would have written: it folds, goes on, and follows."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from rig.orchestration.long_study import LongStudy, Pattern
from rig.orchestration.many_studies import ManyStudies
from rig.orchestration.ticks import ticked

from studies import EventLog, fold
from studies.log.event import row_of
from studies.proof import verify


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pattern")


@pytest.fixture(scope="module")
def pattern(source: Path) -> Pattern:
    return Pattern.flown(source)


def test_a_long_study_has_the_runs_and_events_that_were_asked_for_and_goes_on(tmp_path: Path, pattern: Pattern) -> None:
    study = LongStudy(tmp_path / "written", pattern, runs=20, events=300)
    state = study.controller().state()
    assert len(state.runs) == 20
    assert state.event_count == study.events == 300
    assert sum(run.status == "collected" for run in state.runs.values()) == 10
    figures = ticked(tmp_path, pattern, runs=20, events=300)
    assert 0 < figures["idle tick"] < figures["attempt ended"] < 5.0


def test_each_of_many_studies_is_listed_with_verdicts_that_follow(
    tmp_path: Path, pattern: Pattern, source: Path
) -> None:
    many = ManyStudies(tmp_path, pattern, source, 3)
    first, _ = many.listed("--json")
    assert {entry["study"] for entry in json.loads(first)} == {"study-0000", "study-0001", "study-0002"}
    for entry in json.loads(first):
        assert entry["status"] == "concluded"
        assert [verdict["verdict"] for verdict in entry["verdicts"]] == ["supported"]
    assert many.listed("--json")[0] == first
    with closing(EventLog(many.home.database)) as log:
        events = log.read("study-0001")
    assert fold(events).event_count == len(events)
    assert verify("study-0001", [row_of(event) for event in events], many.home.study("study-0001")).drifts == ()
