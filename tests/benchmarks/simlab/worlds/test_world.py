"""A planted truth is what its runs come to on average, and nothing but a function of names."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simlab.worlds.world import (
    Collapse,
    Hill,
    Interaction,
    JointEffect,
    MainEffect,
    Planted,
    Slope,
    Threshold,
    best,
    grid,
    scale,
)

KNOBS = {"group_size": (4, 8, 16), "learning_rate": (3e-4, 1e-3, 3e-3)}
BASE = {"group_size": 8, "learning_rate": 1e-3}
WORLD = Planted(7, KNOBS, BASE, (Slope("group_size", 0.04, 8),), seed_sd=0.05)
MANY = 1500


def test_the_mean_of_many_runs_is_the_true_value() -> None:
    values = [WORLD.run({"group_size": 16}, seed).hidden for seed in range(MANY)]
    error = 4 * stdev(values) / math.sqrt(MANY)
    assert fmean(values) == pytest.approx(WORLD.true_value({"group_size": 16}), abs=error)


def test_runs_spread_by_the_seeds_and_by_the_evaluation() -> None:
    values = [WORLD.run({}, seed).hidden for seed in range(MANY)]
    expected = math.sqrt(0.05**2 + 0.45 * 0.55 / 512)
    assert stdev(values) == pytest.approx(expected, rel=0.1)


def test_collapses_count_in_the_true_value() -> None:
    world = replace(WORLD, collapse=Collapse(0.3, floor=0.05))
    runs = [world.run({}, seed) for seed in range(MANY)]
    assert fmean(run.collapsed for run in runs) == pytest.approx(0.3, abs=0.05)
    assert fmean(run.hidden for run in runs) == pytest.approx(world.true_value({}), abs=0.025)


def test_a_collapse_may_belong_to_a_part_of_the_grid() -> None:
    world = replace(WORLD, collapse=Collapse(0.0, Threshold("learning_rate", 3e-3, 1.0)))
    assert world.run({"learning_rate": 3e-3}, 1).collapsed
    assert not world.run({"learning_rate": 1e-3}, 1).collapsed


def test_a_collapse_may_end_above_the_beginning_and_the_runs_that_hold_have_a_mean_of_their_own() -> None:
    world = replace(WORLD, centre=0.6, collapse=Collapse(0.1, MainEffect("group_size", {16: 0.4}), lost=(0.6, 0.9)))
    runs = [world.run({"group_size": 16}, seed) for seed in range(MANY)]
    fallen, held = ([run.hidden for run in runs if run.collapsed is how] for how in (True, False))
    assert len(fallen) / MANY == pytest.approx(0.5, abs=0.05)
    assert world.collapse.chance({"group_size": 8, "learning_rate": 1e-3}) == 0.1
    assert fmean(held) == pytest.approx(world.kept_value({"group_size": 16}), abs=0.01)
    assert fmean(held + fallen) == pytest.approx(world.true_value({"group_size": 16}), abs=0.02)
    assert world.initial < fmean(fallen) < world.initial + 0.4 * (fmean(held) - world.initial)
    assert all(run.peak is not None and run.peak > run.hidden for run in runs if run.collapsed)


def test_heavy_tails_spread_runs_as_much_and_farther_out() -> None:
    world = replace(WORLD, tails="t3", seed_sd=0.03)
    values = sorted(world.success({}, seed, world.steps) for seed in range(8 * MANY))
    quarter = len(values) // 4
    assert stdev(values) == pytest.approx(0.03, rel=0.2)
    # The quartiles of t with 3 degrees of freedom are at 0.765, its scale 1 / sqrt(3).
    assert (values[3 * quarter] - values[quarter]) / 2 == pytest.approx(0.03 * 0.765 / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize(
    ("effect", "place", "shift"),
    [
        (MainEffect("group_size", {16: 0.1}), {"group_size": 16}, 0.1),
        (MainEffect("group_size", {16: 0.1}), {"group_size": 8}, 0.0),
        (Slope("group_size", 0.1, 8), {"group_size": 4}, -0.1),
        (Hill("learning_rate", 1e-3, 0.1), {"learning_rate": 4e-3}, -0.4),
        (Threshold("group_size", 16, 0.2), {"group_size": 8}, 0.0),
        (Threshold("group_size", 16, 0.2), {"group_size": 16}, 0.2),
        (Interaction(("group_size", "learning_rate"), 0.1, (8, 1e-3)), {"group_size": 16, "learning_rate": 2e-3}, 0.1),
        (Interaction(("group_size", "learning_rate"), 0.1, (8, 1e-3)), {"group_size": 16}, 0.0),
        (JointEffect({"group_size": 16, "learning_rate": 3e-3}, 0.3), {"group_size": 16, "learning_rate": 3e-3}, 0.3),
        (JointEffect({"group_size": 16, "learning_rate": 3e-3}, 0.3), {"group_size": 16}, 0.0),
    ],
)
def test_an_effect_has_its_shape(effect: object, place: dict[str, float], shift: float) -> None:
    world = replace(WORLD, effects=(effect,))
    assert world.true_value(place) - WORLD.centre == pytest.approx(shift)


@given(seed=st.integers(0, 2**31), steps=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_a_run_is_a_function_of_its_names(seed: int, steps: int) -> None:
    again = Planted(7, KNOBS, BASE, (Slope("group_size", 0.04, 8),), seed_sd=0.05)
    assert WORLD.run({"group_size": 4}, seed, steps) == again.run({"group_size": 4, "learning_rate": 1e-3}, seed, steps)


def test_another_world_gives_other_runs() -> None:
    assert WORLD.run({}, 3) != replace(WORLD, seed=8).run({}, 3)


@pytest.mark.parametrize("planted", [0.8, -0.6])
def test_runs_of_one_seed_go_together_as_planted(planted: float) -> None:
    world = replace(WORLD, pairing=planted, episodes=100_000, difficulty=0.0)
    pairs = [(world.success({}, seed, 40), world.success({"group_size": 4}, seed, 40)) for seed in range(MANY)]
    left, right = zip(*pairs, strict=True)
    covariance = fmean((a - fmean(left)) * (b - fmean(right)) for a, b in pairs)
    assert covariance / (stdev(left) * stdev(right)) == pytest.approx(planted, abs=0.06)


def test_a_place_may_be_louder_than_another() -> None:
    world = replace(WORLD, louder=MainEffect("group_size", {4: 1.0}), episodes=100_000, difficulty=0.0)
    loud, usual = ([world.success({"group_size": size}, seed, 40) for seed in range(MANY)] for size in (4, 8))
    assert stdev(loud) / stdev(usual) == pytest.approx(2.0, rel=0.1)


def test_early_rungs_go_with_the_end_as_far_as_planted() -> None:
    knobs = {"group_size": tuple(range(2, 66, 2)), "learning_rate": tuple(1e-4 * n for n in range(1, 33))}
    effects = (Slope("group_size", 0.02, 8), Hill("learning_rate", 1e-3, 0.01))
    loose = Planted(3, knobs, {"group_size": 8, "learning_rate": 1e-3}, effects, seed_sd=0.0, rung_correlation=0.3)

    def early(world: Planted) -> float:
        pairs = [(world.success(place, 1, 4), world.true_value(place)) for place in grid(world)]
        left, right = zip(*pairs, strict=True)
        covariance = fmean((a - fmean(left)) * (b - fmean(right)) for a, b in pairs)
        return covariance / (stdev(left) * stdev(right))

    assert early(replace(loose, rung_correlation=1.0)) > 0.99
    assert early(loose) == pytest.approx(0.3 + 0.7 * 4 / 40, abs=0.1)


def test_the_best_place_is_found_on_the_grid() -> None:
    world = replace(WORLD, effects=(Hill("learning_rate", 1e-3, 0.1), Slope("group_size", 0.05, 8)))
    place, value = best(world)
    assert place == {"group_size": 16, "learning_rate": 1e-3}
    assert value == pytest.approx(0.5)


def test_neighbours_slow_a_run() -> None:
    world = replace(WORLD, crowding=0.5)
    assert world.seconds({}, 40, neighbours=2) - world.startup_s == 2 * (world.seconds({}, 40) - world.startup_s)
    assert world.hours({}) == world.seconds({}, world.steps) / 3600


def test_a_word_has_no_place_on_a_scale() -> None:
    with pytest.raises(ValueError, match="use a Table"):
        scale("grpo")
