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
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import httpx
from pydantic import BaseModel, ValidationError

from research.controller.controller import PAUSE_S
from research.controller.interventions import request_continue
from research.controller.mirror import NO_MIRROR
from research.controller.options import (
    ResearchOptions,
    begin_study,
    make_mirror,
    make_request,
    reopen_isolation,
    reopen_planner,
    require_planner,
)
from research.controller.session import (
    Session,
    has_controller,
    hold_lease,
    new_study_id,
    raise_on_sigterm,
)
from research.controller.wandb import wandb_login
from research.environments.reference import requirements_of
from research.errors import BadInput, HomeError, ResearchError, StudyBusy
from research.files import ignore_disk_full
from research.installation.home import Home
from research.installation.studies import find_study
from research.isolation.mode import Isolation, choose
from research.orchestration.deployment import (
    ResumeParameters,
    is_on_hold,
    overrides_stop,
    why_released,
)
from research.orchestration.prefect_api import (
    RESEARCH,
    RESUME,
    RETRY_TIMEOUT_S,
    FlowRun,
    FlowRunGone,
    SessionEnd,
    UserAction,
    action_reason,
    connect,
    describe_end,
    retry,
)
from research.orchestration.projection import PrefectView
from research.orchestration.supervision import flow_run_process
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
Parameters = TypeVar("Parameters", bound=BaseModel)
_LEFT = "left with the worker; runs that were started go on, and so does the study in its next flow run"


@dataclass(frozen=True, slots=True)
class FlowRunExecution:
    """A flow run, and the installation in which what it asks for is done."""

    home: Home
    log: EventLog
    flow_run: FlowRun

    def work(self) -> SessionEnd:
        """Do what is asked for until it is over; return how it ended. Raises what a person is to read."""
        if retry(self.flow_run.read_state, _note).action is UserAction.STOP:
            return SessionEnd("cancelled", action_reason(UserAction.STOP))
        asked = retry(self.flow_run.read_request, _note)
        if asked.flow == RESEARCH:
            return self._research(_parse_parameters(ResearchOptions, asked.parameters), asked.requested_at)
        study = find_study(self.log, _parse_parameters(ResumeParameters, asked.parameters).study)
        return self._resume(study, asked.requested_at)

    def _research(self, asked: ResearchOptions, requested_at: datetime | None) -> SessionEnd:
        token = self.flow_run.id.hex[-8:]  # the first ones are a time: those of one schedule share them
        begun = next((study for study in self.log.studies() if study.endswith(f"-{token}")), None)
        if begun is not None:  # a retry: what was asked may not be there any more
            return self._resume(begun, requested_at)
        if (topic := asked.topic) is not None:
            retry(lambda: self.flow_run.rename(topic), _note)
        request = make_request(asked, _note)
        study = new_study_id(request.topic, token)
        planner = require_planner(request, _note, asked=asked)
        isolation = choose(
            asked.sandbox, os.environ, self.home, _note, requirements_of(request.requested.custom_environments)
        )
        created = replace(
            request, planner=planner.name, model=planner.model, command=asked.command(), sandbox=isolation.sandboxing,
            wandb=wandb_login(os.environ).online, served=True,
        )  # fmt: skip
        with hold_lease(self.home, self.log, study, _note) as lease:
            begin_study(self.home, self.log, study, created)
            return self._drive(study, planner, isolation, lease)

    def _resume(self, study: str, requested_at: datetime | None) -> SessionEnd:
        """Go on with a study; a stop or pause since it was wished stays, without a wish any, and a terminal's study."""
        if overrides_stop(self.log, study, requested_at):
            self._wait_for_stop(study)
        state = self._state(study)
        if state.status == "concluded" and is_done(state):
            return SessionEnd("concluded", f"study {study} was concluded before: {state.concluded_reason}")
        planner = reopen_planner(self.home, self.log, state)
        isolation = reopen_isolation(self.home, state, _note)
        try:
            with hold_lease(self.home, self.log, study, _note) as lease:
                self._record_resume(study, requested_at)
                if (why := why_released(self._state(study))) is not None:
                    return SessionEnd("cancelled", f"{why}; begin {RESUME} for it to go on here")
                return self._drive(study, planner, isolation, lease)
        except StudyBusy as error:
            return self._resume_elsewhere(study, requested_at, error)

    def _record_resume(self, study: str, requested_at: datetime | None) -> None:
        """Append that work begins again, unless nobody asked for it and somebody paused the study or took it back."""
        begun = {"command": ["ajet", "study", "resume", study], WORKED: 0.0, SERVED: True}

        def resume_change(state: StudyState) -> Change | None:
            kept = is_on_hold(state) and not overrides_stop(self.log, study, requested_at)
            return None if kept else (EventType.STUDY_RESUMED, begun)

        StudyLog(self.log, study).change(resume_change, actor="user")

    def _resume_elsewhere(self, study: str, requested_at: datetime | None, busy: StudyBusy) -> SessionEnd:
        if self._state(study).stopped_reason is not None:
            raise busy
        if overrides_stop(self.log, study, requested_at):
            request_continue(self.log, study, ["ajet", "study", "resume", study])
        return SessionEnd("concluded", f"study {study} goes on under the controller that has it: {busy}")

    def _wait_for_stop(self, study: str) -> None:
        """Wait, for a bounded time, until the controller of a stopped study has ended its runs and reported it."""
        until = time.monotonic() + STOPPING_S
        while self._state(study).stopped_reason is not None and has_controller(self.home, self.log, study):
            if time.monotonic() > until:
                return
            time.sleep(LOOK_S)

    def _drive(self, study: str, planner: Planner, isolation: Isolation, lease: ControllerLease) -> SessionEnd:
        begun = self._state(study)
        mirror = make_mirror(self.home, begun, _note, _note)
        session = Session(
            self.home, self.log, study, planner, isolation, lease.check, mirror or NO_MIRROR, self._stop_reason
        )
        view = PrefectView(self.home, begun, _note, _note, taken=self.flow_run.id)
        with view, mirror or nullcontext():
            session.plan()
            return describe_end(session.run(view), None)

    def _stop_reason(self) -> str | None:
        """Return the reason of a stop where somebody clicked Cancel; a server that is gone has asked for nothing."""
        try:
            found = self.flow_run.read_state()
        except Exception as error:  # noqa: BLE001 - a client's errors are many, and mean the same here
            _note(f"Prefect does not say why this process is ended ({type(error).__name__}); the study is left")
            return None
        return action_reason(UserAction.STOP) if found.action is UserAction.STOP else None

    def _state(self, study: str) -> StudyState:
        return fold(self.log.read(study))


def main() -> int:
    begin_process()
    identity = UUID(os.environ["PREFECT__FLOW_RUN_ID"])
    with connect(os.environ["PREFECT_API_URL"]) as client, raise_on_sigterm(), ExitStack() as while_known:
        flow_run = FlowRun(client, identity)
        try:
            home = Home.locate().prepare()
            _redirect_output(home.prefect / "sittings" / f"{identity}.log")
            while_known.enter_context(flow_run_process(home, identity))
        except (HomeError, OSError) as error:  # a full disk, say
            nothing = SessionEnd("left", f"nothing was begun: {' '.join(str(error).split())}")
            return _report_end(flow_run, lambda: nothing)
        return _report_end(flow_run, lambda: _execute(home, flow_run))


def _report_end(flow_run: FlowRun, work: Callable[[], SessionEnd]) -> int:
    try:
        end = work()
        _note(f"{end.how}: {end.message}")
        retry(lambda: flow_run.end(end), _note, 0.0 if end.how == "left" else RETRY_TIMEOUT_S)
    except FlowRunGone:
        _note("Prefect does not know this flow run any more; a study that it worked on is shown in another")
    except httpx.HTTPError as error:  # waited for in vain, or refused
        _note(f"Prefect cannot be told: {' '.join(f'{type(error).__name__}: {error}'.split())}")
        return 1
    return 0


def _execute(home: Home, flow_run: FlowRun) -> SessionEnd:
    try:
        return _retry_until_log_opens(lambda log: FlowRunExecution(home, log, flow_run).work(), home)
    except _EXPECTED as error:
        return SessionEnd("failed", " ".join(str(error).split()))
    except KeyboardInterrupt:
        return SessionEnd("left", _LEFT)


def _retry_until_log_opens(work: Callable[[EventLog], SessionEnd], home: Home) -> SessionEnd:
    """Work, and again where the event log was away as it began: nobody would begin again what failed so early."""
    until = time.monotonic() + RETRY_TIMEOUT_S
    while True:
        try:
            with closing(EventLog(home.database)) as log:
                return work(log)
        except StoreError as error:
            if time.monotonic() > until:
                raise
            _note(f"waiting for the event log: {' '.join(str(error).split())}")
        time.sleep(PAUSE_S)


def _parse_parameters(kind: type[Parameters], given: Mapping[str, Any]) -> Parameters:
    """Return the parameters of a form, in which an empty text is none."""
    try:
        return kind.model_validate({name: value for name, value in given.items() if value != ""})
    except ValidationError as error:
        raise BadInput(f"expected the parameters of the deployment's form; found {describe(error)}") from error


def _redirect_output(path: Path) -> None:
    """Have this process, and those it starts, write to a file: the worker's pipe ends with the worker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


@ignore_disk_full
def _note(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
