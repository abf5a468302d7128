"""Rivals of an inquiry search the same world, at the same cost, and are held against the same truth."""

from __future__ import annotations

from typing import Any

import pytest
from simlab.inquiries import rivals
from simlab.inquiries.rivals import GUESS, LIAR, OURS, RIVALS, RivalResult, RivalTask, figures
from simlab.searches.until_significant import UntilSignificant
from simlab.suites.regret import MethodResult
from simlab.worlds.families import drawn


@pytest.fixture(scope="module")
def found() -> RivalResult:
    """What all came to in one world of quiet seeds, at 40 runs."""
    return rivals.asked(RivalTask("quiet seeds", 0, 40))


def test_every_way_is_asked_about_the_same_world_within_its_cost(found: RivalResult) -> None:
    assert set(found.results) == {OURS, GUESS, LIAR, *(rival.name for rival in RIVALS)}
    assert not [way for way, result in found.results.items() if result.over]
    assert all(result.regret is not None and result.regret >= 0 for result in found.results.values())


def test_what_the_loop_leads_to_is_what_it_confirmed(found: RivalResult) -> None:
    ours = found.results[OURS]
    assert found.rounds >= 1
    assert ours.claims
    assert min(ours.claims) > 0
    assert ours.regret is not None
    assert ours.regret < 1


def test_worlds_come_from_families_with_something_to_gain_at_every_budget() -> None:
    tasks = rivals.tasks(3)
    assert {task.runs for task in tasks} == set(rivals.RUNS)
    assert "nothing" not in {task.family for task in tasks}
    assert len({(task.family, task.number) for task in tasks}) == 3


def test_testing_until_it_is_significant_claims_what_is_not_there() -> None:
    claims = [
        claim.gain(world)
        for seed in range(6)
        for world in [drawn("nothing", seed)]
        for claim in UntilSignificant().search(world, world.base, 100.0, seed).claims
    ]
    assert claims
    assert not any(claims)


def answer(runs: int, **regrets: float) -> RivalResult:
    ways: Any = dict.fromkeys([OURS, GUESS, LIAR, *(rival.name for rival in RIVALS)], 0.5) | regrets
    results = {way: MethodResult(way, regret, (), False, 1.0, False) for way, regret in ways.items()}
    return RivalResult(RivalTask("pairs", 0, runs), results, False, 1)


def test_a_rival_that_ends_nearer_the_best_is_a_miss() -> None:
    told = {figure.name: figure for figure in figures([answer(runs, ajet=0.4, greedy=0.1) for runs in rivals.RUNS])}
    assert told["40 runs: regret of greedy above that of ajet"].kept is False
    assert told["40 runs: regret of tpe above that of ajet"].kept is True
