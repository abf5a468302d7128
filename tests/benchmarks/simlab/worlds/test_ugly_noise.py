"""Ugly worlds are as ugly as their cell says, and fair to the claim: the planted difference is the true one."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab.flights.flight import Flight, fly
from simlab.worlds.topics import ASKS
from simlab.worlds.ugly_noise import CELLS, MIXTURE, NAMES, Ugliness, drawn, ugliness

from studies.records.run_specs import PLUMBING_ARM

ASK = ASKS[0]
MANY = 600


@pytest.mark.parametrize("cell", NAMES)
def test_the_planted_difference_is_that_of_trainings_that_do_not_collapse(cell: str) -> None:
    world, _ = ugliness(cell, 5).worlds(ASK, 5, 0.1)
    control, treatment = ({ASK.field: value} for value in ASK.values)
    assert world.kept_value(treatment) - world.kept_value(control) == pytest.approx(0.1)


@given(seed=st.integers(0, 10**6), shift=st.sampled_from([-0.1, 0.0, 0.1]))
def test_a_mixture_is_a_function_of_its_seed_and_within_bounds(seed: int, shift: float) -> None:
    ugly = drawn(seed)
    assert ugly == ugliness(MIXTURE, seed)
    assert all(0 <= rate <= 0.3 for rate in ugly.collapses)
    assert 1 <= ugly.ratio <= 5
    assert 0.5 <= ugly.bank <= 2
    world, _ = ugly.worlds(ASK, seed, shift)
    assert all(0.1 < world.kept_value({ASK.field: value}) < 0.95 for value in ASK.values)


def test_mixtures_differ_between_studies() -> None:
    assert len({drawn(seed) for seed in range(50)}) == 50


@pytest.mark.parametrize(("cell", "ratio"), [("noise 1:2", 2.0), ("noise 1:5", 5.0)])
def test_an_arm_is_louder(cell: str, ratio: float) -> None:
    world, _ = CELLS[cell].worlds(ASK, 1, 0.0)
    usual, loud = (
        stdev(world.success({ASK.field: value}, seed, world.steps) for seed in range(MANY)) for value in ASK.values
    )
    assert loud / usual == pytest.approx(ratio, rel=0.15)


@pytest.mark.parametrize(("cell", "wrong"), [("bank half the truth", 0.5), ("bank twice the truth", 2.0)])
def test_the_bank_is_wrong(cell: str, wrong: float) -> None:
    world, bank = CELLS[cell].worlds(ASK, 1, 0.0)
    assert bank is not None
    told, true = (stdev(one.run({}, seed).hidden for seed in range(MANY)) for one in (bank, world))
    assert told / true == pytest.approx(wrong, rel=0.15)
    assert CELLS[cell].loudness(ASK) == pytest.approx(1 / wrong, rel=1e-6)


def test_a_bank_may_see_no_collapse() -> None:
    world, bank = CELLS["collapses the bank never saw"].worlds(ASK, 1, 0.0)
    assert bank is not None
    assert not any(bank.run({}, seed).collapsed for seed in range(MANY))
    assert sum(world.run({}, seed).collapsed for seed in range(MANY)) / MANY == pytest.approx(0.15, abs=0.05)


def test_the_effect_that_is_seen_grows_with_the_noise_of_a_difference() -> None:
    assert Ugliness().loudness(ASK) == 1
    assert Ugliness(ratio=5.0).loudness(ASK) > Ugliness(ratio=2.0).loudness(ASK) > 1.25


def test_a_and_a_runs_come_from_the_world_of_the_bank() -> None:
    world, _ = Ugliness().worlds(ASK, 3, 0.0)
    landed = fly(Flight("two-worlds", ASK.topic, world, noise_world=replace(world, centre=0.8)))
    values = {"noise": [], "confirm": []}  # type: dict[str, list[float]]
    for run in landed.state.runs.values():
        found = run.measurements.get(run.spec.metric.key)
        if found is not None and run.spec.arm != PLUMBING_ARM:
            values[run.spec.phase].append(found.value)
    assert min(values["noise"]) > 0.65 > max(values["confirm"])


def test_a_collapse_shows_in_the_training_curve_and_keeps_a_part_of_the_gain() -> None:
    world, _ = Ugliness(collapses=(1.0, 1.0)).worlds(ASK, 4, 0.0)
    played = [world.run({}, seed) for seed in range(MANY)]
    above = sum(run.hidden > run.initial for run in played) / MANY
    assert all(run.peak is not None and run.peak - run.hidden > 0.4 * (run.peak - run.initial) for run in played)
    assert 0.3 < above < 0.8
    assert not math.isclose(played[0].hidden, played[1].hidden)
