from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies import StudyState
from studies.checks.training import (
    collapse_rate,
    count_without_signal,
    detect_collapse,
    had_no_signal,
    training_curve,
    unequal_drops,
)
from studies.records.procedure import CollapseRule
from studies.records.runs import Conditions, TrainingCurve
from studies.report.evidence import gather
from studies.report.summary import headline
from studies.report.validity import remarks
from tests.golden import assert_golden
from tests.lazily import lazy
from tests.studies.synthetic import studies

stats = lazy("scipy.stats")
BATCH = 128
RULE = CollapseRule()


def rows(shares: Sequence[float], batch: float = BATCH) -> list[dict[str, Any]]:
    return [
        {"step": at, "metrics": {"critic/success/mean": share, "batch/episodes": batch}}
        for at, share in enumerate(shares, start=1)
    ]


def judged(shares: Sequence[float], start: float, end: float, **changes: Any) -> str | None:
    return detect_collapse(Conditions(course=training_curve(rows(shares), start, end, 512), **changes), RULE)


def risen(source: random.Random, gain: float, fall: float, steps: int = 40, begun: float = 0.2) -> list[float]:
    """Return a noisy curve that rises by `gain`, and loses the share `fall` of it in its last third."""
    shares = []
    for step in range(steps):
        level = begun + gain * (1 - math.exp(-6 * step / steps))
        lost = fall * gain * max(0.0, min(1.0, (step - 0.65 * steps) / (0.1 * steps)))
        chance = level - lost
        shares.append(sum(source.random() < chance for _ in range(BATCH)) / BATCH)
    return shares


@pytest.mark.parametrize(("gain", "fall", "least", "most"), [
    (0.45, 0.0, 0, 0), (0.1, 0.0, 0, 0.01), (0.0, 0.0, 0, 0.01), (0.45, 0.3, 0, 0.075), (0.45, 0.7, 0.95, 1),
    (0.45, 0.95, 1, 1),
])  # fmt: skip
@studies(20, 200)
def test_trainings_that_lose_most_of_their_gain_are_found_and_those_that_hold_it_are_not(
    gain: float, fall: float, least: float, most: float, studies: int
) -> None:
    source, end = random.Random(f"{gain} {fall}"), 0.2 + gain * (1 - fall)
    found = sum(judged(risen(source, gain, fall), 0.2, end) is not None for _ in range(studies))
    assert least * studies <= found <= most * studies


def test_a_training_collapsed_that_ends_below_its_beginning_or_broke_down_and_none_of_which_nothing_is_known() -> None:
    assert_golden(judged([0.4, 0.1], 0.4, 0.05))
    assert judged([0.4, 0.4], 0.4, 0.35) is None, "within the noise of two evaluations"
    assert "kl_blow_up" in str(judged([0.4] * 20, 0.4, 0.4, stopped_by="kl_blow_up"))
    assert judged([0.4] * 20, 0.4, 0.4, stopped_by="server_silent") is None
    assert detect_collapse(Conditions(), RULE) is None
    assert judged([], 0.5, 0.5) is None
    assert training_curve([{"step": 1, "metrics": {}}], 0.5, 0.5, 512) == TrainingCurve(start=0.5, end=0.5, plays=512)


@given(st.integers(0, 12), st.integers(0, 12))
def test_the_limits_of_a_rate_are_the_exact_ones(count: int, more: int) -> None:
    of = count + more
    found = collapse_rate("a", count, of)
    if of:
        theirs = stats.binomtest(count, of).proportion_ci(0.95, method="exact")
        assert (found.low, found.high) == (pytest.approx(theirs.low, abs=1e-9), pytest.approx(theirs.high, abs=1e-9))
        one_sided = stats.binomtest(count, of, alternative="less").proportion_ci(0.95, method="exact")
        assert found.upper == pytest.approx(one_sided.high, abs=1e-9)
    else:
        assert (found.low, found.high, found.upper) == (0.0, 1.0, 1.0)


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


def test_one_arms_lost_run_is_told_in_the_headline(finished: tuple[StudyState, Path]) -> None:
    state = lost(finished[0], TREATMENT, 1)
    (clause,) = clauses(state)
    assert_golden(clause)
    assert clause in headline(state).answers[0].sentence


def test_runs_that_count_as_worst_or_that_the_study_itself_cut_short_are_no_loss_of_an_arm(state: StudyState) -> None:
    assert clauses(lost(lost(state, CONTROL, 1), TREATMENT, 1)) == ()
    design = state.design.model_copy(update={"counted_as_worst": ("broke",)})
    assert clauses(lost(replace(state, design=design), TREATMENT, 1, "broke")) == ()
    given_up = lost(state, TREATMENT, 2, "vetoed")
    cut = {
        name: replace(run, attempts=(*run.attempts[:-1], replace(run.attempts[-1], status="stopped")))
        for name, run in given_up.runs.items()
        if run.invalid is not None
    }
    assert clauses(replace(given_up, runs={**given_up.runs, **cut})) == ()


def test_runs_that_had_nothing_to_learn_from_are_counted_by_arm_and_told(finished: tuple[StudyState, Path]) -> None:
    whole = finished[0]
    state = with_conditions(
        with_conditions(whole, CONTROL, signal_steps=0, steps=40), TREATMENT, signal_steps=1, steps=40
    )
    assert count_without_signal(state) == {CONTROL: (5, 5)}
    assert [had_no_signal(run) for run in state.runs_of(CONTROL)] == [True] * 5
    (text,) = [remark.text for remark in remarks(state, gather(*finished)) if "nothing to learn" in remark.text]
    assert_golden(text)
    assert count_without_signal(whole) == {}, "logs of before it was recorded claim nothing"
