"""A world of curves plants its effect in the metric's unit, and its runs keep their course."""

from __future__ import annotations

from statistics import fmean

import pytest
from simlab.worlds.curve_world import BATCH, PlantedCurves
from simlab.worlds.hidden_curves import CurveArm, CurveWorld
from simlab.worlds.topics import ComparisonTopic

ASK = ComparisonTopic("learning_rate", (1e-3, 3e-3))
CONTROL, TREATMENT = {"learning_rate": 1e-3}, {"learning_rate": 3e-3}


def world(effect: float = -0.1, collapses: float = 0.0) -> PlantedCurves:
    arm = CurveArm(collapses=collapses)
    return PlantedCurves(3, ASK, "episodes", CurveWorld(arm, arm), effect, over_all=True)


def test_a_time_is_planted_in_training_episodes() -> None:
    planted = world()
    assert planted.true_value(TREATMENT) - planted.true_value(CONTROL) == pytest.approx(-0.1 * 20 * BATCH)
    assert planted.kept_value(TREATMENT) == planted.true_value(TREATMENT)


def test_runs_are_faster_by_what_is_planted() -> None:
    planted, at = world(), []
    for place in (CONTROL, TREATMENT):
        courses = [planted.run(place, seed).course for seed in range(300)]
        times = [next(s for s in range(201) if course.at(s / 200) >= 0.7) / 200 for course in courses if course]
        assert len(times) == 300
        at.append(fmean(times))
    assert at[1] - at[0] == pytest.approx(-0.1, abs=0.02)


def test_the_same_run_always_comes_to_the_same() -> None:
    first, again, other = (world().run(CONTROL, seed) for seed in (1, 1, 2))
    assert (first.hidden, first.initial) == (again.hidden, again.initial)
    assert first.course is not None
    assert again.course is not None
    assert other.course is not None
    assert first.course.at(0.5) == again.course.at(0.5) != other.course.at(0.5)


def test_a_run_that_collapses_says_so() -> None:
    assert world(effect=0.0, collapses=1.0).run(CONTROL, 1).collapsed
    assert not world().run(CONTROL, 1).collapsed


def test_an_effect_that_no_treatment_has_is_refused() -> None:
    with pytest.raises(ValueError, match="some treatment has"):
        world(effect=-0.9).true_value(CONTROL)
