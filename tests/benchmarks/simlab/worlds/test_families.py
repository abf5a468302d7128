from __future__ import annotations

import pytest
from simlab.worlds.families import LEARNED_ON, LEAST_GAIN, NOTHING, drawn, names, world_gain
from simlab.worlds.world import MOST, grid


@pytest.mark.parametrize("family", names())
def test_every_world_is_the_same_each_time_and_differs_from_the_next(family: str) -> None:
    once, again, other = drawn(family, 1), drawn(family, 1), drawn(family, 2)
    place = grid(once)[17]
    assert once.true_value(place) == again.true_value(place)
    assert once.run(place, 3) == again.run(place, 3)
    assert once.base != other.base or once.true_value(place) != other.true_value(place)


@pytest.mark.parametrize("family", [family for family in names() if family != NOTHING])
def test_there_is_something_to_find_that_noise_does_not_cut_off(family: str) -> None:
    world = drawn(family, 4)
    assert world_gain(world) >= LEAST_GAIN
    assert max(world.true_value(place) for place in grid(world)) <= MOST - 0.05


def test_where_nothing_matters_all_are_worth_the_same() -> None:
    world = drawn(NOTHING, 0)
    assert {world.true_value(place) for place in grid(world)} == {world.true_value(world.base)}


def test_families_that_were_learned_on_are_fewer_than_those_held_out() -> None:
    assert set(LEARNED_ON) < set(names())
    assert len(names()) > 2 * len(LEARNED_ON)


def test_a_family_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"expected a family of worlds \(main effects, .*found 'moon'"):
        drawn("moon", 0)
