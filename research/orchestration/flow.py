"""One flow run's work: begin or take up a study, and drive it until it is over or left.

The worker starts `python -m research.orchestration.flow` for each flow run of the two deployments. The process is a
controller as `ajet research` is one, and writes the flow run's states itself; Prefect's engine has no part in it. Run
again for the same flow run, it goes on with the study that it began before. SIGTERM is Cancel where the flow run says
so; else the worker ends, and the study is left to its next sitting.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from pydantic import ValidationError

from research.controller.controller import PAUSE_S
from research.controller.interventions import request_continue
from research.controller.options import begin_study, isolation_again, mirror_of, planner_again, planner_of
from research.controller.session import Session, StudyRequest, controlling, is_driven, new_study_id, terminable
from research.controller.wandb import NO_MIRROR, wandb_login
from research.environments.reference import requirements_of
from research.errors import BadParameters, HomeError, ResearchError, StudyBusy
from research.files import unless_full
from research.installation.home import Home
from research.installation.studies import find_study
from research.isolation.mode import Isolation, choose
from research.orchestration.deployment import (
    Parameters,
    ResearchParameters,
    ResumeParameters,
    is_kept,
    taken_back,
    undoes,
)
from research.orchestration.prefect_api import (
    PATIENCE_S,
    RESEARCH,
    RESUME,
    FlowRun,
    FlowRunGone,
    SessionEnd,
    UserAction,
    connect,
    ending,
    patiently,
    said,
)
from research.orchestration.projection import PrefectView
from research.orchestration.supervision import sitting
from research.own_process import begin_process
from research.planners.protocol import Planner
from research.scheduler.next_step import is_done
from research.text import describe
from sandboxes import SandboxError
from studies import EventLog, EventType, StoreError, StudiesError, StudyLog, StudyState, fold
from studies.log.event_log import Change
from studies.log.fold import SERVED, WORKED
from studies.log.locks import ControllerLease
from swarm.errors import SwarmError

STOPPING_S = 120.0
"""Most seconds that a study which is to go on is waited for while its controller still ends its stop."""
LOOK_S = 1.0
_EXPECTED = (ResearchError, StudiesError, SwarmError, SandboxError, OSError)
"""What every room raises for a person to read."""
_LEFT = "left with the worker; runs that were started go on, and so does the study in its next flow run"


@dataclass(frozen=True, slots=True)
class Sitting:
    """A flow run, and the installation in which what it asks for is done."""

    home: Home
    log: EventLog
    flow_run: FlowRun

    def work(self) -> SessionEnd:
        """Do what is asked for until it is over; return how it ended. Raises what a person is to read."""
        if patiently(self.flow_run.found, _note).action is UserAction.STOP:
            return SessionEnd("cancelled", said(UserAction.STOP))
        asked = patiently(self.flow_run.asked, _note)
        if asked.flow == RESEARCH:
            return self._research(_read(ResearchParameters, asked.parameters), asked.wished)
        study = find_study(self.log, _read(ResumeParameters, asked.parameters).study)
        return self._resume(study, asked.wished)

    def _research(self, parameters: ResearchParameters, wished: datetime | None) -> SessionEnd:
        token = self.flow_run.id.hex[-8:]  # the first ones are a time: those of one schedule share them
        if (begun := self._begun(token)) is not None:  # a retry: what was asked may not be there any more
            return self._resume(begun, wished)
        if parameters.topic:
            patiently(lambda: self.flow_run.call(parameters.topic), _note)
        request = parameters.request(_note)
        study = new_study_id(request.topic, token)
        planner = planner_of(request, parameters.planner, parameters.planner_model or None, note=_note)
        isolation = choose(parameters.sandbox, os.environ, self.home, _note, requirements_of(request.requested.brought))
        created = StudyRequest(
            request.topic, planner.name, planner.model, request.budget_s, request.max_runs, parameters.command(),
            isolation.sandboxing, request.requirements, request.requested, request.base, parameters.approve,
            wandb_login(os.environ).online, served=True,
        )  # fmt: skip
        with controlling(self.home, self.log, study, _note) as lease:
            begin_study(self.home, self.log, study, created)
            return self._drive(study, planner, isolation, lease)

    def _begun(self, token: str) -> str | None:
        """Return the study that an earlier process of this flow run began."""
        return next((study for study in self.log.studies() if study.endswith(f"-{token}")), None)

    def _resume(self, study: str, wished: datetime | None) -> SessionEnd:
        """Go on with a study; a stop or pause since it was wished stays, without a wish any, and a terminal's study."""
        if undoes(self.log, study, wished):
            self._wait_for_the_stop(study)
        state = self._state(study)
        if state.status == "concluded" and is_done(state):
            return SessionEnd("concluded", f"study {study} was concluded before: {state.concluded_reason}")
        planner = planner_again(self.home, self.log, state)
        isolation = isolation_again(self.home, state, _note)
        try:
            with controlling(self.home, self.log, study, _note) as lease:
                self._begin_again(study, wished)
                if (why := taken_back(self._state(study))) is not None:
                    return SessionEnd("cancelled", f"{why}; begin {RESUME} for it to go on here")
                return self._drive(study, planner, isolation, lease)
        except StudyBusy as error:
            return self._goes_on_elsewhere(study, wished, error)

    def _begin_again(self, study: str, wished: datetime | None) -> None:
        """Append that work begins again, unless nobody asked for it and somebody paused the study or took it back."""
        begun = {"command": ["ajet", "study", "resume", study], WORKED: 0.0, SERVED: True}

        def resuming(state: StudyState) -> Change | None:
            kept = is_kept(state) and not undoes(self.log, study, wished)
            return None if kept else (EventType.STUDY_RESUMED, begun)

        StudyLog(self.log, study).change(resuming, actor="user")

    def _goes_on_elsewhere(self, study: str, wished: datetime | None, busy: StudyBusy) -> SessionEnd:
        """Lift a pause of a study that another controller drives, where somebody asked for that."""
        if self._state(study).stopped_reason is not None:
            raise busy
        if undoes(self.log, study, wished):
            request_continue(self.log, study, ["ajet", "study", "resume", study])
        return SessionEnd("concluded", f"study {study} goes on under the controller that has it: {busy}")

    def _wait_for_the_stop(self, study: str) -> None:
        """Wait, for a bounded time, until the controller of a study that is stopped let go of it.

        It ends its runs, writes the report and waits for those that show it.
        """
        until = time.monotonic() + STOPPING_S
        while self._state(study).stopped_reason is not None and is_driven(self.home, self.log, study):
            if time.monotonic() > until:
                return
            time.sleep(LOOK_S)

    def _drive(self, study: str, planner: Planner, isolation: Isolation, lease: ControllerLease) -> SessionEnd:
        begun = self._state(study)
        mirror = mirror_of(self.home, begun, _note, _note)
        session = Session(
            self.home, self.log, study, planner, isolation, lease.check, mirror or NO_MIRROR, self._interruption
        )
        view = PrefectView(self.home, begun, _note, _note, taken=self.flow_run.id)
        with view, mirror or nullcontext():
            session.plan()
            return ending(session.run(view), None)

    def _interruption(self) -> str | None:
        """Return the reason of a stop where somebody clicked Cancel; a server that is gone has asked for nothing."""
        try:
            found = self.flow_run.found()
        except Exception as error:  # noqa: BLE001 - a client's errors are many, and mean the same here
            _note(f"Prefect does not say why this process is ended ({type(error).__name__}); the study is left")
            return None
        return said(UserAction.STOP) if found.action is UserAction.STOP else None

    def _state(self, study: str) -> StudyState:
        return fold(self.log.read(study))


def main() -> int:
    """Work on the flow run that the worker names in the environment; return the exit code."""
    begin_process()
    identity = UUID(os.environ["PREFECT__FLOW_RUN_ID"])
    with connect(os.environ["PREFECT_API_URL"]) as client, terminable(), ExitStack() as while_known:
        flow_run = FlowRun(client, identity)
        try:
            home = while_known.enter_context(_known(identity))
        except (HomeError, OSError) as error:  # a full disk, say
            nothing = SessionEnd("left", f"nothing was begun: {' '.join(str(error).split())}")
            return _told(flow_run, lambda: nothing)
        return _told(flow_run, lambda: _worked(home, flow_run))


@contextmanager
def _known(identity: UUID) -> Iterator[Home]:
    """Be known as the process of a flow run in the installation, and write to a file of its own there."""
    home = Home.locate().prepare()
    _write_to(home.prefect / "sittings" / f"{identity}.log")
    with sitting(home, identity):
        yield home


def _told(flow_run: FlowRun, work: Callable[[], SessionEnd]) -> int:
    """Do the work of a flow run, and tell Prefect how it ended; return the exit code."""
    try:
        end = work()
        _note(f"{end.how}: {end.message}")
        patiently(lambda: flow_run.end(end), _note, 0.0 if end.how == "left" else PATIENCE_S)
    except FlowRunGone:
        _note("Prefect does not know this flow run any more; a study that it worked on is shown in another")
    except httpx.HTTPError as error:  # waited for in vain, or refused
        _note(f"Prefect cannot be told: {' '.join(f'{type(error).__name__}: {error}'.split())}")
        return 1
    return 0


def _worked(home: Home, flow_run: FlowRun) -> SessionEnd:
    """Do what a flow run asks for; what a person is to read is how it ended."""
    try:
        return _once_the_log_answers(lambda log: Sitting(home, log, flow_run).work(), home)
    except _EXPECTED as error:
        return SessionEnd("failed", " ".join(str(error).split()))
    except KeyboardInterrupt:
        return SessionEnd("left", _LEFT)


def _once_the_log_answers(work: Callable[[EventLog], SessionEnd], home: Home) -> SessionEnd:
    """Work, and again where the event log was away as it began: nobody would begin again what failed so early."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with closing(EventLog(home.database)) as log:
                return work(log)
        except StoreError as error:
            if time.monotonic() > until:
                raise
            _note(f"waiting for the event log: {' '.join(str(error).split())}")
        time.sleep(PAUSE_S)


def _read(kind: type[Parameters], given: Mapping[str, Any]) -> Parameters:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise BadParameters(f"expected the parameters of the deployment's form; found {describe(error)}") from error


def _write_to(path: Path) -> None:
    """Have this process, and those it starts, write to a file: the worker's pipe ends with the worker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


@unless_full
def _note(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
