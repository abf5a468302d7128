"""Whole inquiries: rounds are fresh, their truth is the planted one, and a killed controller changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simlab.flights.clock import SimClock
from simlab.flights.flight import FlightResult, fly
from simlab.flights.records import FlownClaim
from simlab.inquiries import suite
from simlab.inquiries.inquirers import Follower, InquiringLiar
from simlab.inquiries.suite import ASKERS, EFFECT, HERE, KINDS, KNOBS, InquiryKill, flights, overdrawn, record, survive

from studies import StudyState

TURN = len(KINDS)


@pytest.fixture(scope="module")
def followed() -> FlightResult:
    """An inquiry of effects that are there, asked by the follower."""
    return fly(flights(1, KINDS.index("effects") + TURN * ASKERS.index("follower"), (3,))[0])


@pytest.fixture(scope="module")
def lied() -> FlightResult:
    """An inquiry of nothing, asked by the liar."""
    return fly(flights(1, KINDS.index("nothing") + TURN * ASKERS.index("liar"), (2,))[0])


def test_no_run_and_no_seed_counts_in_two_rounds(followed: FlightResult) -> None:
    rounds = followed.state.rounds
    assert len(rounds) == 3
    seeds = [seed for each in rounds if each.design is not None for seed in each.design.seeds]
    assert len(set(seeds)) == len(seeds)
    assert sum(len(each.runs) for each in rounds) == len(followed.state.every_run)


def test_the_claims_of_all_rounds_stand_beside_what_was_planted(followed: FlightResult) -> None:
    found = record(followed)
    assert (found.kind, found.asker, found.refused) == ("effects", "follower", None)
    assert found.rounds[0][0].variable == "learning_rate"
    assert all(abs(claim.truth) == pytest.approx({"learning_rate": EFFECT, "epochs": 0.0}[claim.variable])
               for claims in found.rounds[:2] for claim in claims)  # fmt: skip
    assert found.within
    assert not found.overdrawn
    assert not found.duplicates + found.orphans
    assert found.runs == sum(bool(run.attempts) for run in followed.state.every_run.values()) > 20


def test_the_follower_asks_again_what_looked_largest(followed: FlightResult) -> None:
    told = [each.design.hypotheses[0] for each in followed.state.rounds if each.design is not None]
    asked = [(claim.variable, claim.control, claim.treatment) for claim in told]
    first = followed.state.rounds[0].verdicts[0]
    assert asked[1] == asked[0] if first.verdict == "inconclusive" else asked[1] not in asked[:1]
    assert isinstance(followed.flight.planner(SimClock()), Follower)


def test_the_liar_s_gamed_wishes_are_refused_and_the_rest_is_judged(lied: FlightResult) -> None:
    assert isinstance(lied.flight.planner(SimClock()), InquiringLiar)
    refused = [error for act in lied.state.planner_acts for error in act.rejected]
    assert any("must differ" in error for error in refused)
    assert any("cannot be held constant" in error for error in refused)
    assert record(lied).claims
    assert all(claim.truth == 0 for claim in record(lied).claims)


def test_a_trap_is_an_effect_in_one_environment_alone() -> None:
    world = flights(1, KINDS.index("trap"))[0].world
    here, there = (
        {value: world.kept_value({"learning_rate": value, "environment": name}) for value in KNOBS["learning_rate"]}
        for name in KNOBS["environment"]
    )
    assert abs(here[0.01] - here[0.003]) == pytest.approx(EFFECT)
    assert there[0.01] == pytest.approx(there[0.003])
    assert world.true_value({"learning_rate": 0.01}) < world.kept_value({"learning_rate": 0.01})
    assert KNOBS["environment"][0] == HERE


def test_of_two_that_matter_together_neither_does_alone() -> None:
    value = flights(1, KINDS.index("together"))[0].world.true_value
    assert value({"learning_rate": 0.01}) == value({"group_size": 16}) == value({})
    assert value({"learning_rate": 0.01, "group_size": 16}) == pytest.approx(value({}) + EFFECT)


def test_every_asker_and_kind_has_its_turn() -> None:
    names = [flight.planner(SimClock()).name for flight in flights(TURN * len(ASKERS))]
    assert {names.count(name) for name in ("follower", "liar")} == {TURN}
    assert names.count("rules") == 2 * TURN


def test_an_inquiry_ends_alike_whenever_its_controller_is_killed() -> None:
    at = suite.kills(0, 1)
    assert len(at) > 100
    assert {kill.written for kill in at} == {True, False}
    for kill in (at[len(at) // 2], InquiryKill(0, at[-10].at, True)):
        found = survive(kill)
        assert found is not None
        assert found.same
        assert not found.duplicates + found.orphans


def test_levels_of_rounds_without_an_effect_count_up_to_the_first_false_claim(followed: FlightResult) -> None:
    rounds, found = followed.state.rounds, record(followed).rounds
    known: FlownClaim = found[0][0]
    nothing = replace(known, truth=0.0, verdict="inconclusive")
    wrong = replace(known, truth=0.0, verdict="supported", sign=1)

    def spends(*claims: FlownClaim, states: tuple[StudyState, ...] = rounds) -> bool:
        return overdrawn(states, [(claim,) for claim in claims], 0)

    first = (rounds[0],) * 3
    assert not spends(nothing, states=first[:1])
    assert spends(nothing, nothing, nothing, states=first)
    assert not spends(wrong, nothing, nothing, states=first)


def test_what_is_false_in_any_round_counts_once_an_inquiry(followed: FlightResult) -> None:
    own = record(followed)
    false = replace(own.rounds[0][0], truth=0.0, verdict="supported", sign=1)
    twice = replace(own, rounds=((false,), (false,)))
    [figure] = [each for each in suite.figures([own, twice], []) if each.name == suite.ANY_FALSE]
    assert (figure.count, figure.of) == (1, 2)
    table = suite.rows([twice])
    assert [row["false differences"] for row in table] == [1, 1]
