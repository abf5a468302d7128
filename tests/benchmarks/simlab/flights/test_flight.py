"""A flight is a study of the shipped loop that says it is simulated, and the same study whenever it is flown."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import cast

import pytest
from simlab.flights.attempt_files import SIMULATED
from simlab.flights.flight import POLL_S, Flight, fly, fly_in, scratch
from simlab.flights.killing import killed
from simlab.measurement.pool import work
from simlab.suites.search import flights
from simlab.suites.traps import ASK, world
from simlab.worlds.world import Planted

from research.design.pricing import price_of
from research.scheduling.steps import SHRINK_RULE


def flight(name: str = "flight", **changes: object) -> Flight:
    return Flight(name, ASK.topic, world(1, effect=0.1), **changes)  # type: ignore[arg-type]


def test_a_flight_is_the_same_study_to_the_byte_whenever_it_is_flown() -> None:
    first, second = fly(flight()), fly(flight())
    assert first.state.head_hash == second.state.head_hash
    assert first.starts == second.starts


def test_another_name_draws_other_seeds() -> None:
    first, second = fly(flight()), fly(flight("another"))
    assert {run.spec.seed for run in first.state.runs.values()}.isdisjoint(
        run.spec.seed for run in second.state.runs.values()
    )


def test_whoever_reads_a_flights_report_is_told_that_it_is_simulated() -> None:
    landed = fly(flight(report=True))
    assert landed.state.status == "concluded"
    assert landed.report is not None
    assert SIMULATED in landed.report
    assert SIMULATED in landed.state.machine["platform"]


def test_what_a_topic_cannot_be_read_as_is_refused_and_launches_nothing() -> None:
    landed = fly(Flight("unread", "the weather in May", world(1)))
    assert landed.refused is not None
    assert landed.state.status == "stopped"
    assert not landed.starts


def test_a_killed_process_is_told_apart_from_one_that_ends_or_fails() -> None:
    assert killed(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert not killed(lambda: None)
    with pytest.raises(RuntimeError, match="flies or is killed"):
        killed(lambda: os._exit(3))


def test_work_keeps_the_order_and_speaks_when_it_is_done() -> None:
    told: list[str] = []
    assert work("squares", _square, [3, 1, 2], tell=told.append) == [9, 1, 4]
    assert told[-1].startswith("squares: 3 of 3")


def _square(number: int) -> int:
    return number * number


def test_a_search_whose_runs_take_five_times_their_price_ends_with_verdicts_on_its_confirmation() -> None:
    """The noise is learned by a study of its own; the second one's runs each slow their neighbour."""
    calm = flights(1)[0]
    crowded = replace(calm, name="crowded", world=replace(cast(Planted, calm.world), crowding=6.5))
    with scratch() as folder:
        fly_in(calm, folder)
        landed = fly_in(crowded, folder)
    state = landed.state
    assert landed.refused is None
    assert state.locked_design is not None
    assert state.locked_design.price.seconds_per_run == 26.0
    assert price_of(state, "confirm") == 130.0
    assert state.verdicts
    assert all(min(verdict.n_control, verdict.n_treatment) >= 2 for verdict in state.verdicts)
    assert state.worked_s <= crowded.budget_s + POLL_S
    assert [d.action for d in state.decisions if d.rule == SHRINK_RULE]
