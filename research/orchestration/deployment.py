"""What a Prefect server is told of a machine's worker, and flow runs that nobody drives.

Told are a pool, a deployment with its form, and an automation; telling it again keeps what people changed. A study that
is handed over, or that was left, goes on in its own flow run, which is put back in line. A wish to go on is the time
somebody asked; a later stop or pause stays, and so does what a terminal took back.

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import State, StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Crashed, Scheduled
from prefect.workers.process import ProcessWorker
from pydantic import BaseModel, Field

from research.controller.controller import build_stop_event
from research.controller.interventions import end_attempts, request_pause
from research.controller.mirror import describe_error
from research.controller.options import ResearchOptions
from research.errors import NotReady
from research.installation.home import Home
from research.orchestration import prefect_api
from research.orchestration.projection import question_of
from research.orchestration.server import client_environment, ensure_server
from research.orchestration.supervision import PREFECT_COMMAND, is_flow_run_alive, require_worker
from research.scheduler.next_step import is_done
from research.scheduler.required_runs import attempts_running
from studies import EventLog, EventType, LogCorrupt, StudyLog, StudyState, fold
from studies.log.locks import ControllerLeases, Holder, LeaseWatch, SteadyClock, suspend_aware_time

MOST_FRUITLESS = 5
"""Times that a study is taken up without anything happening to it, before only a person takes it up again."""


class UnownedStudies:
    """Looks for them, again and again: a study is read where something was appended since the last look."""

    def __init__(self, log: EventLog, home: Home, me: Holder, clock: SteadyClock = suspend_aware_time) -> None:
        self._log, self._home = log, home
        self._leases = ControllerLeases(log, clock=clock)
        self._watch = LeaseWatch(self._leases, me)
        self._known: dict[str, tuple[str, StudyLog, StudyState | None]] = {}
        """By study its head, its log, of which only what is new is read, and its state where it is the worker's."""

    def find(self) -> Iterator[StudyState]:
        """Yield the worker's studies here that are not corrupt, and that nobody drives, those that are over among them.
        A flow run of one may wait at Prefect's server, which is not known here."""
        known, self._known = self._known, {}
        for study, head in self._log.heads().items():
            before, record, state = known.get(study) or ("", StudyLog(self._log, study), None)
            if before != head:
                try:
                    state = record.state()
                except LogCorrupt:
                    state = None
            if state is None or not state.served:
                record, state = StudyLog(self._log, study), None
            self._known[study] = head, record, state
        for _, _, state in list(self._known.values()):
            if state is not None and self._is_unowned(state.id):
                yield state

    def forget(self, study: str) -> None:
        self._known[study] = self._known[study][0], StudyLog(self._log, study), None

    def _is_unowned(self, study: str) -> bool:
        """Return whether the study lies here, and its last controller was of here and is gone, or there was none yet.
        Installations may share a log: where a study lies is where its folder is, which is made before it is created."""
        if not self._home.study(study).is_dir():
            return False
        row = self._leases.read(study)
        if row is None:  # handed over, and begun by nobody
            return True
        elsewhere = row.holder.host != Holder.here(self._home.path).host and self._home.files.url
        if elsewhere or Path(row.holder.home).resolve() != self._home.path.resolve():
            return False
        return self._watch.is_gone(study)  # of a host that was started anew: once its lease stood still long enough


class FlowParameters(ResearchOptions):
    """The form of the deployment: what is to be studied, or which study is to go on."""

    study: str | None = Field(
        default=None,
        description="Id of a study of the worker's installation, or its beginning (`ajet study list`), that is to go "
        "on, in place of a new one",
    )


def form_schema(parameters: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of parameters as Prefect's pages draw a form of it and its server checks answers. A text that
    may be left out is one to type in, empty for none, instead of a switch between a text and none."""
    schema = parameters.model_json_schema()
    for position, field in enumerate(schema["properties"].values()):
        field["position"] = position
        first, *others = field.get("anyOf", [{}])
        if others and first.get("type") == "string" and None not in field.get("enum", ()):
            del field["anyOf"]
            field.update({**first, "default": field["default"] or ""})
            field |= {"pattern": f"^$|{first['pattern']}"} if "pattern" in first else {}
            field |= {"enum": ["", *first["enum"]]} if "enum" in first else {}
            field.pop("format", None)
    return {**schema, "title": "Parameters", "definitions": schema.pop("$defs", {})}


SILENT: Final = "ajet: a controller that is silent has crashed"
_ENDS: Final = (
    "Completed", "Budget used up", "Failed", "Cancelled", "Crashed", "Suspended", "Scheduled", "AwaitingRetry",
)  # fmt: skip
"""Names of states in which nobody beats any more; a paused study is driven, and beats."""
_ABOUT: Final = (
    "A study: a topic becomes hypotheses, training runs, verdicts and a report, in one flow run for its whole life. "
    "Cancel stops it, Suspend begins nothing new, Resume and Retry go on; a question is a form on its page. Folders "
    "and keys are those of the worker's machine."
)


@dataclass(frozen=True, slots=True)
class ProcessPool:
    """Flow runs are processes of Prefect's worker; relative paths are of `folder`, what they write goes to files."""

    name: str
    folder: Path
    limit: int
    """Most flow runs that have a process at once; a person may change it in Prefect's pages."""


def register(client: SyncPrefectClient, home: Home, pool: ProcessPool, *, limits: bool) -> None:
    """Make the worker's pool, deployment and automation, or bring them up to this version, and to this pool. `limits`
    says that a pool which is there gets this one's limit, whatever a person made of it."""
    _make_pool(client, pool, limits=limits)
    content: dict[str, Any] = {
        "work_pool_name": pool.name, "entrypoint": prefect_api.ENTRYPOINT, "description": _ABOUT, "job_variables": {},
        "parameter_openapi_schema": form_schema(FlowParameters), "enforce_parameter_schema": True,
        # Without it Prefect would copy the folder for each process.
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(pool.folder)}}],
    }  # fmt: skip
    deployment = prefect_api.ensure_deployment(client, home, **content)
    # What is not named stays, schedules among it; but the runs that a schedule has planned go with each change.
    if any(getattr(deployment, field) != value for field, value in content.items()):
        client.update_deployment(deployment.id, DeploymentUpdate(**content))
    if not client.read_automations_by_name(SILENT):
        trigger = EventTrigger(
            after={prefect_api.HEARTBEAT},
            expect={prefect_api.HEARTBEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=ResourceSpecification(
                {"prefect.resource.role": ["tag"], "prefect.resource.id": [f"prefect.tag.{prefect_api.TAG}"]}
            ),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=3 * prefect_api.BEAT_S),
        )
        gone = "no heartbeat: its process is gone"
        crash = ChangeFlowRunState(name="Crashed", state=StateType.CRASHED, message=gone, force=False)
        about = "A flow run of ours without a heartbeat for a minute and a half has no process any more."
        client.create_automation(AutomationCore(name=SILENT, description=about, trigger=trigger, actions=[crash]))


def is_registered(client: SyncPrefectClient, home: Home) -> bool:
    """Return whether the deployment is in a pool; no worker takes the flow runs of one that only shows studies."""
    deployment = prefect_api.find_deployment(client, home)
    return deployment is not None and deployment.work_queue_id is not None


def _make_pool(client: SyncPrefectClient, pool: ProcessPool, *, limits: bool) -> None:
    """Make the pool, with Prefect's own template, in which a flow run says its name only: else, what runs and how. The
    template is kept on the server, so no key is in it."""
    fields = dict(ProcessWorker.get_default_base_job_template()["variables"]["properties"])
    name = fields.pop("name")
    empty: dict[str, Any] = {"object": {}, "array": []}
    fixed = {key: field.get("default", empty.get(field.get("type"))) for key, field in fields.items()}
    command = shlex.join([sys.executable, "-m", PREFECT_COMMAND, "flow-run", "execute"])
    template = {
        "job_configuration": {
            "name": "{{ name }}", **fixed,
            "command": command, "working_dir": str(pool.folder), "stream_output": False,
        },
        "variables": {"type": "object", "properties": {"name": name}, "additionalProperties": False},
    }  # fmt: skip
    try:
        made = client.read_work_pool(pool.name)
    except ObjectNotFound:
        wanted = WorkPoolCreate(
            name=pool.name, type=ProcessWorker.type, base_job_template=template, concurrency_limit=pool.limit,
            description="Studies of this machine and installation; `ajet up --work` runs the worker.",
        )  # fmt: skip
        client.create_work_pool(wanted)
        return
    most = pool.limit if limits else made.concurrency_limit
    if made.base_job_template != template or most != made.concurrency_limit:
        client.update_work_pool(pool.name, WorkPoolUpdate(base_job_template=template, concurrency_limit=most))


CRASHED_S: Final = 15.0
"""How long a flow run stays as it is that has no process: for some seconds the worker is still busy with its end."""
BEGINNING_S: Final = 120.0
"""The same of one that the worker took, or its executor ends: a process is being started, or a hook runs."""
_LOOK_S: Final = 0.5

_IN_VAIN: Final = "its process ended again and again before anything was begun; Retry begins it once more"


def find_begun(studies: Iterable[str], flow_run: UUID) -> str | None:
    return next((study for study in studies if study.endswith(f"-{flow_run_token(flow_run)}")), None)


def flow_run_token(flow_run: UUID) -> str:
    return flow_run.hex[-8:]  # the first ones are a time: those of one schedule share them


class StudyFlowRuns:
    """Keeps the flow run of each of the worker's studies that nobody drives as its log calls for.

    How long one is in a state is counted from look to look, by a clock that stands still while the machine sleeps.
    """

    def __init__(
        self, home: Home, log: EventLog, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._home, self._log, self._warn, self._clock = home, log, warn, clock
        self._unowned = UnownedStudies(log, home, Holder.here(home.path))
        self._seen: dict[str, tuple[UUID, float]] = {}
        """By study, the state of its flow run, and since when it was seen in it."""
        self._taken: dict[UUID, float] = {}
        """States of flow runs that have no process, and since when they were seen."""

    def settle(self, client: SyncPrefectClient) -> None:
        """Settle each study; what keeps one from it keeps no other, and is raised when all were tried."""
        failure: Exception | None = None
        for state in self._unowned.find():
            try:
                with scheduling_lock(self._home):  # nobody hands it over between the look and what follows
                    self._settle(client, state)
            except Exception as error:  # noqa: BLE001 - a client's errors are many
                failure = error
        self._put_back(client)
        if failure is not None:
            raise failure

    def _put_back(self, client: SyncPrefectClient) -> None:
        """Put flow runs back in line that a worker took, and that have no process; of those at work, without a study.
        They would keep their places in the pool for ever. What becomes of others is a question of their studies."""
        kinds = filters.FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
        at = filters.FlowRunFilterState(type=kinds)
        pool = filters.WorkPoolFilter(name=filters.WorkPoolFilterName(any_=[prefect_api.installation_name(self._home)]))
        ours = filters.FlowRunFilter(tags=filters.FlowRunFilterTags(all_=[prefect_api.TAG]), state=at)
        now, studies = self._clock(), self._log.studies()
        taken = {
            run.state.id: run
            for run in client.read_flow_runs(flow_run_filter=ours, work_pool_filter=pool)
            if run.state is not None and not is_flow_run_alive(self._home, run.id)
            if run.state.is_pending() or not (run.parameters.get("study") or find_begun(studies, run.id))
        }
        self._taken = {state: self._taken.get(state, now) for state in taken}
        for state, since in self._taken.items():
            if now - since >= BEGINNING_S:
                run, states = taken[state], client.read_flow_run_states(taken[state].id)
                again = sum(older.message == prefect_api.RESCHEDULED for older in states) < MOST_FRUITLESS
                prefect_api.FlowRun(client, run.id).set(
                    AwaitingRetry(message=prefect_api.RESCHEDULED) if again else Crashed(message=_IN_VAIN)
                )

    def _settle(self, client: SyncPrefectClient, state: StudyState) -> None:
        run = prefect_api.find_flow_run(client, self._home, state.id)
        over = state.stopped_reason is not None or is_done(state)
        if run is None or run.state is None:
            if over:
                self._unowned.forget(state.id)
            elif state.fruitless < MOST_FRUITLESS and is_registered(client, self._home):
                prefect_api.create_flow_run(client, self._home, state, Scheduled(message=prefect_api.RESCHEDULED))
            return
        flow_run, at_prefect = prefect_api.FlowRun(client, run.id), run.state
        if over and at_prefect.is_final() and not at_prefect.is_crashed():
            if at_prefect.is_cancelled() and any(attempts_running(state)):  # whoever stopped it was killed before
                end_attempts(self._home, self._log, StudyLog(self._log, state.id), self._warn)
            self._unowned.forget(state.id)
        elif at_prefect.is_scheduled() or is_flow_run_alive(self._home, run.id):
            return
        elif over:
            if at_prefect.is_paused() or self._lasts(state, at_prefect):
                flow_run.end(prefect_api.describe_end(state, None))
        elif prefect_api.FlowRunState.of(at_prefect).action is prefect_api.UserAction.STOP:
            if at_prefect.is_cancelled() or self._lasts(state, at_prefect):  # which no process saw
                record, reason = StudyLog(self._log, state.id), prefect_api.action_reason(prefect_api.UserAction.STOP)
                record.change(lambda state: build_stop_event(state, reason), actor="user")
                flow_run.end(prefect_api.SessionEnd("cancelled", reason))
                end_attempts(self._home, self._log, record, self._warn)
        elif at_prefect.is_paused():
            self._keep_suspended(flow_run, state, at_prefect)
        elif self._is_left(client, state, run.id, at_prefect):
            flow_run.set(AwaitingRetry(message=prefect_api.RESCHEDULED))

    def _keep_suspended(self, flow_run: prefect_api.FlowRun, state: StudyState, at_prefect: State[Any]) -> None:
        """Have a suspended study wait as long as it takes, and go on where a terminal resumed it or answered it."""
        if prefect_api.expires(at_prefect):  # somebody pressed Suspend, and the process ended before it saw that
            request_pause(self._log, state.id, prefect_api.action_reason(prefect_api.UserAction.PAUSE))
            state = fold(self._log.read(state.id))
        question = question_of(state) if state.paused_reason is None else None
        waits = state.paused_reason is not None or question is not None
        if not waits or any(attempts_running(state)):
            flow_run.set(AwaitingRetry(message=prefect_api.RESCHEDULED))
            return
        digest = "" if question is None else question.digest
        lasts = bool(at_prefect.state_details.pause_reschedule) and not prefect_api.expires(at_prefect)
        if not lasts or prefect_api.FlowRunState.of(at_prefect).digest != digest:
            flow_run.end(prefect_api.SessionEnd("rests", state.paused_reason or "it waits for an answer", question))

    def _is_left(self, client: SyncPrefectClient, state: StudyState, run: UUID, at_prefect: State[Any]) -> bool:
        """Return whether a flow run without a process is to get one; one that fails as it begins, only a few times."""
        if at_prefect.is_completed() or state.fruitless >= MOST_FRUITLESS:
            return False
        if not self._lasts(state, at_prefect):
            return False
        states, last = client.read_flow_run_states(run), datetime.fromisoformat(state.last_ts)
        if at_prefect.is_failed():  # one that was refused since it was put in line is a person's to retry
            return max((older.timestamp for older in states if older.is_scheduled()), default=last) < last
        return sum(older.is_crashed() and older.timestamp > last for older in states) < MOST_FRUITLESS

    def _lasts(self, state: StudyState, at_prefect: State[Any]) -> bool:
        now, busy = self._clock(), at_prefect.is_pending() or at_prefect.is_cancelling()
        before, since = self._seen.get(state.id, (None, now))
        if before != at_prefect.id:
            self._seen[state.id] = at_prefect.id, (since := now)
        return now - since >= (BEGINNING_S if busy else CRASHED_S)


@contextmanager
def scheduling_lock(home: Home) -> Iterator[None]:
    """Let the worker and a command that hand the same study over look and give one after the other."""
    with FileLock(home.prefect / "handing.lock", timeout=prefect_api.OTHERS_S, mode=0o600, fallback_to_soft=False):
        yield


_HALTS = (EventType.STUDY_STOPPED, EventType.STUDY_PAUSED, EventType.APPROVAL_DENIED)


def overrides_stop(log: EventLog, study: str, requested_at: datetime | None) -> bool:
    """Return whether somebody wished to go on with a study after it was stopped, paused or denied last."""
    halts = (event.ts for event in log.read(study) if event.type in _HALTS)
    return requested_at is not None and all(datetime.fromisoformat(at) <= requested_at for at in halts)


def why_released(state: StudyState) -> str | None:
    """Return why a study is not a worker's to go on with; None where it is."""
    return state.stopped_reason or (None if state.served else "a terminal went on with it since")


def is_on_hold(state: StudyState) -> bool:
    return state.paused_reason is not None or why_released(state) is not None


def hand_over(client: SyncPrefectClient, home: Home, log: EventLog, study: str) -> UUID:
    """Put a study's flow run in line, as a person asks; one that waits already, and will go on, is left as it is.
    Raises NotReady where no worker tells the server of itself."""
    state = fold(log.read(study))
    until = time.monotonic() + prefect_api.OTHERS_S
    # A server that lost its database knows no study before the worker has told it what runs here.
    while prefect_api.find_flow_run(client, home, study) is None and not is_registered(client, home):
        if time.monotonic() > until:
            raise NotReady("expected the worker's deployment in its pool; found none; start the worker: ajet up --work")
        time.sleep(_LOOK_S)
    with scheduling_lock(home):
        run = prefect_api.find_flow_run(client, home, study)
        run = run or prefect_api.create_flow_run(client, home, state, Scheduled(message=_HANDED_OVER))
        waits = run.state is not None and (run.state.is_scheduled() or run.state.is_pending())
        goes_on = not is_on_hold(state) or overrides_stop(
            log, study, prefect_api.FlowRun(client, run.id).request_time()
        )
        if not (waits and goes_on):
            prefect_api.FlowRun(client, run.id).set(Scheduled(message=_HANDED_OVER))
        return run.id


_HANDED_OVER: Final = "handed over by a command"
ScheduleStudy = Callable[[str], str]
"""Gives the worker a study that is in the log; returns the address of its flow run, or raises NotReady."""


def worker_scheduler(home: Home) -> ScheduleStudy:
    """Return the way to the worker of an installation; raise NotReady where none runs or its server is silent."""
    require_worker(home)
    server = ensure_server(home.prefect)
    os.environ.update(client_environment(home.prefect))

    def schedule(study: str) -> str:
        try:
            with prefect_api.connect(server.api) as client, closing(EventLog(home.database)) as log:
                return f"{server.url}/runs/flow-run/{hand_over(client, home, log, study)}"
        except Exception as error:  # a client's errors are many, and mean the same here
            raise NotReady(
                f"expected the Prefect server at {server.url} to take study {study} for the worker; found "
                f"{describe_error(error)}; the "
                f"study is kept, give it again with: ajet study resume {study} --detach"
            ) from error

    return schedule
