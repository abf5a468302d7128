"""The flow of a study: begin it or take it up, and drive it until it is over, left, or waits for a person.

Prefect's worker runs it by `prefect flow-run execute`, in as many processes as the study takes. The tick loop is the
controller's, as under `ajet research`. A process that has nothing under way and waits for a person suspends its flow
run and ends, so that the worker's place is free. SIGTERM leaves the study as it is, which Prefect's executor then puts
back in line, and stops it where Cancel was clicked.

The last state is set here and the engine told that it was: an engine that was ever asked to suspend proposes none.
"""

import inspect
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import httpx
from prefect import Flow, runtime
from prefect.client.schemas.objects import FlowRun as PrefectFlowRun
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, Pause, TerminationSignal
from prefect.states import AwaitingRetry
from pydantic import ValidationError

from research.controller import options
from research.controller.interventions import request_continue, request_stop
from research.controller.mirror import describe_error
from research.controller.session import Session, begin_study, hold_lease, new_study_id
from research.controller.wandb import wandb_login
from research.environments.catalog import requirements_of
from research.errors import BadInput, NotReady, ResearchError
from research.files import ignore_disk_full
from research.installation.home import Home
from research.installation.studies import find_study
from research.isolation.mode import Isolation, choose
from research.orchestration import deployment, prefect_api
from research.orchestration.deployment import FlowParameters
from research.orchestration.handover import PrefectView
from research.orchestration.prefect_api import RESEARCH, FlowRun, SessionEnd, UserAction, read_note, retry
from research.orchestration.projection import question_of, take_answer
from research.orchestration.supervision import flow_run_process
from research.own_process import begin_process
from research.planners.context import Planner
from research.scheduler.next_step import is_done
from research.scheduler.required_runs import attempts_running
from research.text import describe
from sandboxes import SandboxError
from studies import EventLog, EventType, LeaseHeld, StoreError, StudiesError, StudyLog, StudyState, fold
from studies.log.event_log import Change
from studies.log.fold import SERVED, WORKED
from studies.log.locks import ControllerLease
from swarm.errors import SwarmError

STOPPING_S = 120.0
"""Most seconds that a controller is waited for which still ends a stop."""
ENDING_S = 15.0
"""The same for one that drives the study: it may be a process of this flow run that ends just now."""
LOOK_S = 1.0
_EXPECTED = (ResearchError, StudiesError, SwarmError, SandboxError, OSError)
"""What every room raises for a person to read."""


class Resting(Exception):
    """Nothing of the study is under way, and nothing begins until a person acts."""


class _FlowObserver:
    """Ends the tick loop, by raising Resting, once a study only waits for a person: a tick changed nothing.

    SIGTERM is Prefect's again while the loop runs: its executor asks no process to leave that has taken it away.
    """

    def __init__(self, view: PrefectView, on_sigterm: Any) -> None:
        self.note = view.note
        self._on_sigterm = on_sigterm
        self._head = ""

    def observe(self, state: StudyState) -> None:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        waits = state.paused_reason is not None or state.open_question is not None
        idle = state.head_hash == self._head and not any(attempts_running(state))
        if waits and idle and state.stopped_reason is None:
            raise Resting
        self._head = state.head_hash


@dataclass(slots=True)
class FlowRunExecution:
    """A process that Prefect's engine runs for a flow run, and the installation in which what it asks for is done."""

    home: Home
    log: EventLog
    flow_run: FlowRun
    terminated: bool = False
    """Whether SIGTERM ended the work, so that whoever sent it says what becomes of the flow run."""

    def work(self, parameters: Mapping[str, Any]) -> SessionEnd | None:
        """Do what is asked for until it is over; return how it ended. Raises what a person is to read. None: the study
        goes on under another controller, which shows it in this flow run."""
        given = {name: value for name, value in parameters.items() if value not in ("", None)}  # as a form says none
        try:
            form = FlowParameters.model_validate(given)
        except ValidationError as error:
            raise BadInput(f"expected the parameters of the deployment's form; found {describe(error)}") from error
        if (begun := _find_study(self.log, self.flow_run.id, form.study)) is not None:
            return self._resume(begun)  # after a retry what was asked for may not be there any more
        form = form.with_fetched_model(_note)
        if (topic := form.topic) is not None:
            retry(lambda: self.flow_run.rename(topic), _note)
        request = options.make_request(form, _note)
        study = new_study_id(request.topic, deployment.flow_run_token(self.flow_run.id))
        planner = options.require_planner(request, _note, asked=form)
        isolation = choose(
            form.sandbox, os.environ, self.home, _note, requirements_of(request.requested.custom_environments)
        )
        created = replace(
            request, planner=planner.name, model=planner.model, command=form.command(),
            sandbox=isolation.sandboxing, wandb=wandb_login(os.environ).online, served=True,
        )  # fmt: skip
        with hold_lease(self.home, self.log, study, _note) as lease:
            begin_study(self.home, self.log, study, created)
            self._adopt(study)
            return self._drive(study, planner, isolation, lease)

    def _resume(self, study: str) -> SessionEnd | None:
        state = self._state(study)
        if state.status == "concluded" and is_done(state):
            return SessionEnd("concluded", f"study {study} was concluded before: {state.concluded_reason}")
        asked = retry(self.flow_run.request_time, _note)
        planner = options.reopen_planner(self.home, self.log, state)
        isolation = options.reopen_isolation(self.home, state, _note)
        with ExitStack() as leases:
            try:
                lease = self._take_lease(study, leases)
            except LeaseHeld as busy:
                if self._state(study).stopped_reason is not None:
                    raise
                if deployment.overrides_stop(self.log, study, asked):
                    request_continue(self.log, study, ["ajet", "study", "resume", study])
                if read_note(self.home, study) in (None, self.flow_run.id):
                    return None
                return SessionEnd("concluded", f"study {study} goes on in its own flow run: {busy}")
            self._adopt(study)
            retry(lambda: take_answer(self.flow_run, StudyLog(self.log, study)), _note)
            # Nothing is appended for one that still asks: a form that is sent unread is no work.
            begun = {"command": ["ajet", "study", "resume", study], WORKED: 0.0, SERVED: True}

            def resume_change(state: StudyState) -> Change | None:
                waits = state.open_question is not None and not any(attempts_running(state))
                kept = not deployment.overrides_stop(self.log, study, asked) if deployment.is_on_hold(state) else waits
                return None if kept else (EventType.STUDY_RESUMED, begun)

            StudyLog(self.log, study).change(resume_change, actor="user")
            if (why := deployment.why_released(self._state(study))) is not None:
                return SessionEnd("cancelled", f"{why}; Retry goes on with it here")
            return self._drive(study, planner, isolation, lease)

    def _take_lease(self, study: str, leases: ExitStack) -> ControllerLease:
        began = time.monotonic()
        while True:
            try:
                return leases.enter_context(hold_lease(self.home, self.log, study, _note))
            except LeaseHeld:
                most = STOPPING_S if self._state(study).stopped_reason is not None else ENDING_S
                if time.monotonic() - began >= most:
                    raise
            time.sleep(LOOK_S)

    def _adopt(self, study: str) -> None:
        before = read_note(self.home, study)
        if before == self.flow_run.id:
            return
        prefect_api.write_note(self.home, study, self.flow_run.id)
        if before is not None:
            older = self.flow_run.sibling(before)
            with suppress(ObjectNotFound):
                retry(lambda: older.end(SessionEnd("left", f"goes on in another flow run: {self.flow_run.id}")), _note)

    def _drive(self, study: str, planner: Planner, isolation: Isolation, lease: ControllerLease) -> SessionEnd:
        begun, on_sigterm = self._state(study), signal.getsignal(signal.SIGTERM)
        mirror = options.make_mirror(self.home, begun, _note, _note)
        view = PrefectView(self.home, begun, _note, _note, executed=True)

        def begin_session() -> Session:
            return Session(self.home, self.log, study, planner, isolation, lease.check, mirror, self._stop_reason)

        with view, mirror or nullcontext():
            session = begin_session()
            try:
                session.plan()
                end = prefect_api.describe_end(session.run(_FlowObserver(view, on_sigterm)), None)
            except Resting:
                state = self._state(study)
                question = question_of(state) if state.paused_reason is None else None
                end = SessionEnd("rests", state.paused_reason or "it waits for an answer", question)
            except (TerminationSignal, KeyboardInterrupt):
                if (reason := self._stop_reason()) is None:
                    end = SessionEnd("left", prefect_api.LEFT)
                else:
                    request_stop(self.home, self.log, study, reason)
                    end = prefect_api.describe_end(begin_session().run(view), None)
        if (current := read_note(self.home, study)) is not None:  # another one where the server lost the first
            self.flow_run = self.flow_run.sibling(current)
        return end

    def _stop_reason(self) -> str | None:
        """Return the reason of a stop where somebody clicked Cancel; a server that is gone has asked for nothing."""
        self.terminated = True
        try:
            action = self.flow_run.read_state().action
        except Exception as error:  # noqa: BLE001 - a client's errors are many, and mean the same here
            _note(f"Prefect does not say why this process is ended ({type(error).__name__}); the study is left")
            return None
        return prefect_api.action_reason(UserAction.STOP) if action is UserAction.STOP else None

    def _state(self, study: str) -> StudyState:
        return fold(self.log.read(study))


def _find_study(log: EventLog, flow_run: UUID, named: str | None) -> str | None:
    if named is not None:
        return find_study(log, named)
    return deployment.find_begun(log.studies(), flow_run)


def stop_study(flow: Flow[..., Any], flow_run: PrefectFlowRun, state: State[Any]) -> None:
    """Stop the study of a flow run that was cancelled, whose process has gone: Cancel alone ends trainings."""
    home = Home.locate()
    with closing(EventLog(home.database)) as log:
        study = _find_study(log, flow_run.id, flow_run.parameters.get("study"))
        if study is not None and read_note(home, study) == flow_run.id:
            request_stop(home, log, study, prefect_api.action_reason(UserAction.STOP), note=_note)


def _run_flow(**parameters: Any) -> None:
    """Begin a study, or go on with one, as the form says."""
    begin_process()
    identity = UUID(str(runtime.flow_run.id))
    with prefect_api.connect(os.environ["PREFECT_API_URL"]) as client:
        flow_run = FlowRun(client, identity)
        begun = retry(flow_run.read, _note)
        terminated = False
        try:
            home = Home.locate().prepare()
            path = home.prefect / "sittings" / f"{identity}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                    os.dup2(file.fileno(), stream.fileno())
            with flow_run_process(home, identity), closing(retry(lambda: EventLog(home.database), _note)) as log:
                execution = FlowRunExecution(home, log, flow_run)
                end = _work(execution, parameters)
                flow_run, terminated = execution.flow_run, execution.terminated
        except (NotReady, OSError) as error:  # a full disk, say
            end = SessionEnd("left", f"nothing was begun: {' '.join(str(error).split())}")
        except StoreError as error:
            end = SessionEnd("failed", " ".join(str(error).split()))
        if end is None:
            raise Pause(state=begun.state)
        _note(f"{end.how}: {end.message}")
        _report_end(flow_run, begun, end, terminated=terminated)


def _work(execution: FlowRunExecution, parameters: Mapping[str, Any]) -> SessionEnd | None:
    try:
        return execution.work(parameters)
    except httpx.TransportError as error:  # it was waited for; whoever is left goes on, one that failed does not
        return SessionEnd("left", f"Prefect did not answer: {describe_error(error)}")
    except _EXPECTED as error:
        return SessionEnd("failed", " ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001 - the page shows one line, and the process's own log the rest
        _note(traceback.format_exc())
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return SessionEnd("failed", " ".join(f"{type(error).__name__}: {error} (at {where})".split()))


def _report_end(flow_run: FlowRun, begun: PrefectFlowRun, end: SessionEnd, *, terminated: bool) -> NoReturn:
    own = flow_run.id == begun.id
    state: State[Any] | None = begun.state
    try:
        current = retry(flow_run.read, _note, 0.0 if terminated else prefect_api.RETRY_TIMEOUT_S)
        state = current.state
        waits = state is not None and (state.is_scheduled() or state.is_pending())
        if terminated and end.how == "left":
            if waits or not own:  # by Prefect's executor, which is no person's wish
                flow_run.set(AwaitingRetry(message=prefect_api.LEFT))
        elif not (own and (terminated or waits or current.run_count > begun.run_count)):
            state = retry(lambda: flow_run.end(end), _note)
    except ObjectNotFound:
        _note("Prefect does not know this flow run any more; a study that it worked on is shown in another")
    except httpx.HTTPError as error:  # waited for in vain, or refused
        _note(f"Prefect cannot be told: {describe_error(error)}")
    if terminated:
        raise TerminationSignal(signal.SIGTERM)
    raise Pause(state=state)


@ignore_disk_full
def _note(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# Prefect passes a flow what its signature names: the fields of the form.
_run_flow.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in FlowParameters.model_fields]
)
research = Flow(_run_flow, name=RESEARCH, validate_parameters=False, persist_result=False, on_cancellation=[stop_study])
