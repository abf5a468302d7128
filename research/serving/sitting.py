"""One flow run's work: begin or take up the study that it asks for, and drive it until it is over or left.

The worker starts `python -m research.serving.sitting` for each flow run of the two deployments. The process is a
controller as `ajet research` is one, and writes the flow run's states itself; Prefect's engine has no part in it. Run
again for the same flow run, it goes on with the study that it began before. SIGTERM is Cancel where the flow run says
so; else the worker ends, and the study is left to its next sitting.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from research.environments.record import requirements_of
from research.errors import BadParameters, ResearchError, StudyBusy
from research.installation.home import Home
from research.installation.threads import keep_to_one_thread
from research.isolation.mode import Isolation, choose
from research.orchestration import PrefectView
from research.orchestration.deployments import RESEARCH
from research.orchestration.flow_run import FlowRun, connect
from research.orchestration.reconcile import SessionEnd, UserAction, ending
from research.orchestration.session import said
from research.planner import Planner
from research.requests import begin_study, isolation_again, planner_again, planner_of
from research.requests.copies import mirror_of
from research.scheduling.next_step import is_done
from research.serving.parameters import Parameters, ResearchParameters, ResumeParameters
from research.study.one_controller import controlling
from research.study.session import Session, StudyRequest, find_study, new_study_id, terminable
from research.study.stop import request_continue
from research.tracking.login import wandb_login
from research.tracking.mirror import NO_MIRROR
from research.validation import describe
from sandboxes import SandboxError
from studies import EventLog, EventType, StudiesError, StudyLog, StudyState, fold
from studies.log.fold import SERVED, WORKED
from studies.log.leases import ControllerLease
from swarm.errors import SwarmError

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
        if self.flow_run.found().action is UserAction.STOP:
            return SessionEnd("cancelled", said(UserAction.STOP))
        flow, given = self.flow_run.asked()
        if flow == RESEARCH:
            return self._research(_read(ResearchParameters, given))
        return self._resume(find_study(self.log, _read(ResumeParameters, given).study))

    def _research(self, parameters: ResearchParameters) -> SessionEnd:
        request = parameters.request(_note)
        study = new_study_id(request.topic, self.flow_run.id.hex[:8])
        if study in self.log.studies():  # an earlier process of this flow run got so far
            return self._resume(study)
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

    def _resume(self, study: str) -> SessionEnd:
        state = self._state(study)
        if state.status == "concluded" and is_done(state):
            return SessionEnd("concluded", f"study {study} was concluded before: {state.concluded_reason}")
        planner = planner_again(self.home, self.log, state)
        isolation = isolation_again(self.home, state, _note)
        command = ["ajet", "study", "resume", study]
        try:
            with controlling(self.home, self.log, study, _note) as lease:
                begun = {"command": command, WORKED: 0.0, SERVED: True}
                StudyLog(self.log, study).change(lambda state: (EventType.STUDY_RESUMED, begun), actor="user")
                return self._drive(study, planner, isolation, lease)
        except StudyBusy as error:
            request_continue(self.log, study, command)
            return SessionEnd("concluded", f"study {study} goes on under the controller that has it: {error}")

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
    keep_to_one_thread()
    home = Home.locate().prepare()
    identity = UUID(os.environ["PREFECT__FLOW_RUN_ID"])
    _write_to(home.prefect / "sittings" / f"{identity}.log")
    with connect(os.environ["PREFECT_API_URL"]) as client, closing(EventLog(home.database)) as log, terminable():
        flow_run = FlowRun(client, identity)
        try:
            end = Sitting(home, log, flow_run).work()
        except _EXPECTED as error:
            end = SessionEnd("failed", " ".join(str(error).split()))
        except KeyboardInterrupt:
            end = SessionEnd("left", _LEFT)
        _note(f"{end.how}: {end.message}")
        flow_run.end(end)
    return 0


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


def _note(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
