"""Ten simulated days in any weather end as they do at peace: the same runs and verdicts, and nothing twice."""

from __future__ import annotations

from functools import cache

import pytest
from simlab.flights.flight import scratch
from simlab.haul.voyage import Voyage, sail
from simlab.haul.voyages import DAYS, differences, twice, voyage_of
from simlab.haul.weather import CALM, DAY_S, KINDS, Weather

from research.study.controller import BEAT_S

ROUNDED_S = 0.001
"""What is charged is rounded to, each time."""

pytestmark = pytest.mark.timeout(900)


def sailed(weather: Weather, *, planted: bool = True, budget_days: float = 30.0) -> Voyage:
    with scratch() as folder:
        return sail(voyage_of(planted=planted, budget_days=budget_days), folder, weather)


@cache
def at_peace(*, planted: bool) -> Voyage:
    return sailed(CALM, planted=planted)


def test_at_peace_it_is_ten_days_of_nearly_two_hundred_runs_in_every_stage() -> None:
    calm = at_peace(planted=True)
    assert len(calm.state.runs) >= 180
    assert calm.days == pytest.approx(DAYS, rel=0.1)
    assert {run.spec.phase for run in calm.state.runs.values()} == {"noise", "screen", "confirm", "replicate"}
    assert {verdict.verdict for verdict in calm.state.verdicts} == {"supported"}
    assert not any(verdict.verdict == "supported" for verdict in at_peace(planted=False).state.verdicts)
    assert twice(calm) == []
    assert calm.proof.drifts == ()


@pytest.mark.parametrize(("seed", "planted"), [(1, True), (3, False)])
def test_in_any_weather_it_ends_as_it_does_at_peace(seed: int, planted: bool) -> None:
    rough = sailed(Weather.of(seed, DAYS), planted=planted)
    assert differences(at_peace(planted=planted), rough) == []
    assert twice(rough) == []
    assert rough.orphans == ()
    assert rough.proof.drifts == ()
    assert rough.most_at_once <= rough.state.settings["parallel"]
    assert rough.state.worked_s <= rough.attended_s + ROUNDED_S * len(rough.events), "charged for what was not worked"
    assert rough.state.worked_s >= 0.9 * rough.attended_s, "worked for nothing"
    assert set(rough.ends) >= {"killed", "PlannerFailed", "ControllerLeaseLost"}
    assert rough.clicks


def test_a_budget_that_does_not_last_is_held_in_any_weather() -> None:
    rough = sailed(Weather.of(1, DAYS), budget_days=12.5)
    state = rough.state
    assert state.worked_s <= state.budget_s + 2 * BEAT_S, "two controllers at once may each work a minute unseen"
    assert state.worked_s >= 0.5 * state.budget_s
    assert all(run.status in ("collected", "invalid") for run in state.runs.values() if run.attempts)
    assert twice(rough) == []
    assert rough.orphans == ()
    assert rough.proof.drifts == ()


def test_a_plan_holds_every_kind_of_trouble_and_the_first_outage_meets_the_planning() -> None:
    plan = Weather.of(3, DAYS)
    assert {entry.kind for entry in (*plan.spells, *plan.blows)} == set(KINDS)
    assert plan.goes_on("planner", 0.0)
    assert max(plan.moments()) < 2 * DAYS * DAY_S
