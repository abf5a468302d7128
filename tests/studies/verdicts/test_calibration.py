from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.design_parts import Prediction
from studies.records.verdict import Verdict, VerdictName
from studies.verdicts.calibration import brier, calibration
from tests.studies.synthetic import hypothesis, judged


@cache
def verdict_of_two() -> Verdict:
    return judged(hypothesis(), {"a": 0.1, "b": 0.2}, {"c": 0.4, "d": 0.5})


def ended(verdict: VerdictName, estimate: float | None = 0.1) -> Verdict:
    return verdict_of_two().model_copy(update={"verdict": verdict, "estimate": estimate})


def said(probability: float, **changes: Any) -> Prediction:
    return Prediction(**({"low": 0.05, "high": 0.2, "level": 0.8, "probability": probability} | changes))


def test_a_planner_that_knows_every_outcome_has_full_skill() -> None:
    found = calibration([(said(1.0), ended("supported")), (said(0.0), ended("refuted"))])
    assert (found.brier, found.constant, found.skill) == (0.0, 0.25, 1.0)


@given(st.lists(st.sampled_from(["supported", "refuted"]), min_size=2, max_size=20))
def test_a_planner_that_says_the_base_rate_every_time_has_no_skill(outcomes: list[VerdictName]) -> None:
    rate = outcomes.count("supported") / len(outcomes)
    found = calibration([(said(rate), ended(outcome)) for outcome in outcomes])
    if 0 < rate < 1:
        assert found.skill == pytest.approx(0, abs=1e-9)
    else:
        assert found.skill is None


def test_figures_without_anything_behind_them_are_missing_and_not_zero() -> None:
    nothing = calibration([])
    assert (nothing.predictions, nothing.scored, nothing.intervals) == (0, 0, 0)
    assert (nothing.brier, nothing.skill, nothing.coverage, nothing.supported, nothing.mean_level) == (None,) * 5
    open_ended = calibration([(said(0.6), ended("inconclusive")), (said(0.6), ended("equivalent", 0.01))])
    assert (open_ended.brier, open_ended.scored, open_ended.intervals) == (None, 0, 2)
    assert open_ended.verdicts == {"inconclusive": 1, "equivalent": 1}


def test_intervals_are_counted_where_an_estimate_may_be_trusted() -> None:
    pairs = [
        (said(0.5), ended("supported", 0.1)),
        (said(0.5, level=0.6), ended("inconclusive", 0.3)),
        (said(0.5), ended("invalid", 0.1)),
        (said(0.5), ended("invalid", None)),
    ]
    found = calibration(pairs)
    assert found.intervals == 2
    assert found.mean_level == pytest.approx(0.7)
    assert found.coverage is not None
    assert (found.coverage.mean, found.predictions) == (0.5, 4)
    assert found.coverage.low == pytest.approx(0.0945, abs=1e-4)  # Wilson 1927: 1 of 2


def test_brier_scores_a_probability_against_what_came() -> None:
    scores = [brier(p, name) for p, name in ((1.0, "supported"), (1.0, "refuted"), (0.5, "refuted"))]
    assert scores == [0.0, 1.0, 0.25]
    assert brier(0.7, "inconclusive") is brier(0.7, "invalid") is None
