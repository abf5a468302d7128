"""A session's planning: interrupted, it leaves a study that stands still and says why."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.controller.session import Session, StudyRequest, create_study
from research.errors import BadModel
from research.installation.base_job import base_job_of, model_folder
from research.installation.home import Home
from research.planners.context import Digest
from research.planners.protocol import Check, PlannerTurn
from research.planners.rules import RulesPlanner
from research.scheduler.next_step import next_step
from research.scheduler.steps import AskApproval
from studies import EventLog, fold
from swarm.job import Job
from tests.research.bench import STUDY, Bench
from tests.research.fakes import ScriptedPlanner
from tests.research.model_folders import model_at


class Signalled(ScriptedPlanner):
    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        os.kill(os.getpid(), self._number)
        return super().act(digest, check)


class Silent:
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


def test_an_interrupt_while_planning_leaves_a_study_that_is_another_controllers_next(
    bench: Bench, log: EventLog
) -> None:
    session = Session(bench.home, log, STUDY, Signalled(signal.SIGTERM), interruption=lambda: None)
    with pytest.raises(KeyboardInterrupt):
        session.plan()
    assert fold(log.read(STUDY)).stopped_reason is None


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


def test_a_model_of_the_installation_leaves_no_place_of_this_machine_in_the_log(tmp_path: Path) -> None:
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    base = Job(backend="fake", steps=3, model=model_folder(str(model_at(home.models / "mine")), home.models))
    with closing(EventLog(home.database)) as log:
        create_study(log, STUDY, StudyRequest("group size 4 vs 8 on arith", "rules", None, 3600.0, None, (), base=base))
        planned = Session(home, log, STUDY, RulesPlanner()).plan()
        assert Job.recorded(planned.noise_plan.job).model == base.model
        assert str(tmp_path) not in str([event.payload for event in log.read(STUDY)])


def test_what_a_person_is_to_be_asked_is_a_setting_of_the_study(tmp_path: Path) -> None:
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    with closing(EventLog(home.database)) as log:
        create_study(
            log, STUDY, StudyRequest("group size 4 vs 8 on arith", "rules", None, 3600.0, None, (), approve="plan")
        )
        planned = Session(home, log, STUDY, RulesPlanner()).plan()
    step = next_step(planned, 3600.0, 2)
    assert isinstance(step, AskApproval)
    assert step.question.stage == ("design" if planned.noise_plan is None else "noise")
    assert step.question.runs > 0


def test_a_base_job_outlives_its_controller_and_a_model_that_changed_stops_the_study(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "model")
    base = Job(backend="fake", steps=3, model=model_folder(str(folder)))
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    with closing(EventLog(home.database)) as log:
        request = StudyRequest("group size 4 vs 8 on arith", "rules", None, 3600.0, None, (), base=base)
        create_study(log, STUDY, request)
        planned = Session(home, log, STUDY, RulesPlanner()).plan()
        assert base_job_of(planned.settings) == base
        job = Job.recorded(planned.noise_plan.job)
        assert (job.backend, job.steps, job.model) == ("fake", 3, base.model)
        model_at(folder, b"others")
        with pytest.raises(BadModel, match="found it changed"):
            Session(home, log, STUDY, RulesPlanner()).run(Silent())
        state = fold(log.read(STUDY))
        assert state.status == "stopped"
        assert "found it changed" in str(state.stopped_reason)
        assert not state.runs or not any(run.attempts for run in state.runs.values())
