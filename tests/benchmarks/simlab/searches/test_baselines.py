from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simlab.searches.baselines import (
    BASELINES,
    Asha,
    BaselineSearch,
    EveryArmEverySeed,
    Greedy,
    RandomSearch,
    SingleSeedReader,
    Tpe,
)
from simlab.searches.run_budget import RunBudget
from simlab.searches.shipped import Shipped
from simlab.worlds.families import drawn

from tests.benchmarks.simlab.hand_made import HandMade

LADDER = (1, 2, 3, 4)
CONTROL = {"a": 1, "b": 1}
WAYS: tuple[BaselineSearch, ...] = (*BASELINES, Shipped())


def slope(lucky: dict[int, float] | None = None) -> HandMade:
    """Each rung of either ladder is worth 0.1."""
    values = {(a, b): 0.1 * (a + b) for a, b in product(LADDER, LADDER)}
    return HandMade(values, {"a": LADDER, "b": LADDER}, lucky or {})


def flat(lucky: dict[int, float] | None = None) -> HandMade:
    """Nothing makes a difference."""
    return HandMade(dict.fromkeys(product(LADDER, LADDER), 0.5), {"a": LADDER, "b": LADDER}, lucky or {})


def whole_runs(count: int) -> float:
    return count * 9 / 60


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(WAYS), st.floats(1.0, 20.0), st.integers(0, 50))
def test_no_way_spends_more_than_its_budget(way: BaselineSearch, runs: float, seed: int) -> None:
    world = slope()
    found = way.search(world, CONTROL, whole_runs(1) * runs, seed)
    assert found.hours <= whole_runs(1) * runs * (1 + 1e-6)
    assert found.runs == len(world.ran)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_search_with_the_same_seed_finds_the_same(way: BaselineSearch) -> None:
    world = drawn("main effects", 3)
    once, again = (way.search(world, world.base, 16 * world.hours(world.base), 5) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("way", [RandomSearch(), Tpe(), Asha()], ids=lambda way: way.name)
def test_a_tuner_claims_that_its_highest_run_beats_the_control(way: BaselineSearch) -> None:
    found = way.search(slope(), CONTROL, whole_runs(20), 0)
    (claim,) = found.claims
    assert claim.better == found.chosen
    assert claim.than == CONTROL
    assert claim.gain(slope()) > 0


@pytest.mark.parametrize("way", [RandomSearch(), Tpe(), Asha()], ids=lambda way: way.name)
def test_a_tuner_whose_control_came_out_highest_claims_nothing(way: BaselineSearch) -> None:
    found = way.search(flat({0: 0.3}), CONTROL, whole_runs(10), 0)
    assert found.claims == ()
    assert found.chosen == CONTROL


def test_random_search_tries_no_place_twice_until_all_are_tried() -> None:
    world = slope()
    RandomSearch().search(world, CONTROL, whole_runs(100), 0)
    places = [place for place, _, _ in world.ran[1:]]
    assert sorted(places) == sorted(product(LADDER, LADDER))


def test_asha_lets_a_third_go_on_and_pays_only_what_is_added() -> None:
    world = slope()
    found = Asha().search(world, CONTROL, whole_runs(12), 0)
    lengths = [steps for _, _, steps in world.ran[1:]]
    short, middle, whole = (lengths.count(steps) for steps in (1, 3, 9))
    assert short + middle + whole == len(lengths)
    assert short > middle > whole >= 1
    assert found.hours == pytest.approx((9 + short * 1 + middle * 2 + whole * 6) / 60)


def test_asha_sends_the_highest_on() -> None:
    world = slope()
    Asha().search(world, CONTROL, whole_runs(12), 0)
    started = [sum(place) for place, _, steps in world.ran[1:] if steps == 1]
    promoted = [sum(place) for place, _, steps in world.ran[1:] if steps == 3]
    assert max(started[:3]) == promoted[0]


def test_greedy_keeps_every_change_with_a_higher_score_and_claims_it() -> None:
    lucky = {1: 0.2, 2: 0.1, 3: 0.3}
    found = Greedy().search(flat(lucky), CONTROL, whole_runs(5), 0)
    assert len(found.claims) == 2  # 0.5, then 0.7 (kept), 0.6, 0.8 (kept), 0.5
    assert found.claims[0].than == CONTROL
    assert found.claims[1].than == found.claims[0].better
    assert found.chosen == found.claims[1].better
    assert [claim.gain(flat()) for claim in found.claims] == [0.0, 0.0]


def test_greedy_changes_one_knob_at_a_time() -> None:
    world = slope()
    found = Greedy().search(world, CONTROL, whole_runs(15), 0)
    assert all(sum(claim.better[name] != claim.than[name] for name in world.knobs) == 1 for claim in found.claims)


def test_the_single_seed_reader_claims_every_arm_above_and_goes_on_from_the_best() -> None:
    found = SingleSeedReader().search(slope(), CONTROL, whole_runs(7), 0)
    assert [claim.better for claim in found.claims[:3]] == [{"a": a, "b": 1} for a in (2, 3, 4)]
    assert [claim.better for claim in found.claims[3:]] == [{"a": 4, "b": b} for b in (2, 3, 4)]
    assert found.chosen == {"a": 4, "b": 4}


def test_the_single_seed_reader_believes_luck() -> None:
    found = SingleSeedReader().search(flat({2: 0.1}), CONTROL, whole_runs(4), 0)
    assert [claim.better for claim in found.claims] == [{"a": 3, "b": 1}]


def test_the_classical_design_runs_every_arm_with_every_seed() -> None:
    world = slope({at: 0.01 * (at % 3) for at in range(16)})
    EveryArmEverySeed(seeds=4, most_arms=3).search(world, CONTROL, whole_runs(100), 0)
    places = [place for place, _, _ in world.ran]
    assert len(set(places)) == 4
    assert all(places.count(place) >= 4 for place in places)


def test_the_classical_design_claims_what_its_test_holds_and_nothing_more() -> None:
    noise = {at: (0.01, -0.01, 0.02, -0.02, 0.005)[(at * at + at // 5) % 5] for at in range(20)}
    found = EveryArmEverySeed(most_arms=3).search(slope(noise), CONTROL, whole_runs(20), 0)
    assert len(found.claims) == 3
    assert EveryArmEverySeed(most_arms=3).search(flat(noise), CONTROL, whole_runs(20), 0).claims == ()


def test_a_bill_refuses_what_does_not_fit_and_charges_nothing_for_it() -> None:
    bill = RunBudget(slope(), whole_runs(1))
    bill.score(CONTROL, 5)
    assert not bill.affords(CONTROL)
    with pytest.raises(ValueError, match=r"expected a run of at most 0\.067 h; found 0\.150 h"):
        bill.score(CONTROL)
    assert bill.hours == pytest.approx(5 / 60)
    assert bill.runs == 1


def test_going_on_with_a_run_costs_what_is_added_and_beginning_anew_costs_all() -> None:
    bill = RunBudget(slope(), whole_runs(3))
    bill.score(CONTROL, 3, seed=1)
    assert bill.affords(CONTROL, 9, seed=1, times=1)
    bill.score(CONTROL, 9, seed=1)
    assert bill.hours == pytest.approx(9 / 60)
    bill.play(CONTROL, 9, seed=1)
    assert bill.hours == pytest.approx(18 / 60)
