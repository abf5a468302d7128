"""A session's planning: interrupted, it leaves a study that stands still and says why."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.planner.digest import Digest
from research.planner.protocol import Check, PlannerTurn
from research.study.session import Session
from studies import EventLog
from tests.research.bench import STUDY, Bench
from tests.research.fakes import ScriptedPlanner


class Signalled(ScriptedPlanner):
    """A planner during whose turn somebody signals the controller."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        os.kill(os.getpid(), self._number)
        return super().act(digest, check)


class Silent:
    """Nobody watches."""

    def observe(self, state: object) -> None:
        pass

    def note(self, line: str) -> None:
        pass


@pytest.fixture
def log(bench: Bench) -> Iterator[EventLog]:
    with closing(EventLog(bench.home.database)) as log:
        yield log


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_planning_stops_the_study_cleanly(
    bench: Bench, log: EventLog, number: signal.Signals
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    session = Session(bench.home, log, STUDY, Signalled(number))
    state = session.plan()
    assert (state.status, state.stopped_reason) == ("stopped", "interrupted by the user")
    assert session.run(Silent()).status == "stopped", "there is nothing to end"
    assert (state.design, dict(state.runs)) == (None, {})
    assert signal.getsignal(signal.SIGTERM) is before
