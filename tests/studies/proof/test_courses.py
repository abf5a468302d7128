"""Under a locked rule of collapse every run that feeds a claim has its course, and it is the one of its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from studies import StudyState, fold
from studies.checks.run_facts import conditions_in
from studies.proof.chain import events_of
from studies.proof.evidence import check_files
from studies.proof.findings import Findings
from studies.records.design_parts import CollapseRule
from tests.studies.proof.conftest import Kept

Conditions = dict[str, Any]


@pytest.fixture
def state(kept: Kept) -> StudyState:
    """The study as if it had locked a rule of collapse, which it is older than."""
    found = fold(events_of(kept.study, kept.rows, Findings()))
    assert found.locked_design is not None
    return replace(found, locked_design=found.locked_design.model_copy(update={"collapse": CollapseRule()}))


def with_courses(kept: Kept, state: StudyState, change: Callable[[Conditions], Conditions]) -> list[str]:
    """Return what is found where the runs' conditions are those of their files, after a change of them."""
    runs = {}
    for run_id, run in state.runs.items():
        assert run.collected is not None
        snapshot, evaluation = (
            json.loads((kept.folder / run.collected[kind]["path"]).read_text()) for kind in ("snapshot", "evaluation")
        )
        known = conditions_in(snapshot["history"], evaluation["initial"], evaluation["final"])
        conditions = change({**(run.collected.get("conditions") or {}), **known})
        runs[run_id] = replace(run, collected={**run.collected, "conditions": conditions})
    return drifts(kept, replace(state, runs=runs))


def drifts(kept: Kept, state: StudyState) -> list[str]:
    findings = Findings()
    check_files(state, kept.folder, findings)
    return [str(drift) for drift in findings.drifts]


def test_recorded_courses_hold(kept: Kept, state: StudyState) -> None:
    assert with_courses(kept, state, lambda known: known) == []


def test_a_run_without_its_course_is_named(kept: Kept, state: StudyState) -> None:
    found = drifts(kept, state)
    assert len(found) == len(state.runs)
    assert all("holds no course" in line for line in found)
    assert with_courses(kept, state, lambda known: known | {"course": None}) == found


def test_without_a_rule_nothing_is_asked_of_older_runs(kept: Kept, state: StudyState) -> None:
    assert state.locked_design is not None
    before = state.locked_design.model_copy(update={"collapse": None})
    assert drifts(kept, replace(state, locked_design=before)) == []


def test_a_forged_course_is_named(kept: Kept, state: StudyState) -> None:
    found = with_courses(kept, state, lambda known: known | {"course": known["course"] | {"end": -1.0}})
    assert len(found) == len(state.runs)
    assert all("course is" in line for line in found)


def test_a_run_that_is_said_to_have_broken_down_and_has_all_its_steps_is_named(kept: Kept, state: StudyState) -> None:
    found = with_courses(kept, state, lambda known: known | {"stopped_by": "kl_blow_up"})
    assert len(found) == len(state.runs)
    assert all("stopped_by is 'kl_blow_up'" in line for line in found)
