from __future__ import annotations

from itertools import product

import pytest
from simlab.worlds.landscape import Landscape, Plays, RecordedRun
from simlab.worlds.recorded import Recorded
from simlab.worlds.world import best

from swarm.job import Job

KNOBS = {"learning_rate": (0.001, 0.01), "epochs": (1, 2)}
SEEDS = (1, 2, 3)


def landscape() -> Landscape:
    """Solves more with each rung, each ladder and each seed."""
    runs = {
        (place, seed): RecordedRun(
            before=10, after=40 + 10 * number + seed, search=(20 + number, 30 + number + seed), train=(1,) * 4,
            seconds=360.0 * (1 + number),
        )
        for number, place in enumerate(product(*KNOBS.values()))
        for seed in SEEDS
    }  # fmt: skip
    return Landscape("arith", KNOBS, SEEDS, (2, 4), Plays(100, 100, 10), {"steps": 4}, {}, runs)


def test_the_truth_is_the_mean_of_what_was_recorded_and_the_best_is_the_landscape_s() -> None:
    world = Recorded(landscape())
    assert world.true_value({"learning_rate": 0.001, "epochs": 1}) == pytest.approx(0.42)
    assert best(world) == landscape().best()


def test_every_run_is_one_that_was_recorded() -> None:
    world, place = Recorded(landscape()), {"learning_rate": 0.01, "epochs": 2}
    played = [world.run(place, seed) for seed in range(60)]
    assert {one.hidden for one in played} == {landscape().value(place, seed) for seed in SEEDS}
    assert {one.search for one in played} == {0.34, 0.35, 0.36}
    assert world.run(place, 7) == world.run(place, 7)


def test_another_number_draws_other_runs() -> None:
    place = {"learning_rate": 0.01, "epochs": 2}
    draws = [tuple(Recorded(landscape(), number).run(place, seed).hidden for seed in range(12)) for number in range(5)]
    assert len(set(draws)) > 1


def test_a_short_run_shows_the_search_tasks_of_its_rung_and_costs_its_share() -> None:
    world, place = Recorded(landscape()), {"learning_rate": 0.001, "epochs": 2}
    assert world.run(place, 1, 2).hidden == world.run(place, 1, 2).search == 0.21
    assert world.hours(place) == pytest.approx(0.2)
    assert world.hours(place, 2) == pytest.approx(0.1)


def test_a_run_between_two_rungs_shows_the_one_it_passed_and_one_before_the_first_is_refused() -> None:
    world, place = Recorded(landscape()), {"learning_rate": 0.001, "epochs": 2}
    assert world.run(place, 1, 3) == world.run(place, 1, 2)
    with pytest.raises(ValueError, match="expected a run of at least 2 steps; found 1"):
        world.run(place, 1, 1)


def test_the_control_is_what_a_job_is_by_default() -> None:
    assert Recorded(landscape()).base == {"learning_rate": Job().learning_rate, "epochs": Job().epochs}
