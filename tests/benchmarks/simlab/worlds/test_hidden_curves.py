"""Hidden curves are worth what is planted: the mean over runs of what a metric would read off the curves themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simlab.worlds.hidden_curves import (
    CELLS,
    LINE,
    RATES,
    CurveArm,
    CurveWorld,
    HiddenCurves,
    Quantity,
    difference,
    drawn,
    planted,
    truth,
)

SHARES = np.linspace(0.0, 1.0, 161)
MANY = 8_000


def one(middle: float, top: float, lost: float = 0.0) -> HiddenCurves:
    return HiddenCurves(np.array([middle]), np.array([top]), np.array([lost]), np.ones(1))


def test_a_run_rises_to_its_top_and_one_that_collapses_loses_what_it_is_said_to() -> None:
    held, fell = (one(0.3, 0.9, lost).heights(SHARES)[0] for lost in (0.0, 0.5))
    assert held[0] == pytest.approx(0.2, abs=0.02)
    assert held[-1] == pytest.approx(0.9, abs=0.001)
    assert (np.diff(held) >= 0).all()
    assert np.allclose(fell[SHARES <= 0.6], held[SHARES <= 0.6])
    assert fell[-1] == pytest.approx(0.2 + 0.5 * 0.7, abs=0.02)


@pytest.mark.parametrize(("arm", "reached"), [(CurveArm(spread=0.0), 1.0), (CurveArm(spread=0.0, stuck=1.0), 0.0)])
def test_an_arms_time_is_when_its_runs_are_at_the_line(arm: CurveArm, reached: float) -> None:
    known = truth(arm, "episodes")
    assert known.reached == reached
    assert known.of_all == pytest.approx(0.5 if reached else 1.0, abs=0.002)


def test_late_and_stuck_runs_are_as_many_as_the_cell_says() -> None:
    for cell, missing in (("20 % late", 0.2), ("40 % late", 0.4), ("60 % late", 0.6), ("20 % stuck", 0.2)):
        assert truth(CELLS[cell].control, "episodes").reached == pytest.approx(1 - missing, abs=0.02), cell


@pytest.mark.parametrize("quantity", ["episodes", "area", "area:0.7"])
@pytest.mark.parametrize("cell", ["spreads .12 and .45", "tops .90 and .78", "20 % stuck in one arm"])
def test_an_effect_is_planted_in_the_metrics_own_unit(cell: str, quantity: Quantity) -> None:
    found = planted(CELLS[cell], quantity, 0.03, kept=True)
    assert found is not None
    assert difference(found, quantity, kept=True) == pytest.approx(0.03, abs=1e-3)
    source = np.random.default_rng(3)
    means = [_mean(found.arm(treated), quantity, source) for treated in (False, True)]
    assert means[1] - means[0] == pytest.approx(0.03, abs=0.012)


def _mean(arm: CurveArm, quantity: Quantity, source: np.random.Generator) -> float:
    """Return the mean over many runs, each read off by itself."""
    heights = arm.drawn(source, MANY).heights(SHARES)
    if quantity == "episodes":
        at = [np.flatnonzero(run >= LINE) for run in heights]
        return float(np.mean([SHARES[first[0]] if len(first) else 1.0 for first in at]))
    return float(np.trapezoid(np.minimum(heights, 1.0 if quantity == "area" else LINE), SHARES).mean())


def test_equal_times_are_no_equal_areas_where_the_tops_differ() -> None:
    found = planted(CELLS["tops .90 and .78"], "episodes", 0.0, kept=False)
    assert found is not None
    assert difference(found, "episodes", kept=False) == pytest.approx(0.0, abs=1e-3)
    assert difference(found, "area", kept=False) < -0.02


def test_what_no_treatment_can_have_is_not_planted() -> None:
    assert planted(CurveWorld(), "episodes", -0.9, kept=False) is None
    assert planted(RATES["50 % in both"], "collapse", 0.6, kept=False) is None


def test_a_rate_of_collapse_is_planted_as_it_stands() -> None:
    found = planted(RATES["15 % in both"], "collapse", 0.0, kept=False)
    assert found is not None
    assert found.treatment.collapses == 0.15
    fell = found.treatment.drawn(np.random.default_rng(1), MANY).lost > 0
    assert float(fell.mean()) == pytest.approx(0.15, abs=0.015)


def test_a_collapse_lowers_an_area_and_leaves_a_time_that_was_over() -> None:
    calm, risky = CurveArm(time=0.4), CurveArm(time=0.4, collapses=0.9)
    assert truth(risky, "area").of_all < truth(calm, "area").of_all - 0.1
    assert truth(risky, "episodes").of_all == pytest.approx(truth(calm, "episodes").of_all, abs=0.02)


def test_a_mixture_is_a_function_of_its_number_and_its_arms_differ() -> None:
    assert drawn(3) == drawn(3) == drawn(43)
    assert len({drawn(number) for number in range(40)}) == 40
    assert all(math.isclose(drawn(n).control.time, drawn(n).treatment.time) for n in range(40))
