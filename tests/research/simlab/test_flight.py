"""A flight is a study of the shipped loop that says it is simulated, and the same study whenever it is flown."""

from __future__ import annotations

import os
import signal

import pytest

from research.simlab.flight import Flight, fly
from research.simlab.killing import killed
from research.simlab.pool import work
from research.simlab.remains import SIMULATED
from research.simlab.suites.traps import ASK, world


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
