from __future__ import annotations

from itertools import product

import pytest
from simlab.searches.run_budget import RunBudget
from simlab.searches.shipped import CONFIRMING, CONTROL, Shipped, confirm, design_of, screened
from simlab.worlds.families import drawn

from research.design.screen_defaults import default_screen, default_seeds
from research.screening import steps_in_all
from studies.records.design_parts import Knob
from tests.benchmarks.simlab.hand_made import HandMade

LADDER = (1, 2, 3, 4)
BASE = {"a": 1, "b": 1}


def slope(rise: float = 0.1) -> HandMade:
    """Every rung of either ladder is worth `rise`; runs differ by a little luck, the same for each place and seed."""
    values = {(a, b): 0.1 + rise * (a + b) for a, b in product(LADDER, LADDER)}
    lucky = {at: 0.01 * ((at * 7) % 5 - 2) for at in range(1000)}
    return HandMade(values, {"a": LADDER, "b": LADDER}, lucky)


def search(world: HandMade, runs: float = 30) -> tuple[object, HandMade]:
    return Shipped().search(world, BASE, runs * world.hours(BASE), 0), world


def test_a_clear_best_is_found_and_claimed() -> None:
    world = slope()
    found = Shipped().search(world, BASE, 30 * world.hours(BASE), 0)
    assert found.chosen == {"a": 4, "b": 4}
    assert found.chosen in [claim.better for claim in found.claims]
    assert all(claim.than == BASE and claim.gain(world) > 0 for claim in found.claims)


def test_where_nothing_matters_nothing_is_claimed() -> None:
    world = slope(0.0)
    assert Shipped().search(world, BASE, 30 * world.hours(BASE), 0).claims == ()


def test_claims_rest_on_seeds_that_no_screening_run_had() -> None:
    _, world = search(slope())
    screening = {seed for _, seed, _ in world.ran if seed < CONFIRMING}
    confirming = {seed for _, seed, _ in world.ran if seed >= CONFIRMING}
    assert screening == {0}
    assert len(confirming) == default_seeds(30) or confirming < set(range(CONFIRMING, CONFIRMING + default_seeds(30)))
    assert {place for place, seed, _ in world.ran if seed >= CONFIRMING} >= {(1, 1)}


def test_what_is_decided_at_an_early_look_gets_no_more_runs() -> None:
    world = slope(0.12)
    found = Shipped(seeds=12).search(world, BASE, 60 * world.hours(BASE), 0)
    assert found.claims
    assert found.runs < 15 + 3 * 12


def test_a_budget_too_small_for_a_screen_is_left_alone() -> None:
    world = slope()
    found = Shipped().search(world, BASE, 5 * world.hours(BASE), 0)
    assert (found.chosen, found.claims, found.runs) == (BASE, (), 0)


def test_no_treatment_is_left_open_while_the_control_stops() -> None:
    world = drawn("everything", 2)
    knobs = [Knob(field=name, values=values) for name, values in world.knobs.items()]
    screen = default_screen(knobs, 30, steps=world.steps)
    assert screen is not None
    design = screened(design_of(world.base, screen, range(CONFIRMING, CONFIRMING + 5)), RunBudget(world, 100.0))
    verdicts, values = confirm(design, RunBudget(world, 100.0))
    assert set(verdicts) == {claim.id for claim in design.hypotheses}
    assert len(values[CONTROL]) == max(len(runs) for runs in values.values())
    assert all(verdict.final or verdict.verdict != "inconclusive" for verdict in verdicts.values())


@pytest.mark.parametrize("runs", [12, 20, 40, 80])
def test_the_usual_screen_and_its_confirmation_fit_the_budget(runs: int) -> None:
    knobs = [Knob(field=name, values=LADDER) for name in "abcd"]
    screen = default_screen(knobs, runs, steps=20)
    assert screen is not None
    assert steps_in_all(screen) / 20 + (1 + screen.confirmed) * default_seeds(runs, screen.confirmed) <= runs
    assert [rung.steps for rung in screen.rungs] == [10]
    assert screen.bound is not None
    assert screen.initial <= screen.candidates


def test_a_screen_has_no_more_candidates_than_there_are_combinations() -> None:
    knobs = [Knob(field="a", values=LADDER)]
    screen = default_screen(knobs, 100, steps=20)
    assert screen is not None
    assert screen.candidates == 3
    assert default_screen(knobs, 100, steps=20, points=2) is None


def test_short_runs_that_are_known_to_tell_go_first_and_fit_the_budget_too() -> None:
    knobs = [Knob(field=name, values=LADDER) for name in "abc"]
    plain, telling = default_screen(knobs, 24, steps=32), default_screen(knobs, 24, steps=32, telling=4)
    assert plain is not None
    assert telling is not None
    assert telling.candidates > plain.candidates
    assert [rung.steps for rung in telling.rungs] == [4, 32]
    assert steps_in_all(telling) / 32 + (1 + telling.confirmed) * default_seeds(24) <= 24


def test_a_budget_that_runs_out_ends_the_confirmation_after_a_seed_of_an_arm_and_is_not_left_over() -> None:
    world = slope()
    screen = default_screen([Knob(field=name, values=LADDER) for name in "ab"], 20, steps=9)
    assert screen is not None
    design = screened(design_of(BASE, screen, range(CONFIRMING, CONFIRMING + 5)), RunBudget(world, 100.0))
    poor = RunBudget(world, 8 * world.hours(BASE))
    verdicts, values = confirm(design, poor)
    assert poor.hours == pytest.approx(poor.budget)
    assert sorted(len(runs) for runs in values.values()) == [2, 3, 3]
    assert set(verdicts) == {claim.id for claim in design.hypotheses}


def test_a_screen_that_money_ends_keeps_the_best_of_those_it_ran() -> None:
    world = slope()
    screen = default_screen([Knob(field=name, values=LADDER) for name in "ab"], 20, steps=9)
    assert screen is not None
    bill = RunBudget(world, 6 * world.hours(BASE))
    design = screened(design_of(BASE, screen, range(CONFIRMING, CONFIRMING + 3)), bill, 3 * world.hours(BASE))
    tried = {place for place, _, _ in world.ran}
    assert bill.hours <= 3 * world.hours(BASE)
    assert 2 <= len(tried) < screen.candidates
    assert {tuple(arm.overrides.values()) for arm in design.arms[1:]} <= tried
