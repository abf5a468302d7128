"""A run is tried again where a machine failed, and given up where another try would be a choice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.scheduler.required_runs import given_up
from studies.log.study import AttemptState, AttemptStatus, RunState
from studies.records.design import Metric, RunSpec
from studies.records.runs import EXCLUDED_CODES, GENERATED_CODE_FAILED, INVALID_CODES, WITHIN_REACH_OF_CODE, WORST_CODES

SPEC = RunSpec(
    study="s1", design_hash="d" * 64, arm="a", seed=1, environment="guess", job={},
    metric=Metric(meaning="share of hidden tasks solved", episodes=64),
)  # fmt: skip
CODED = SPEC.model_copy(update={"code": "def reward(): ..."})


def run(*codes: str, spec: RunSpec = SPEC, status: AttemptStatus = "failed", **collected: Any) -> RunState:
    attempts = tuple(AttemptState(n, f"a{n}", "", status, code, "why") for n, code in enumerate(codes, 1))
    return RunState(spec.run_id, spec, attempts, collected=collected or None)


@given(st.lists(st.sampled_from(EXCLUDED_CODES), min_size=1, max_size=5), st.integers(1, 5))
def test_a_failed_machine_is_tried_again_as_often_as_the_lock_says(codes: list[str], most: int) -> None:
    found = given_up(run(*codes), most)
    assert (found is None) == (len(codes) < most)
    assert found is None or found.code == codes[-1]


@pytest.mark.parametrize("code", [*WORST_CODES, "evidence_changed", "evidence_missing", "not_measurable"])
def test_what_another_try_could_only_improve_is_not_tried_again(code: str) -> None:
    found = given_up(run(code), 3)
    assert found.code == code
    assert found.code not in EXCLUDED_CODES


@pytest.mark.parametrize("code", sorted(WITHIN_REACH_OF_CODE))
def test_an_end_that_generated_code_can_bring_about_is_in_no_class(code: str) -> None:
    found = given_up(run(code, spec=CODED), 3)
    assert found.code == GENERATED_CODE_FAILED
    assert code in found.reason
    assert found.code in INVALID_CODES
    assert found.code not in (*EXCLUDED_CODES, *WORST_CODES), "so that its verdict is invalid"
    last = given_up(run("lost", "lost", code, spec=CODED), 3)
    assert last.code == GENERATED_CODE_FAILED, "the last try is no way out either"
    assert given_up(run(code), 3) is None, "without generated code it is a machine's failure"


def test_an_attempt_that_was_stopped_from_outside_costs_nothing() -> None:
    assert given_up(run("stopped", status="stopped"), 1) is None
    assert given_up(run("ok", status="finished"), 1) is None


def test_a_collected_run_falls_by_an_alarm_that_leaves_nothing_to_measure() -> None:
    note = {"code": "entropy_collapse", "step": 3, "sentence": "low", "effect": "note"}
    nan = {"code": "training_nan", "step": 5, "sentence": "no number", "effect": "worst"}
    assert given_up(run("ok", status="finished", alarms=[note]), 3) is None
    assert given_up(run("ok", status="finished", snapshot={}, evaluation={}), 3) is None, "a log from before alarms"
    assert given_up(run("ok", status="finished", alarms=[note, nan]), 3) == ("training_nan", "no number")
