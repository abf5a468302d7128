"""Ten simulated days in any weather end as they do at peace: the same runs and verdicts, and nothing twice."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from simlab.flights.faults import Rates
from simlab.flights.flight import Flight, scratch
from simlab.haul.voyage import Voyage, sail
from simlab.haul.voyages import ASKS, BASE, DAYS, KNOBS, differences, twice, voyage_of
from simlab.haul.weather import CALM, DAY_S, HOUR_S, KINDS, FirstTriesFail, Weather
from simlab.worlds.world import Hill, MainEffect, Planted

from research.scheduling.steps import BUDGET_RULE
from research.study.controller import BEAT_S

ROUNDED_S = 0.001
"""What is charged is rounded to, each time."""

RUN_LENGTH = 4.2
"""How many times as long the runs of a short study are."""
LITTLE_DAYS = 13.5
"""A little more than the design needs at its price."""
SHORT_TOPIC = (
    "What are the two best values of learning rate and number of epochs on the guessing game? Replicate it on arith."
)
STAGES = {"noise", "screen", "confirm", "replicate"}

pytestmark = pytest.mark.timeout(900)


def short_of(*, planted: bool = True, budget_days: float = 30.0, report: bool = True) -> Flight:
    """Return a study of as many days and of every stage, but of two fields and few, longer runs.

    What its controllers do in a weather is done as often, on a state that is a quarter as large.
    """
    whole = voyage_of(days=RUN_LENGTH * DAYS, budget_days=budget_days)
    assert isinstance(whole.world, Planted)
    fields = "learning_rate", "epochs"
    world = replace(
        whole.world,
        knobs={name: KNOBS[name] for name in fields},
        base={name: BASE[name] for name in fields},
        effects=(Hill("learning_rate", 3e-3, 0.05), MainEffect("epochs", {2: 0.1, 4: 0.15})) if planted else (),
        seed_sd=0.02,
    )
    return replace(whole, topic=SHORT_TOPIC, world=world, asks={**ASKS, "effect": 0.1}, report=report)


def sailed(flight: Flight, weather: Weather = CALM, look_s: float = HOUR_S) -> Voyage:
    with scratch() as folder:
        return sail(flight, folder, weather, look_s=look_s)


@cache
def at_peace(*, planted: bool) -> Voyage:
    return sailed(short_of(planted=planted, report=False))


def test_at_peace_it_is_ten_days_of_nearly_two_hundred_runs_in_every_stage() -> None:
    """Not reported, and looked at when something ends: the rest is for the short ones."""
    calm = sailed(replace(voyage_of(), report=False), look_s=DAY_S)
    assert len(calm.state.runs) >= 180
    assert calm.days == pytest.approx(DAYS, rel=0.1)
    assert {run.spec.phase for run in calm.state.runs.values()} == STAGES
    assert {verdict.verdict for verdict in calm.state.verdicts} == {"supported"}
    assert twice(calm) == []


def test_at_peace_a_short_one_has_every_stage_and_finds_what_is_planted_alone() -> None:
    calm = at_peace(planted=True)
    assert calm.days == pytest.approx(DAYS, rel=0.1)
    assert {run.spec.phase for run in calm.state.runs.values()} == STAGES
    assert {verdict.verdict for verdict in calm.state.verdicts} == {"supported"}
    assert not any(verdict.verdict == "supported" for verdict in at_peace(planted=False).state.verdicts)
    assert twice(calm) == []


@pytest.mark.parametrize(("seed", "planted"), [(2, True), (3, False)])
def test_in_any_weather_it_ends_as_it_does_at_peace(seed: int, planted: bool) -> None:
    calm = at_peace(planted=planted)
    rough = sailed(short_of(planted=planted, report=planted), Weather.of(seed, calm.days))
    assert differences(calm, rough) == []
    assert twice(rough) == []
    assert rough.orphans == ()
    assert rough.drifts == (() if planted else None)
    assert rough.most_at_once <= rough.state.settings["parallel"]
    assert rough.state.worked_s <= rough.attended_s + ROUNDED_S * len(rough.events), "charged for what was not worked"
    assert rough.state.worked_s >= 0.9 * rough.attended_s, "worked for nothing"
    assert set(rough.ends) >= {"killed", "PlannerFailed", "ControllerLeaseLost"}
    assert rough.clicks


def test_a_budget_that_does_not_last_is_held_in_any_weather() -> None:
    """Most runs fail once, which no price foresees."""
    failing = FirstTriesFail(Rates(crash=0.9), 1)
    rough = sailed(short_of(budget_days=LITTLE_DAYS), replace(Weather.of(1, DAYS), faults=failing))
    state = rough.state
    assert any(decision.rule == BUDGET_RULE for decision in state.decisions), state.concluded_reason
    assert state.worked_s <= state.budget_s + 2 * BEAT_S, "two controllers at once may each work a minute unseen"
    assert state.worked_s >= 0.5 * state.budget_s
    assert all(run.status in ("collected", "invalid") for run in state.runs.values() if run.attempts)
    assert twice(rough) == []
    assert rough.orphans == ()
    assert rough.drifts == ()


def test_a_plan_holds_every_kind_of_trouble_and_the_first_outage_meets_the_planning() -> None:
    plan = Weather.of(3, DAYS)
    assert {entry.kind for entry in (*plan.spells, *plan.blows)} == set(KINDS)
    assert plan.goes_on("planner", 0.0)
    assert max(plan.moments()) < 2 * DAYS * DAY_S
