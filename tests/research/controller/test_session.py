"""Tests of session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest

from research.controller.controller import INTERRUPTED
from research.controller.options import ResearchOptions, make_request
from research.controller.session import (
    PLANNER_OPTIONS,
    Session,
    StudyRequest,
    create_study,
    hold_lease,
    require_files,
    require_here,
)
from research.errors import NotReady
from research.installation.base_job import base_job_of, model_folder
from research.installation.home import Home
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.planners.factory import make_planner
from research.planners.rules import RulesPlanner
from studies import ControllerLeaseLost, EventLog, LeaseHeld, fold
from swarm.errors import InvalidRequest
from swarm.job import Job
from tests.research.bench import STUDY, Bench
from tests.research.controller.test_driver import Notes
from tests.research.factories import make_home
from tests.research.fakes import ScriptedPlanner
from tests.research.model_folders import model_at

CONTROLLER = """
import sys
from pathlib import Path
from research.controller.session import hold_lease
from research.installation.home import Home
from studies import EventLog
home = Home(Path(sys.argv[1]), sys.argv[2]).prepare()
with hold_lease(home, EventLog(home.database), sys.argv[3], print):
    print("drives", flush=True)
    sys.stdin.read()
"""


@contextmanager
def controller(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(home.path), home.database, STUDY], stdin=-1, stdout=-1
    )
    try:
        assert process.stdout.readline() == b"drives\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def unexpected(line: str) -> None:
    raise AssertionError(f"expected nothing to be said; found {line}")


@pytest.fixture
def first(tmp_path: Path) -> Home:
    return Home(tmp_path / "first", f"sqlite:///{tmp_path / 'shared.db'}").prepare()


@pytest.fixture
def second(tmp_path: Path, first: Home) -> Home:
    return Home(tmp_path / "second", first.database).prepare()


@pytest.mark.slow
def test_a_second_installation_drives_no_study_whose_controller_lives(first: Home, second: Home) -> None:
    with closing(EventLog(first.database)) as log, controller(first) as holder:
        with (
            pytest.raises(LeaseHeld, match=rf"study {STUDY}; process {holder.pid} on \S+ drives it, in {first.path}"),
            hold_lease(second, log, STUDY, unexpected),
        ):
            raise AssertionError("two controllers")
        with hold_lease(second, log, "another-study", unexpected) as lease:
            lease.check()
        holder.kill()
        holder.wait()
        with hold_lease(second, log, STUDY, unexpected) as lease:
            assert lease.fencing_token == 2


def test_a_study_is_gone_on_with_where_its_evidence_lies(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "first")
    other = Home(tmp_path / "second", bench.home.database).prepare()
    with closing(EventLog(other.database)) as log:
        require_here(other, log, fold(log.read(STUDY)))  # nothing was begun
        with hold_lease(bench.home, log, STUDY, unexpected):
            bench.loop().tick()
        state = fold(log.read(STUDY))
        require_here(bench.home, log, state)
        with pytest.raises(NotReady, match=rf"in {other.path}; it is in {bench.home.path} on \S+\. "):
            require_here(other, log, state)
        with pytest.raises(NotReady, match=rf"they are in {bench.home.path} on"):
            require_files(other, log, STUDY)
        shutil.rmtree(bench.home.study(STUDY))
        require_files(bench.home, log, STUDY)  # its own files are gone, which a proof is to say


def lost() -> None:
    raise ControllerLeaseLost("another one has it")


def test_a_controller_that_lost_its_lease_writes_nothing_and_ends_no_attempt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loop().tick()
    before = bench.events()
    bench.check = lost
    loop = bench.loop()
    for act in (loop.tick, lambda: loop.stop("enough"), lambda: loop.halt("refused")):
        with pytest.raises(ControllerLeaseLost):
            act()
    assert bench.events() == before
    assert all(handle.stops == 0 for handle in bench.sandbox.handles.values())


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9])
def test_a_lease_that_is_lost_within_a_tick_lets_no_further_attempt_begin(tmp_path: Path, after: int) -> None:
    bench, checks = Bench(tmp_path), chain(repeat(lambda: None, after), repeat(lost))
    bench.check = lambda: next(checks)()
    with pytest.raises(ControllerLeaseLost):
        bench.drive(bench.loop())
    events = bench.events()
    with pytest.raises(ControllerLeaseLost):
        bench.loop().tick()
    assert bench.events() == events


class Signalled(ScriptedPlanner):
    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        os.kill(os.getpid(), self._number)
        return super().act(digest, check)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_interrupt_while_planning_may_leave_the_study_to_another_controller(bench: Bench) -> None:
    session = Session(bench.home, bench.log, STUDY, Signalled(signal.SIGTERM), interruption=lambda: None)
    with pytest.raises(KeyboardInterrupt):
        session.plan()
    assert fold(bench.events()).stopped_reason is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_planning_stops_it_cleanly(bench: Bench, number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM)
    session = Session(bench.home, bench.log, STUDY, Signalled(number))
    state = session.plan()
    assert (state.status, state.stopped_reason) == ("stopped", INTERRUPTED)
    assert session.run(Notes()).status == "stopped"  # there is nothing to end
    assert (state.design, dict(state.runs)) == (None, {})
    assert signal.getsignal(signal.SIGTERM) is before


def test_options_of_a_language_model_are_kept_for_whoever_goes_on_with_its_study(tmp_path: Path) -> None:
    asked = ResearchOptions(
        topic="group size?", planner="llm", planner_model="m", planner_timeout=7, planner_tokens=2048
    )
    home = make_home(tmp_path / "home")
    with closing(EventLog(home.database)) as log:
        create_study(log, STUDY, make_request(asked, lambda line: None))
        kept = fold(log.read(STUDY)).settings[PLANNER_OPTIONS]
    assert kept == {"planner_timeout": 7, "planner_tokens": 2048}
    environ = {"OPENAI_API_KEY": "k", "AJET_PLANNER_TIMEOUT": "9", "AJET_PLANNER_EFFORT": "low"}
    options = make_planner("llm", "m", environ, kept)._options
    assert (options.planner_timeout, options.planner_tokens, options.planner_effort) == (7, 2048, "low")


def test_a_base_job_outlives_its_controller_and_a_model_that_changed_stops_the_study(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "model")
    base = Job(backend="fake", steps=3, model=model_folder(str(folder)))
    home = make_home(tmp_path / "home")
    with closing(EventLog(home.database)) as log:
        create_study(log, STUDY, StudyRequest("group size 4 vs 8 on arith", "rules", None, 3600.0, None, base=base))
        state = Session(home, log, STUDY, RulesPlanner()).plan()
        assert base_job_of(state.settings) == base
        job = Job.from_record(state.noise_plan.job)
        assert (job.backend, job.steps, job.model) == ("fake", 3, base.model)
        model_at(folder, b"others")
        with pytest.raises(InvalidRequest, match="found it changed"):
            Session(home, log, STUDY, RulesPlanner()).run(Notes())
        state = fold(log.read(STUDY))
        assert state.status == "stopped"
        assert "found it changed" in str(state.stopped_reason)
        assert not state.runs or not any(run.attempts for run in state.runs.values())
