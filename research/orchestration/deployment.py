"""What a Prefect server is told of a machine's worker, and runs that wait for it.

Told are a pool, two deployments with their forms, and an automation; telling it again keeps what people changed
(schedules, the automation, the pool's limit). A study is handed over once: flow runs that wait for the worker, or were
cancelled meanwhile, are found again. A wish to go on is the time somebody asked (None where a worker takes up by
itself); a later stop or pause stays, and so does what a terminal took back.

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, Scheduled
from prefect.workers.process import ProcessWorker
from pydantic import BaseModel, ConfigDict, Field

from research.controller.options import ResearchOptions
from research.errors import NotReady
from research.installation.home import Home
from research.orchestration.prefect_api import (
    BEAT_S,
    HEARTBEAT,
    RESEARCH,
    RESUME,
    TAG,
    UserAction,
    action_reason,
    connect,
    ensure_deployment,
    find_deployment,
    request_time,
    schedule_resume,
)
from research.orchestration.server import PrefectUnavailable, client_environment, ensure_server
from research.orchestration.supervision import is_flow_run_alive, require_worker
from research.scheduler.next_step import is_done
from studies import EventLog, EventType, LogCorrupt, StudyLog, StudyState, fold
from studies.log.locks import ControllerLeases, Holder, LeaseWatch, SteadyClock, suspend_aware_time

MOST_FRUITLESS = 5
"""Times that a study is taken up without anything happening to it, before only a person takes it up again."""


class UnownedStudies:
    """Looks for them, again and again: a study is read where something was appended since the last look."""

    def __init__(self, log: EventLog, home: Home, me: Holder, clock: SteadyClock = suspend_aware_time) -> None:
        self._log = log
        self._home = home
        self._leases = ControllerLeases(log, clock=clock)
        self._watch = LeaseWatch(self._leases, me)
        self._me = me
        self._known: dict[str, tuple[str, StudyState | None]] = {}
        self._records: dict[str, StudyLog] = {}
        """Logs of the worker's studies, of which only what is new is read."""

    def find(self) -> Iterator[StudyState]:
        """Yield the worker's studies here that are not over, stopped or corrupt, and that nobody drives.

        A flow run of one may wait at Prefect's server, which is not known here.
        """
        heads = self._log.heads()
        self._known = {study: self._read(study, head) for study, head in heads.items()}
        for _, state in self._known.values():
            if state is not None and self._is_unowned(state.id):
                yield state

    def _read(self, study: str, head: str) -> tuple[str, StudyState | None]:
        if (known := self._known.get(study)) is not None and known[0] == head:
            return known
        record = self._records.pop(study, None) or StudyLog(self._log, study)
        try:
            state = record.state()
        except LogCorrupt:
            return head, None
        if not belongs_to_worker(state):
            return head, None
        self._records[study] = record
        return head, state

    def _is_unowned(self, study: str) -> bool:
        """Return whether the study lies here, and its last controller was of here and is gone, or there was none yet.

        Installations may share a log: where a study lies is where its folder is, which is made before it is created.
        """
        if not self._home.study(study).is_dir():
            return False
        row = self._leases.read(study)
        if row is None:  # handed over, and begun by nobody
            return True
        if Path(row.holder.home).resolve() != self._home.path.resolve():
            return False
        return self._watch.is_gone(study)  # of a host that was started anew: once its lease stood still long enough


def belongs_to_worker(state: StudyState) -> bool:
    """Return whether a worker takes this study up where nobody drives it: one that lacks its report is not over."""
    over = state.stopped_reason is not None or is_done(state)
    return state.served and not over and state.fruitless < MOST_FRUITLESS


class ResumeParameters(BaseModel):
    """Which study is to go on."""

    model_config = ConfigDict(extra="forbid")

    study: str = Field(
        min_length=1, description="Id of a study of the worker's installation, or its beginning (`ajet study list`)"
    )


def form_schema(parameters: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of parameters as Prefect's pages draw a form of it and its server checks answers.

    A text that may be left out is one to type in, empty for none, instead of a switch between a text and none.
    """
    schema = parameters.model_json_schema()
    for position, field in enumerate(schema["properties"].values()):
        field["position"] = position
        first, *others = field.get("anyOf", [{}])
        if others and first.get("type") == "string" and None not in field.get("enum", ()):
            del field["anyOf"]
            field.update({**first, "default": field["default"] or ""})
            field.pop("format", None)
    return {**schema, "title": "Parameters", "definitions": schema.pop("$defs", {})}


FLOW_MODULE: Final = "research.orchestration.flow"
SILENT: Final = "ajet: a controller that is silent has crashed"
_ENDS: Final = ("Completed", "Failed", "Cancelled", "Crashed", "Scheduled")
"""Names of states in which nobody beats any more; a paused study is driven, and beats."""
_MISSED: Final = 3
_ABOUT: Final[Mapping[str, str]] = {
    RESEARCH: (
        "A new study: a topic becomes hypotheses, training runs, verdicts and a report. Cancel stops it, Pause begins "
        "nothing new; `ajet-resume` goes on. Folders and keys are those of the worker's machine."
    ),
    RESUME: "Goes on with a study that was stopped, or whose controller ended; runs that go on are adopted.",
}


@dataclass(frozen=True, slots=True)
class ProcessPool:
    """Sittings are processes of Prefect's worker; relative paths are of `folder`, what they write goes to files."""

    name: str
    folder: Path

    @property
    def job(self) -> Mapping[str, Any]:
        """What is fixed of the jobs in the pool's template; it is kept on the server, so no key is in it."""
        command = shlex.join([sys.executable, "-m", FLOW_MODULE])
        return {"command": command, "working_dir": str(self.folder), "stream_output": False}


def register(client: SyncPrefectClient, home: Home, pool: ProcessPool) -> None:
    """Make the worker's pool, deployments and automation, or bring them up to this version, and to this pool."""
    _make_pool(client, pool)
    _deploy(client, home, RESEARCH, form_schema(ResearchOptions), pool)
    _deploy(client, home, RESUME, form_schema(ResumeParameters), pool)
    if not client.read_automations_by_name(SILENT):
        client.create_automation(_heartbeat_automation())


def _make_pool(client: SyncPrefectClient, pool: ProcessPool) -> None:
    template = _template(pool)
    try:
        known = client.read_work_pool(pool.name)
    except ObjectNotFound:
        made = WorkPoolCreate(
            name=pool.name, type=ProcessWorker.type, base_job_template=template,
            description="Studies of this machine and installation; `ajet up --work` runs the worker.",
        )  # fmt: skip
        client.create_work_pool(made)
        return
    if known.base_job_template != template:
        client.update_work_pool(pool.name, WorkPoolUpdate(base_job_template=template))


def _template(pool: ProcessPool) -> dict[str, Any]:
    """Return Prefect's own template, in which a flow run says its name only: else, what runs here and how."""
    fields = dict(ProcessWorker.get_default_base_job_template()["variables"]["properties"])
    name = fields.pop("name")
    empty: dict[str, Any] = {"object": {}, "array": []}
    fixed = {key: field.get("default", empty.get(field.get("type"))) for key, field in fields.items()}
    return {
        "job_configuration": {"name": "{{ name }}", **fixed, **pool.job},
        "variables": {"type": "object", "properties": {"name": name}, "additionalProperties": False},
    }


def _deploy(client: SyncPrefectClient, home: Home, name: str, form: dict[str, Any], pool: ProcessPool) -> None:
    told: dict[str, Any] = {
        "work_pool_name": pool.name, "description": _ABOUT[name], "parameter_openapi_schema": form,
        "enforce_parameter_schema": True, "job_variables": {},
    }  # fmt: skip
    known = ensure_deployment(client, home, name, **told)
    # What is not told stays, schedules among it; but the runs that a schedule has planned go with each change.
    if any(getattr(known, field) != value for field, value in told.items()):
        client.update_deployment(known.id, DeploymentUpdate(**told))


def _heartbeat_automation() -> AutomationCore:
    gone = "no heartbeat: its process is gone"
    return AutomationCore(
        name=SILENT,
        description="A flow run of ours without a heartbeat for a minute and a half has no process any more.",
        trigger=EventTrigger(
            after={HEARTBEAT},
            expect={HEARTBEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=ResourceSpecification(
                {"prefect.resource.role": ["tag"], "prefect.resource.id": [f"prefect.tag.{TAG}"]}
            ),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=_MISSED * BEAT_S),
        ),
        actions=[ChangeFlowRunState(name="Crashed", state=StateType.CRASHED, message=gone, force=False)],
    )


BEGINNING_S: Final = 120.0
"""How long a flow run that the worker took may have no process: it is being started."""
_OTHERS_S: Final = 60.0
"""How long others are waited for that hand a study over at the same time."""
_IN_VAIN: Final = "no worker takes this up any more, or what it asked for; the study was handed over anew"

WillDo = Callable[[FlowRun], bool]
"""Tells whether a flow run that waits will do what is asked for."""


class CancelledWhileWaiting(Exception):
    """Somebody cancelled the flow run that a study waited in, or was left in: it is not to be handed over by itself."""

    def __init__(self, flow_run: UUID) -> None:
        super().__init__(str(flow_run))
        self.flow_run = flow_run


def schedule_once(
    client: SyncPrefectClient, home: Home, study: str, key: str, *, again: bool, will_do: WillDo = lambda run: True
) -> FlowRun:
    """Return the flow run in which a worker takes a study up: the one that waits, else one that is made with this key.

    One that waits and will not do is closed. Raises CancelledWhileWaiting where the last one was cancelled, and nobody
    was there to carry that out, unless it is asked for `again` by a person. Every call raises what Prefect's client
    raises.
    """
    with _scheduling_lock(home):
        return _find_or_schedule(client, home, study, key, again, will_do)


def reschedule_or_stop(client: SyncPrefectClient, home: Home, study: str, key: str, stop: Callable[[], None]) -> bool:
    """Have a worker take up a study that was left; return False where it was cancelled, and call `stop` instead."""
    with _scheduling_lock(home):  # nobody hands it over between the look and the stop
        try:
            _find_or_schedule(client, home, study, key, again=False, will_do=lambda run: True)
        except CancelledWhileWaiting as cancelled:
            stop()
            client.set_flow_run_state(cancelled.flow_run, Cancelled(message=action_reason(UserAction.STOP)), force=True)
            return False
    return True


def _find_or_schedule(
    client: SyncPrefectClient, home: Home, study: str, key: str, again: bool, will_do: WillDo
) -> FlowRun:
    runs, pool = _flow_runs_of(client, study), _find_pool(client, home)
    for run in runs:
        if _is_waiting(pool, run) and will_do(run):
            return run
    if not again and runs and _is_cancelled(runs[0]):
        raise CancelledWhileWaiting(runs[0].id)
    _close(client, runs)
    return _schedule(client, home, study, key)


def _schedule(client: SyncPrefectClient, home: Home, study: str, key: str) -> FlowRun:
    """Return the flow run of a key; one whose process was killed before it had the study is followed by so many."""
    runs = (schedule_resume(client, home, study, f"{key}/{number}") for number in range(MOST_FRUITLESS))
    for run in runs:
        if run.state is None or not run.state.is_crashed():
            break
    return run


class StalledFlowRuns:
    """Flow runs that a worker of here took and then ended before it had started their process.

    How long one has none is counted from look to look, by a clock that stands still while the machine sleeps. One that
    only comes up slowly is not begun twice, which ends Prefect's worker.
    """

    def __init__(self, home: Home, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._since: dict[UUID, float] = {}

    def reschedule(self, client: SyncPrefectClient) -> None:
        """Put those back in line that had no process for `BEGINNING_S`; raises what Prefect's client raises."""
        now = self._clock()
        taken = {
            run.id: run for run in _pending_flow_runs(client, self._home) if not is_flow_run_alive(self._home, run.id)
        }
        self._since = {each: self._since.get(each, now) for each in taken}
        for each, since in self._since.items():
            if now - since >= BEGINNING_S:
                again: State[None] = Scheduled(scheduled_time=taken[each].expected_start_time)
                client.set_flow_run_state(each, again, force=True)


def _pending_flow_runs(client: SyncPrefectClient, home: Home) -> Sequence[FlowRun]:
    if (pool := _find_pool(client, home)) is None:
        return []
    pending = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING])),
    )
    here = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    return client.read_flow_runs(flow_run_filter=pending, work_pool_filter=here)


@contextmanager
def _scheduling_lock(home: Home) -> Iterator[None]:
    """Let the worker and a command that hand the same study over look and give one after the other."""
    with FileLock(home.prefect / "handing.lock", timeout=_OTHERS_S, mode=0o600, fallback_to_soft=False):
        yield


def _flow_runs_of(client: SyncPrefectClient, study: str) -> Sequence[FlowRun]:
    """Return the flow runs of a study's stretches, the newest first; a form for approval is none."""
    of_it = FlowRunFilter(tags=FlowRunFilterTags(all_=[TAG, study]))
    runs = client.read_flow_runs(flow_run_filter=of_it, sort=FlowRunSort.EXPECTED_START_TIME_DESC)
    return sorted(runs, key=lambda run: str(run.created), reverse=True)


def _find_pool(client: SyncPrefectClient, home: Home) -> str | None:
    known = find_deployment(client, home, RESUME)
    return None if known is None else known.work_pool_name


def _is_waiting(pool: str | None, run: FlowRun) -> bool:
    """Return whether a worker of here will begin a flow run, or begins it now; one taken in vain is put back."""
    if (state := run.state) is None or pool is None or run.work_pool_name != pool:  # that pool has no worker
        return False
    return state.is_pending() or state.is_scheduled()


def _is_cancelled(run: FlowRun) -> bool:
    """Return whether a flow run of a study that nobody drives was cancelled: whoever stops the study says Cancelled."""
    if (state := run.state) is None:
        return False
    return state.is_cancelling() or (state.is_cancelled() and run.run_count == 0)


def _close(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> None:
    for run in runs:
        if (state := run.state) is not None and (state.is_scheduled() or state.is_pending()):
            client.set_flow_run_state(run.id, Crashed(message=_IN_VAIN), force=True)


_HALTS = (EventType.STUDY_STOPPED, EventType.STUDY_PAUSED)


def overrides_stop(log: EventLog, study: str, requested_at: datetime | None) -> bool:
    """Return whether somebody wished to go on with a study after it was stopped or paused last."""
    halts = (each.ts for each in log.read(study) if each.type in _HALTS)
    return requested_at is not None and all(datetime.fromisoformat(at) <= requested_at for at in halts)


def why_released(state: StudyState) -> str | None:
    """Return why a study is not a worker's to go on with; None where it is."""
    return state.stopped_reason or (None if state.served else "a terminal went on with it since")


def is_on_hold(state: StudyState) -> bool:
    return state.paused_reason is not None or why_released(state) is not None


def should_resume(log: EventLog, study: str, requested_at: datetime | None) -> bool:
    return overrides_stop(log, study, requested_at) or not is_on_hold(fold(log.read(study)))


ScheduleStudy = Callable[[str], str]
"""Gives the worker a study that is in the log; returns the address of its flow run, or raises NotReady."""


def worker_scheduler(home: Home) -> ScheduleStudy:
    """Return the way to the worker of an installation; raise NotReady where none runs or its server is silent."""
    require_worker(home)
    try:
        server = ensure_server(home.prefect)
    except PrefectUnavailable as error:
        raise NotReady(str(error)) from error
    os.environ.update(client_environment(home.prefect))

    def schedule(study: str) -> str:
        key = f"{study}/{secrets.token_hex(8)}"  # of its own: an earlier flow run may have been cancelled
        try:
            with connect(server.api) as client, closing(EventLog(home.database)) as log:
                # One that waits since before a stop would leave the study stopped.
                def will_do(run: FlowRun) -> bool:
                    return should_resume(log, study, request_time(run))

                run = schedule_once(client, home, study, key, again=True, will_do=will_do)
                return f"{server.url}/runs/flow-run/{run.id}"
        except Exception as error:  # a client's errors are many, and mean the same here
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise NotReady(
                f"expected the Prefect server at {server.url} to take study {study} for the worker; found {why}; the "
                f"study is kept, give it again with: ajet study resume {study} --detach"
            ) from error

    return schedule
