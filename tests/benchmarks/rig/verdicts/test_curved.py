"""Simulated runs are measured as real ones are, and their studies are scored against what was planted."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from metric_verdicts import METRICS, SPEED, goals
from rig.verdicts.curved import HORIZON, HORIZON_S, CurveStudy, measured, metric_of, simulate, unit
from simlab.worlds.hidden_curves import CELLS, PACES, RATES, CurveArm, Quantity, difference, planted, truth

from studies.metrics import kind_of

RUNS = 200


@pytest.mark.parametrize("quantity", ["episodes", "seconds", "area", "area:0.7"])
def test_runs_are_measured_near_the_truth_of_their_curves(quantity: Quantity) -> None:
    source = np.random.default_rng(5)
    found = [run.value for run in measured(quantity, CurveArm().drawn(source, RUNS), source)]
    assert fmean(found) / unit(quantity) == pytest.approx(truth(CurveArm(), quantity).of_all, abs=0.04)


def test_seconds_are_longer_where_steps_are_and_are_cut() -> None:
    slow, source = CurveArm(pace=1.5, pace_sd=0.1), np.random.default_rng(5)
    found = [run.value for run in measured("seconds", slow.drawn(source, RUNS), source)]
    assert fmean(found) / unit("seconds") == pytest.approx(truth(slow, "seconds").of_all, abs=0.04)
    assert truth(slow, "seconds").of_all == pytest.approx(1.5 * truth(CurveArm(), "seconds").of_all, rel=0.05)
    assert truth(slow, "episodes") == truth(CurveArm(), "episodes")
    never = list(measured("seconds", CurveArm(stuck=1.0, top_sd=0.0).drawn(source, 50), source))
    assert {run.value for run in never if not run.reached} == {HORIZON_S}


def test_arms_whose_steps_take_unequal_times_are_equal_in_seconds_and_not_in_episodes() -> None:
    world = planted(PACES["steps 1.5 times as long in one arm"], "seconds", 0.0, kept=False)
    assert world is not None
    assert difference(world, "seconds", kept=False) == pytest.approx(0.0, abs=1e-3)
    assert difference(world, "episodes", kept=False) < -0.1


def test_a_run_that_never_reaches_the_threshold_has_the_horizon() -> None:
    source = np.random.default_rng(6)
    runs = list(measured("episodes", CurveArm(stuck=1.0, top_sd=0.0).drawn(source, 50), source))
    assert sum(run.reached is False for run in runs) >= 45
    assert {run.value for run in runs if not run.reached} == {float(HORIZON)}


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 0.0, 0.02), (1.0, 0.95, 1.0)])
def test_a_planted_collapse_is_told_from_the_course(rate: float, least: float, most: float) -> None:
    source = np.random.default_rng(7)
    runs = list(measured("collapse", CurveArm(collapses=rate).drawn(source, RUNS), source))
    assert least <= fmean(run.value for run in runs) <= most


@pytest.mark.parametrize("quantity", ["episodes", "area", "area:0.7"])
def test_the_promised_effect_is_found_and_nothing_is_not(quantity: Quantity) -> None:
    nothing, effect = (simulate(CurveStudy(quantity, 5, CELLS["clean"], planted), 60) for planted in (False, True))
    assert nothing is not None
    assert effect is not None
    assert nothing.false <= 9  # 5 % of 60, at 99.9 %
    assert nothing.equivalent >= 30
    assert effect.found >= 38
    assert effect.wrong_sign == 0
    assert effect.falsely_equivalent <= 9


def test_of_times_that_are_mostly_cut_nothing_is_claimed() -> None:
    tally = simulate(CurveStudy("episodes", 5, CELLS["60 % late"], False), 40)
    assert tally is not None
    assert tally.unreached >= 20
    assert tally.runs_reached < 0.6 * tally.runs
    assert tally.unreached + tally.intervals == tally.studies


def test_a_verdict_on_trainings_that_get_there_is_scored_by_those_that_do() -> None:
    """Most samples hold no stuck run: of all trainings the claims are false, and they say that they are not of all."""
    tally = simulate(CurveStudy("episodes", 5, CELLS["20 % stuck in one arm"], False), 100)
    assert tally is not None
    assert tally.false_of_all >= 5
    assert tally.false == 0


def test_rates_of_collapse_are_told_apart_by_the_exact_test_alone() -> None:
    nothing, effect = (simulate(CurveStudy("collapse", 5, RATES["none collapse"], it), 80) for it in (False, True))
    assert nothing is not None
    assert effect is not None
    assert nothing.false == 0
    assert effect.found >= 45
    assert effect.wrong_sign == 0


def test_equal_times_read_off_areas_are_scored_as_speed() -> None:
    tally = simulate(CurveStudy("area", 8, CELLS["tops .90 and .78"], False, alike="episodes"), 60)
    assert tally is not None
    assert tally.false >= 4


def test_every_metric_is_one_that_a_study_can_ask_for() -> None:
    assert {kind_of(metric_of(name)).name for name in METRICS} == {"area", "episodes", "seconds", "collapse"}
    assert all(SPEED in cells for name, cells in METRICS.items() if name.startswith("area"))


def test_a_goal_is_missed_only_by_a_share_that_is_above_it() -> None:
    def row(false: int) -> dict[str, object]:
        figures = {"studies": 1000, "false": [false / 1000, 0, 0], "coverage": None}
        return {"metric": "area", "cell": "clean", "n": 3, "planted": False, "promised": True, "figures": figures}

    assert [figure.kept for figure in goals(row(50))] == [True]
    assert [figure.kept for figure in goals(row(80))] == [False]
    assert goals({**row(80), "cell": SPEED}) == []
