from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies import StudyState
from studies.checks.conditions import extract_conditions
from studies.checks.training import EPISODES_TOLD, count_without_signal, had_no_signal, unequal_drops
from studies.report.evidence import gather
from studies.report.summary import headline
from studies.report.validity import threats
from tests.golden import assert_golden

CONTROL, TREATMENT = "group_size=4", "group_size=16"


@pytest.fixture
def state(finished: tuple[StudyState, Path]) -> StudyState:
    return finished[0]


def with_conditions(state: StudyState, arm: str, **seen: Any) -> StudyState:
    runs = {
        run_id: replace(run, collected={**(run.collected or {}), "conditions": seen}) if run.spec.arm == arm else run
        for run_id, run in state.runs.items()
    }
    return replace(state, runs=runs)


def lost(state: StudyState, arm: str, count: int, code: str = "NAN") -> StudyState:
    names = [run.run_id for run in state.runs_of(arm)][:count]
    runs = {name: replace(run, invalid=(code, "x")) if name in names else run for name, run in state.runs.items()}
    return replace(state, runs=runs)


def clauses(state: StudyState) -> tuple[str, ...]:
    return unequal_drops(state, state.design.hypotheses[0])


def test_arms_that_lost_nothing_or_alike_say_nothing(state: StudyState) -> None:
    assert clauses(state) == ()
    assert clauses(lost(lost(state, CONTROL, 1), TREATMENT, 1)) == ()


def test_one_arms_lost_run_is_told_in_the_headline_and_among_the_threats(finished: tuple[StudyState, Path]) -> None:
    state = lost(finished[0], TREATMENT, 1)
    (clause,) = clauses(state)
    assert_golden(clause)
    assert clause in headline(state).answers[0].sentence
    said = [remark.text for remark in threats(state, gather(*finished)) if remark.level == "threat"]
    assert any(clause in text for text in said)


@pytest.mark.parametrize("code", ["budget_exhausted", "vetoed"])
def test_runs_that_the_study_itself_cut_short_are_no_threat(state: StudyState, code: str) -> None:
    state = lost(state, TREATMENT, 2, code)
    cut = {
        name: replace(run, attempts=(*run.attempts[:-1], replace(run.attempts[-1], status="stopped")))
        for name, run in state.runs.items()
        if run.invalid is not None
    }
    assert len(cut) == 2
    assert clauses(replace(state, runs={**state.runs, **cut})) == ()


def test_a_run_that_counts_with_the_worst_value_is_not_left_out(state: StudyState) -> None:
    design = state.design.model_copy(update={"counted_as_worst": ("broke",)})
    assert clauses(lost(replace(state, design=design), TREATMENT, 1, "broke")) == ()


def test_episodes_without_a_reward_are_told_where_the_arms_differ_in_them(state: StudyState) -> None:
    state = with_conditions(state, CONTROL, judge_errors=0, episodes=5000)
    (clause,) = clauses(with_conditions(state, TREATMENT, judge_errors=100, episodes=4900))
    assert_golden(clause)
    assert clauses(with_conditions(state, TREATMENT, judge_errors=10, episodes=4990)) == ()
    assert clauses(with_conditions(state, TREATMENT, judge_errors=None, episodes=4900)) == ()
    assert EPISODES_TOLD > 10 / 5000


STEPS = st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16)), min_size=1, max_size=8)


def signal_in(history: list[dict[str, Any]]) -> Any:
    part = {"episodes": [{"task_id": "t", "sample": 0, "success": True}], "policy_version": len(history)}
    rows = [{"step": step, "metrics": metrics} for step, metrics in enumerate(history, start=1)]
    return extract_conditions(rows, part, part)["signal_steps"]


@given(STEPS)
def test_a_step_teaches_where_not_all_groups_are_constant(steps: list[tuple[int, int]]) -> None:
    history = [
        {"batch/groups": float(groups), "batch/constant_groups": float(min(groups, constant))}
        for groups, constant in steps
    ]
    assert signal_in(history) == sum(constant < groups for groups, constant in steps)


def test_an_algorithm_that_compares_across_groups_learns_from_constant_ones() -> None:
    constant = {"batch/groups": 4.0, "batch/constant_groups": 4.0}
    assert signal_in([constant]) == 0
    assert signal_in([{**constant, "critic/advantages/max": 1.0, "critic/advantages/min": -1.0}]) == 1
    assert signal_in([constant, {}]) is None, "a step that does not say"


def test_runs_that_had_nothing_to_learn_from_are_counted_by_arm_and_told(finished: tuple[StudyState, Path]) -> None:
    whole = finished[0]
    state = with_conditions(
        with_conditions(whole, CONTROL, signal_steps=0, steps=40), TREATMENT, signal_steps=1, steps=40
    )
    assert count_without_signal(state) == {CONTROL: (5, 5)}
    assert [had_no_signal(run) for run in state.runs_of(CONTROL)] == [True] * 5
    (text,) = [remark.text for remark in threats(state, gather(*finished)) if "nothing to learn" in remark.text]
    assert_golden(text)
    assert count_without_signal(whole) == {}, "logs of before it was recorded claim nothing"
