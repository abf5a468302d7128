from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.design import Design, Metric
from studies.records.procedure import CollapseRule
from studies.records.verdict import Verdict
from studies.statistics.proportions import boschloo
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import judge
from studies.verdicts.scope import find_unobserved_misses
from tests.golden import assert_golden
from tests.studies.measured import HORIZON, measured_design, metric
from tests.studies.synthetic import runs_of, staked

TIME, RATE = metric("episodes", 0.7), metric("collapse")
QUICK = [1400.0, 1500.0, 1350.0, 1600.0, 1450.0]
SLOW = [2900.0, 3100.0, 3300.0, 2800.0, 3000.0]
NEVER = float(HORIZON)


def verdict(design: Design, control: list[float] | ArmData, treatment: list[float]) -> Verdict:
    arms = (control if isinstance(control, ArmData) else runs_of(control, "c"), runs_of(treatment, "t"))
    data = {entry.name: each for entry, each in zip(design.arms, arms, strict=True)}
    return judge(staked(design), "h1", data, look=1)


def test_fewer_episodes_support_a_claim_of_a_decrease_and_refute_one_of_an_increase() -> None:
    faster = verdict(measured_design(TIME), SLOW, QUICK)
    assert faster.verdict == "supported"
    assert faster.high < 0
    assert_golden(faster.reason)
    assert [(rate.count, rate.of) for rate in faster.reached] == [(5, 5), (5, 5)]
    assert verdict(measured_design(TIME), QUICK, SLOW).verdict == "refuted"


COST = TIME.model_copy(update={"key": "hidden/cost", "threshold": None, "name": "cost", "unit": "tokens"})
CUT: dict[str, tuple[Metric, list[float] | ArmData, list[float], list[tuple[int, int]]]] = {
    "more than half of an arm": (TIME, [NEVER, NEVER, NEVER, 3000.0, 3100.0], QUICK, [(2, 5), (5, 5)]),
    "nobody got there": (TIME, [NEVER] * 5, [NEVER] * 5, [(0, 5), (0, 5)]),
    "runs that broke down": (
        TIME, runs_of(SLOW[:2], "c", worst={f"c-x{n}": "NAN" for n in range(3)}), QUICK, [(2, 5), (5, 5)]),
    "a cost that is cut": (COST, [NEVER] * 4 + [100.0], QUICK, [(1, 5), (5, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
def test_where_more_than_half_of_an_arm_did_not_get_there_it_is_inconclusive_and_no_number(name: str) -> None:
    chosen, control, treatment, reached = CUT[name]
    found = verdict(measured_design(chosen, counted_as_worst=("NAN",)), control, treatment)
    assert found.verdict == "inconclusive"
    assert {found.estimate, found.low, found.high, found.p, found.mean_control, found.mean_treatment} == {None}
    assert [(rate.count, rate.of) for rate in found.reached] == reached
    assert_golden(found.reason)
    few = verdict(measured_design(TIME), [NEVER, NEVER, *SLOW[:3]], QUICK)
    assert (few.mean_control, few.reached[0].count) == (pytest.approx((2 * NEVER + sum(SLOW[:3])) / 5), 3)
    if name == "more than half of an arm":
        assert found.reached[0].high == pytest.approx(0.853, abs=1e-3)


FALLEN, NEAR = runs_of([*SLOW, 3000.0], "c", collapsed={"c-5": "it fell"}), [value - 400 for value in QUICK]
LATE = [value + 1500 for value in SLOW]
SCOPES: dict[str, tuple[dict[str, Any], list[float] | ArmData, list[float], tuple[str, str]]] = {
    "a collapse costs the arm with fewer": (
        {"collapse": CollapseRule(drop=3000.0)}, [x + 250 for x in QUICK], QUICK, ("supported", "not_collapsed")),
    "a collapse costs next to nothing": ({"collapse": CollapseRule(drop=1.0)}, SLOW, QUICK, ("supported", "all")),
    "of 40 runs of the arm ahead none collapsed": (
        {"collapse": CollapseRule(drop=1000.0)}, FALLEN, QUICK * 8, ("supported", "all")),
    "no open share undoes it": ({"scope_reached": True}, SLOW * 8, QUICK * 8, ("supported", "all")),
    "a miss of the arm ahead is in its mean": (
        {"scope_reached": True}, LATE, [*NEAR * 3, NEVER], ("supported", "all")),
    "a miss of the arm behind": ({"scope_reached": True}, [*SLOW[:4], NEVER], NEAR, ("supported", "reached")),
    "nothing is claimed": ({"scope_reached": True}, QUICK, [x * 1.1 for x in QUICK], ("inconclusive", "reached")),
    "a lock from before": ({}, SLOW, QUICK, ("supported", "all")),
}  # fmt: skip


@pytest.mark.parametrize("name", SCOPES)
def test_a_verdict_on_a_time_speaks_of_the_trainings_that_no_open_share_takes_from_it(name: str) -> None:
    changes, control, treatment, expected = SCOPES[name]
    found = verdict(measured_design(TIME, **changes), control, treatment)
    assert (found.verdict, found.scope) == expected
    assert_golden(found.reason)


def test_where_every_run_got_there_a_time_speaks_of_trainings_that_do() -> None:
    """An arm in which nobody of five happened to be stuck looks certain; that one in five may be is not ruled out."""
    found = verdict(measured_design(TIME, scope_reached=True), SLOW, QUICK)
    assert (found.verdict, found.scope) == ("supported", "reached")
    (behind, ahead) = find_unobserved_misses(TIME, found)
    assert behind.breaking_share is None  # stuck runs of the slower arm take nothing from the claim
    assert ahead.upper == pytest.approx(1 - 0.05 ** (1 / 5))
    assert ahead.breaking_share * (NEVER - found.mean_treatment) == pytest.approx(-found.high)
    assert f" {100 * ahead.breaking_share:.0f} %" in found.reason
    assert_golden(found.reason)
    without = measured_design(TIME)
    assert "scope_reached" not in without.model_dump(mode="json")
    assert found.inputs_sha256 != verdict(without, SLOW, QUICK).inputs_sha256


def test_an_equivalence_of_times_is_undone_from_either_arm() -> None:
    design = measured_design(TIME, scope_reached=True, equivalence_margin=512.0)
    found = verdict(design, QUICK, [value + 60 for value in QUICK])
    assert (found.verdict, found.scope) == ("equivalent", "reached")
    control, treatment = find_unobserved_misses(TIME, found)
    assert control.breaking_share == pytest.approx((512 + found.equivalence.low) / (NEVER - found.mean_control))
    assert treatment.breaking_share < control.breaking_share  # which is slower already
    higher = verdict(design, QUICK, QUICK[::-1])
    assert higher.scope == "reached"


@pytest.mark.parametrize(("count", "name"), [((5, 0), "supported"), ((0, 5), "refuted"), ((2, 0), "inconclusive")])
def test_rates_are_told_apart_by_the_exact_p(count: tuple[int, int], name: str) -> None:
    design = measured_design(RATE, test="boschloo")
    control, treatment = ([1.0] * k + [0.0] * (5 - k) for k in count)
    found = verdict(design, control, treatment)
    assert (found.verdict, found.test) == (name, "boschloo")
    assert found.p == pytest.approx(boschloo((count[0], 5), (count[1], 5)))
    assert found.estimate == pytest.approx((count[1] - count[0]) / 5)
    assert_golden(found.reason)
    few, many = (verdict(measured_design(RATE, test="boschloo", equivalence_margin=0.2), *[[0.0] * n] * 2)
                 for n in (5, 40))  # fmt: skip
    assert (few.verdict, many.verdict, many.equivalence.p < 0.05) == ("inconclusive", "equivalent", True)


@given(st.integers(0, 6), st.integers(0, 6))
def test_a_claim_on_rates_is_made_exactly_when_p_is_not_above_the_level(a: int, b: int) -> None:
    found = verdict(measured_design(RATE, test="boschloo"), [1.0] * a + [0.0] * (6 - a), [1.0] * b + [0.0] * (6 - b))
    assert (found.verdict in ("supported", "refuted")) == (found.p <= 0.05)
