"""The shipped loop keeps the bars on simulated studies, as far as a small sample can tell."""

from __future__ import annotations

import pytest
from simlab.flights.cases import TemptingCase, score
from simlab.flights.records import FlightRecord, flown
from simlab.suites import baits, budget, control, effects, equivalence, faults, null, planners, search, traps
from simlab.worlds.ugly_noise import NAMES

from tests.benchmarks.simlab.bounds import least, most

HARMLESS, HARMFUL = NAMES[::2], NAMES[1::2]
"""Kinds of ugliness that are met without an effect, and with one: each is met once."""
POWERED_STUDIES = 6
"""Studies whose true difference is the promised effect."""


@pytest.fixture(scope="module")
def nothing() -> list[FlightRecord]:
    """Studies of knobs that do nothing, one of each cell, with three arms."""
    return [flown(flight) for flight in null.flights(1, first=1, cells=HARMLESS)]


def test_nothing_is_seldom_called_something(nothing: list[FlightRecord]) -> None:
    judged = [record for record in nothing if record.claims]
    assert len(judged) >= 0.7 * len(nothing), [record.refused for record in nothing]
    wrong = sum(any(claim.false for claim in record.claims) for record in judged)
    assert wrong <= most(len(judged), null.MOST_FALSE)


def test_every_cell_says_what_it_kept_by_silence(nothing: list[FlightRecord]) -> None:
    rows = null.rows(nothing)
    assert [row["cell"] for row in rows] == list(HARMLESS)
    held = {figure.name.rpartition(": ")[0] for figure in null.figures(nothing) if figure.bar} & set(HARMLESS)
    assert held == {row["cell"] for row in rows if row["claims"]}
    assert all(row["claims"] or row["refused"] for row in rows)


def test_intervals_hold_the_truth_as_often_as_they_say(nothing: list[FlightRecord]) -> None:
    covered = [claim.covered for record in nothing for claim in record.claims if claim.covered is not None]
    assert covered
    assert sum(covered) >= least(len(covered), 0.93)


def test_every_launched_run_is_accounted_for_once(nothing: list[FlightRecord]) -> None:
    assert all(record.launched_runs == record.accounted_runs > 0 for record in nothing)
    known = ("A/A", "noise", "from the ceiling")
    assert all(record.refused is None or any(why in record.refused for why in known) for record in nothing)
    assert not any(record.duplicates or record.orphans for record in nothing)


def test_the_promised_effect_is_found_as_often_as_promised() -> None:
    place = effects.SIZES.index(effects.EFFECT / effects.TOTAL_SD)
    flights = [effects.flights(1, first)[0] for first in range(place, place + 4 * POWERED_STUDIES, 4)]
    claims = [claim for flight in flights for claim in flown(flight).claims]
    assert len(claims) >= 0.6 * POWERED_STUDIES  # a bank that happens to be loud refuses the rest
    assert all(claim.power == pytest.approx(0.8) for claim in claims)
    assert sum(claim.difference * claim.truth > 0 for claim in claims) >= least(len(claims), 0.75)
    assert not any(claim.false for claim in claims)


def test_a_difference_beyond_the_margin_is_not_called_equivalent() -> None:
    records = [flown(equivalence.flights(1, first)[0]) for first in range(6) if first % 6 not in (3, 4)]
    claims = [claim for record in records for claim in record.claims]
    same = [claim for claim in claims if claim.verdict == "equivalent"]
    assert sum(abs(claim.truth_kept) >= equivalence.MARGIN - 1e-9 for claim in same) <= most(len(claims), 0.05)
    assert any(not claim.truth_kept for claim in same), [claim.verdict for claim in claims]


def test_under_every_ugliness_the_promised_effect_is_no_equivalence_and_keeps_its_sign() -> None:
    records = [flown(flight) for flight in effects.planted(1, first=1, cells=HARMFUL)]
    claims = [claim for record in records for claim in record.claims]
    assert claims
    assert list(null.by_cell(records)) == list(HARMFUL)
    assert not any(claim.false for claim in claims)
    assert sum(claim.falsely_equivalent for claim in claims) <= most(len(claims), effects.MOST_FALSELY_EQUIVALENT)
    assert len(effects.cell_figures(records)) == 3 * sum(
        row["refused"] < row["studies"] for row in effects.rows(records)
    )
    assert [row["cell"] for row in effects.rows(records)] == list(HARMFUL)


@pytest.mark.parametrize("case", baits.CASES, ids=lambda case: case.name)
def test_a_confound_does_not_pass_for_an_effect(case: TemptingCase) -> None:
    found = score(case, 0)
    assert found.score != "fooled", found


@pytest.mark.parametrize("case", traps.CASES, ids=lambda case: case.name)
def test_what_was_forged_or_demanded_is_no_result(case: TemptingCase) -> None:
    found = score(case, 0)
    assert found.score != "fooled", found
    assert found.score == "detected" or not case.named_by, found


def test_a_killed_controller_changes_nothing() -> None:
    survived = [faults.survive(kill) for kill in faults.kills(0, every=61)]
    assert survived
    assert all(one.reached and one.same and not one.duplicates and not one.orphans for one in survived), survived


def test_whatever_breaks_every_run_is_accounted_for() -> None:
    records = [flown(flight) for flight in faults.broken(8)]
    assert all(record.launched_runs == record.accounted_runs for record in records)
    assert not any(record.duplicates or record.orphans for record in records)
    assert not any(claim.difference * claim.truth < 0 for record in records for claim in record.claims)


def test_what_cannot_be_afforded_is_refused_with_a_price_that_works() -> None:
    for asked in map(budget.ask, budget.tenths(2, first=2)):
        assert asked.first.refused is not None
        assert not asked.first.launches
        assert asked.tries[-1].status == "concluded", asked.tries[-1].refused
        assert asked.informed is None or asked.informed.status == "concluded", asked.informed.refused


def test_no_budget_is_exceeded() -> None:
    records = [flown(flight) for flight in budget.slow(4)]
    assert all(budget.overspent(record) <= budget.POLLING_S for record in records)
    assert all(record.launched_runs == record.accounted_runs for record in records)


def test_a_persons_wish_is_carried_out_and_told() -> None:
    found = [control.obeyed(flight) for flight in control.flights(5)]
    assert all(one.lock_kept and not one.duplicates and not one.orphans for one in found), found
    assert all(one.done and one.told and not one.launched_after for one in found if one.asked), found
    assert any(one.asked for one in found)


@pytest.mark.parametrize("planner", [name for name in planners.PLANNERS if name not in ("rules", "script, gone")])
def test_no_planner_makes_a_claim_by_talking(planner: str) -> None:
    nothing, something = (flown(flight) for flight in planners.flights(planner, 2, first=4))
    assert nothing.claims, nothing.refused
    assert something.claims, something.refused
    assert not any(claim.false for claim in nothing.claims)


def test_a_planner_that_is_gone_launches_nothing() -> None:
    record = flown(planners.flights("script, gone", 1)[0])
    assert record.refused is not None
    assert not record.launches


def test_a_search_screens_confirms_and_claims_what_is_true() -> None:
    found = search.searched(search.flights(1, 3)[0])
    assert found.screened
    assert found.within
    assert found.claims, found.refused
    assert not any(claim.false for claim in found.claims)
