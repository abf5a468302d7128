"""A claim is scored against the truth that its verdict names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simlab.flights.cases import sentences
from simlab.flights.flight import Flight, fly
from simlab.flights.records import FlownClaim, place_of, record
from simlab.worlds.world import MainEffect, Planted, Scalar

from swarm.job import Job, tunables

CLAIM = FlownClaim(
    "f", "h1", "group_size", truth=0.0, truth_kept=0.0, truth_all=-0.05, scope="not_collapsed", promised=0.1, power=0.8,
    sign=1, verdict="supported", estimate=0.05, low=0.01, high=0.09, level=0.95, n=(5, 5), collapsed=(0, 1), look=1,
    probability=0.5, brier=None, within_prediction=None, violations=(), exploratory=False,
)  # fmt: skip


def test_a_claim_on_trainings_that_do_not_collapse_is_false_where_those_do_not_differ() -> None:
    assert CLAIM.false
    assert not replace(CLAIM, truth=0.05).false
    assert replace(CLAIM, verdict="refuted").false_of_all is False


@pytest.mark.parametrize(("verdict", "said"), [("supported", 1), ("refuted", -1), ("inconclusive", 0), ("invalid", 0)])
def test_what_is_said_is_what_is_claimed(verdict: str, said: int) -> None:
    assert replace(CLAIM, verdict=verdict).said == said


def test_an_equivalence_that_is_said_not_to_be_zero_says_that_there_is_a_difference() -> None:
    small = replace(CLAIM, verdict="equivalent")
    assert not small.difference
    assert small.said == 1
    assert small.false
    assert not replace(small, low=-0.01).false
    assert replace(small, low=-0.09, high=-0.01).said == -1


def test_an_equivalence_is_false_from_the_margin_on() -> None:
    same = replace(CLAIM, verdict="equivalent", low=-0.01)
    assert not same.falsely_equivalent
    assert replace(same, truth=-0.1).falsely_equivalent
    assert not replace(same, truth=0.099).falsely_equivalent


def rates() -> Planted:
    """Return a world in which the learning rate alone matters."""
    marks = {name: mark for name, mark in tunables().items() if not isinstance(mark.ladder[0], str) and name != "steps"}
    base: dict[str, Scalar] = {}
    for name, mark in marks.items():
        usual = getattr(Job(), name)
        base[name] = mark.usual if usual is None else usual
    knobs = {name: mark.ladder for name, mark in marks.items()}
    rate = MainEffect("learning_rate", {0.01: 0.2, 0.003: 0.0})
    return Planted(seed=5, knobs=knobs, base=base, effects=(rate,), centre=0.5, seed_sd=0.04, steps=8)


def test_a_record_of_an_inquiry_counts_the_runs_and_claims_of_all_rounds() -> None:
    landed = fly(Flight("inquiry", "learning rate 3e-3 vs 1e-2 on arith", rates(), asks={"rounds": 2}))
    first, second = landed.state.rounds
    found = record(landed)
    assert [(claim.hypothesis, claim.found) for claim in found.claims] == [("h1", True), ("r2h1", True)]
    assert found.launched_runs == found.accounted_runs == found.launches == len(first.runs) + len(second.runs)
    assert sum(found.phases.values()) == found.launched_runs
    both = sum(run.seconds for entry in (first, second) for run in entry.runs.values())
    assert landed.run_hours == pytest.approx(both / 3600)
    assert place_of(landed, "h1")["learning_rate"] == 0.01
    assert {verdict.reason for entry in (first, second) for verdict in entry.verdicts} <= set(sentences(landed))
