from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.proposals.metric_choice import RequestedMetric
from studies.metrics import Refused, Results, Value, kind_named
from studies.metrics.registry import define_metric, values_of
from studies.records.design import SUCCESS, Metric
from tests.studies.metrics.test_kinds import ASKED, part

LOGGED = kind_named("logged")


def metric(of: str, **changes: Any) -> Metric:
    return define_metric(LOGGED, replace(ASKED, of=of, **changes))


def logged(name: str, *values: float | None, **more: float) -> Results:
    metrics = [more | ({} if value is None else {name: value}) for value in values]
    return Results(part(0, 2), part(len(values), 9), (), [{"step": n, "metrics": m} for n, m in enumerate(metrics, 1)])


@pytest.mark.parametrize(
    ("reduction", "value"),
    [
        ("first3", 2.0), ("mean:2-4", 3.0), ("mean:5-5", 5.0), ("last", 6.0), ("max", 8.0), ("slope", 7.0),
        ("first10", 4.5),
    ],
)  # fmt: skip
def test_a_reduction_makes_one_number_of_the_steps(reduction: str, value: float) -> None:
    own = metric(f"actor/entropy:{reduction}:0..9")
    found = values_of(own, logged("actor/entropy", *range(1, 9)))
    assert found[own.key].value == pytest.approx(value)
    assert {SUCCESS, f"{SUCCESS}/initial"} <= found.keys()


def test_ranges_follow_from_the_name_or_are_given_and_a_slope_may_fall_as_far_as_it_rises() -> None:
    for of, ends in (
        ("critic/success/mean:last", (0.0, 1.0)), ("critic/rewards/mean:max", (0.0, 1.0)),
        ("response_length/mean:first10", (64.0, 0.0)), ("actor/grad_norm:last:5..0", (5.0, 0.0)),
        ("critic/success/mean:slope", (-1.0, 1.0)),
    ):  # fmt: skip
        found = metric(of, tokens=64)
        assert (found.worst, found.best) == ends
        assert RequestedMetric.parse(f"logged:{of}").text == f"logged:{of}"


def test_a_sudden_rise_counts_as_the_range_and_values_beyond_it_are_refused() -> None:
    """A straight line over four steps of 0 and four of 1 rises by 4/3."""
    own = metric("critic/success/mean:slope")
    for sign, values in ((1, (0.0,) * 4 + (1.0,) * 4), (-1, (1.0,) * 4 + (0.0,) * 4)):
        assert values_of(own, logged("critic/success/mean", *values))[own.key].value == sign
    wide = metric("actor/entropy:slope:0..1")
    with pytest.raises(Refused, match="within its range"):
        values_of(wide, logged("actor/entropy", 0.0, 3.0, 6.0))


def test_constant_groups_are_read_as_a_share_of_the_steps_groups() -> None:
    own = metric("batch/constant_groups:last")
    value = values_of(own, logged("batch/constant_groups", 4.0, 2.0, 3.0, **{"batch/groups": 8.0}))[own.key].value
    assert value == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ("", "no name"), ("actor/entropy", "NAME:REDUCTION"), ("actor/entropy:last", "range"), ("a b:median", "median"),
        ("actor/entropy:mean:9-3:0..1", "9-3"), ("actor/entropy:last:1..1", "1..1"), ("x:last:nan..1", "nan"),
        ("x:last:1e999..1", "1e999"), ("x:last:-1e308..1e308", "1e308"), ("actor/entropi:first10", "range of"),
        ("x:first0:0..1", "first0"), ("../x:last:0..1", "../x"),
    ],
)  # fmt: skip
def test_what_names_no_number_of_a_training_is_refused_with_the_form(of: str, told: str) -> None:
    with pytest.raises(Refused, match=re.escape(told)):
        metric(of)


@given(st.text(max_size=40))
def test_any_text_is_a_metric_of_finite_ends_or_refused(of: str) -> None:
    try:
        found = metric(of)
    except Refused:
        return
    assert abs(found.worst) + abs(found.best) < float("inf")


def test_a_training_that_does_not_log_it_is_refused_as_outcome_and_lost_for_no_claim_as_mediator() -> None:
    own, run = metric("actor/entropy:last:0..3"), logged("actor/entropy", None, None, 1.0)
    with pytest.raises(Refused, match="1 of 3"):
        values_of(own, run)
    success = Metric(meaning="m", episodes=20, beside={"e": own, "s": metric("critic/success/mean:last")})
    assert values_of(success, run) == {SUCCESS: Value(0.45, 20), f"{SUCCESS}/initial": Value(0.1, 20)}
    assert "beside" not in Metric(meaning="m", episodes=20).model_dump()
