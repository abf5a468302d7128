"""The client of a Prefect server: the deployment, one flow run, and what users did there.

A study is one flow run for its whole life, of the deployment `ajet-research`, which is named after this machine and
this installation's folder; its id is kept in the study's folder, in `prefect.json`. A study that a terminal drives
belongs to the deployment too, because Prefect offers Cancel, Suspend and Retry for runs of deployments only.

Reconciling: what UI and log agreed on last is remembered, and the side that differs has changed. Where both changed,
the user's action goes first.

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from http import HTTPStatus
from textwrap import shorten
from typing import Any, Final, Literal, NamedTuple, TypeVar
from uuid import UUID, uuid4

import httpx
from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun as PrefectFlowRun
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, Paused, Running, Suspended
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from research.controller.interventions import MOST_NOTE
from research.controller.mirror import describe_error
from research.files import read_json, write_json
from research.installation.home import Home
from research.orchestration.server import AUTH
from research.orchestration.task_rows import TaskRuns
from research.scheduler.required_runs import is_stopped_by_budget
from studies import StoreError, StudyState

RESEARCH: Final = "ajet-research"
ENTRYPOINT: Final = "research.orchestration.flow.research"
TAG: Final = "ajet"
"""On every flow run of ours, so that automations can tell them from others."""
OTHERS_S: Final = 60.0
"""How long others are waited for that make a deployment, or hand a study over, at the same time."""
_NO_WORKER: Final = (
    "What `ajet research` and `ajet study resume` drive on this machine. Cancel and Suspend are obeyed; a run that is "
    "begun here waits for a worker: `ajet up --work`."
)


def installation_name(home: Home) -> str:
    """Return the name of this machine and installation, the same for all its processes, however they spell its path."""
    return f"{socket.gethostname()}-{hashlib.sha256(str(home.path.resolve()).encode()).hexdigest()[:4]}"


def ensure_deployment(client: SyncPrefectClient, home: Home, **content: Any) -> DeploymentResponse:
    """Return the deployment of an installation; where there is none, one is made with this content. The installation's
    processes do so one after the other: Prefect makes one over another of its name."""
    if (deployment := find_deployment(client, home)) is not None:
        return deployment
    home.prefect.mkdir(parents=True, exist_ok=True)
    with FileLock(home.prefect / "deployments.lock", timeout=OTHERS_S, mode=0o600, fallback_to_soft=False):
        if (deployment := find_deployment(client, home)) is not None:
            return deployment
        content = {"description": _NO_WORKER, "entrypoint": ENTRYPOINT, **content}
        flow, name = client.create_flow_from_name(RESEARCH), f"research@{installation_name(home)}"
        return client.read_deployment(client.create_deployment(flow, name, tags=[TAG], **content))


def find_deployment(client: SyncPrefectClient, home: Home) -> DeploymentResponse | None:
    with suppress(ObjectNotFound):
        return client.read_deployment_by_name(f"{RESEARCH}/research@{installation_name(home)}")
    return None


def read_note(home: Home, study: str) -> UUID | None:
    try:
        note: Any = read_json(home.study(study) / "prefect.json")
        return UUID(note["flow_run"])
    except (KeyError, TypeError, ValueError):
        return None


def write_note(home: Home, study: str, flow_run: UUID) -> None:
    write_json(home.study(study) / "prefect.json", {"flow_run": str(flow_run)})


def find_flow_run(client: SyncPrefectClient, home: Home, study: str) -> PrefectFlowRun | None:
    """Return the flow run of a study; None where it has none, or none that this server knows."""
    if (identity := read_note(home, study)) is None:
        return None
    with suppress(ObjectNotFound):
        return client.read_flow_run(identity)
    return None


def create_flow_run(client: SyncPrefectClient, home: Home, study: StudyState, state: State[Any]) -> PrefectFlowRun:
    """Create the flow run of a study in this state, and keep its id in the study's folder. A server that took too long
    to answer made one all the same, which whoever tries again is given by its key."""
    deployment = ensure_deployment(client, home).id
    made = client.create_flow_run_from_deployment(
        deployment, name=_name(study.topic, study.id), parameters={"study": study.id}, state=state,
        tags=[TAG, study.id], idempotency_key=f"{deployment}/{study.id}/{study.event_count}",
    )  # fmt: skip
    write_note(home, study.id, made.id)
    return made


RESCHEDULED: Final = "its process ended; the study goes on in a new one"
LEFT: Final = "left with the worker; runs that were started go on, and so does the study with the next worker"
_WAITS: Final = ("Late", "AwaitingConcurrencySlot")
"""Names by which the server says that a scheduled run still waits."""


def is_put_back(state: State[Any]) -> bool:
    """Return whether a state is the one by which Prefect's executor, asked to leave, puts what it runs back in line."""
    return state.is_scheduled() and state.name == "AwaitingRetry" and not state.message


class ApprovalForm(BaseModel):
    """What the form of a question has for fields; sent unread, it answers nothing."""

    model_config = ConfigDict(title="Approval")

    answer: Literal["wait", "approve", "deny"] = Field(
        default="wait", description="deny stops the study; wait leaves the question open."
    )
    note: str = Field(default="", max_length=MOST_NOTE, description="For the report; may stay empty.")


class Question(NamedTuple):
    """What a study asks, as its flow run shows it above the form."""

    digest: str
    text: str

    @property
    def keys(self) -> dict[str, str]:
        return {part: f"approval-{self.digest}-{part}" for part in ("schema", "response", "description")}


class Activity(Enum):
    """What a study that is not over is shown as."""

    RUNNING = "running"
    PAUSED = "paused"
    ASKING = "asking"


class UserAction(Enum):
    """What a user may click in Prefect's UI."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


def reconcile(agreed: Activity, action: UserAction | None, study: Activity) -> tuple[Activity, UserAction | None]:
    """Return the activity on both sides now, and the action that the study has to be asked for to get there. They
    follow from a user's action (None for none) and the study, which agreed on `agreed` before."""
    if action is UserAction.STOP:
        return agreed, UserAction.STOP
    wanted = {UserAction.CONTINUE: Activity.RUNNING, UserAction.PAUSE: Activity.PAUSED, None: agreed}[action]
    if wanted is agreed:
        return study, None
    return wanted, action if wanted is not study else None


def activity(state: StudyState) -> Activity:
    if state.paused_reason is not None:
        return Activity.PAUSED
    return Activity.RUNNING if state.open_question is None else Activity.ASKING


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended, for its flow run's state."""

    how: Literal["concluded", "budget", "cancelled", "failed", "left", "rests"]
    message: str
    question: Question | None = None
    """What a person is asked by one that rests; None for nothing."""


def describe_end(state: StudyState, error: BaseException | None) -> SessionEnd:
    if isinstance(error, Exception):
        return SessionEnd("failed", str(error) or type(error).__name__)
    if state.concluded_reason is not None:
        return SessionEnd("concluded", state.concluded_reason)
    if error is not None or state.stopped_reason is None:
        return SessionEnd("left", "left at once; runs that were started go on, and so does `ajet study resume`")
    if is_stopped_by_budget(state):
        return SessionEnd("budget", state.stopped_reason)
    return SessionEnd("cancelled", state.stopped_reason)


BEAT_S = 30.0
"""Seconds between two heartbeats: three missed ones crash a flow run (`research.orchestration.deployment`)."""


def action_reason(action: UserAction) -> str:
    return "cancelled in the Prefect UI" if action is UserAction.STOP else "paused in the Prefect UI"


HEARTBEAT = "prefect.flow-run.heartbeat"
"""The event by which Prefect's own engine says that a flow run lives."""
_MOST_TOPIC = 50
"""Letters of a topic in a flow run's name: with the study's id it fits in a line of Prefect's list."""
LASTS_S: Final = 10 * 365 * 86_400
"""Seconds that a pause may last: Prefect fails a flow run whose pause has expired."""
_LEAST_S: Final = LASTS_S / 2
"""A pause that ends sooner is one of Prefect's pages: five minutes."""


def connect(api: str) -> SyncPrefectClient:
    """Return a client of the server at this address, let in as the environment says."""
    auth = {PREFECT_API_AUTH_STRING: os.environ[AUTH]} if os.environ.get(AUTH) else {}
    with temporary_settings({PREFECT_API_URL: api, **auth}):
        return get_client(sync_client=True)


@dataclass(frozen=True, slots=True)
class FlowRunState:
    """A flow run's state as it is there: what somebody clicked, the activity it shows, and the question it asks."""

    action: UserAction | None
    shows: Activity | None = None
    digest: str = ""
    put_back: bool = False
    """Whether the process is being asked to leave, which is nobody's wish to go on."""

    @classmethod
    def of(cls, state: State[Any] | None) -> "FlowRunState":
        if state is None:
            return cls(None)
        if state.is_cancelling() or state.is_cancelled():
            return cls(UserAction.STOP)
        if state.is_paused():
            lasts = not state.state_details.pause_reschedule
            if (keys := state.state_details.run_input_keyset) is not None:
                digest = keys["response"].removeprefix("approval-").removesuffix("-response")
                return cls(None, Activity.ASKING if lasts else None, digest)
            return cls(UserAction.PAUSE, Activity.PAUSED if lasts else None)
        if state.is_running():
            return cls(UserAction.CONTINUE, Activity.RUNNING)
        if is_put_back(state):
            return cls(None, put_back=True)
        # Resume schedules a suspended run, for which a worker then begins a process.
        return cls(UserAction.CONTINUE if state.is_scheduled() or state.is_pending() else None)


def expires(state: State[Any]) -> bool:
    """Return whether Prefect would fail a suspended run before long."""
    until = state.state_details.pause_timeout
    return until is not None and until.timestamp() - state.timestamp.timestamp() < _LEAST_S


class FlowRun:
    """A flow run that this process writes; ObjectNotFound where the server's database is another one."""

    def __init__(self, client: SyncPrefectClient, identity: UUID) -> None:
        self.id = identity
        self._client = client
        self.task_runs = TaskRuns(client, identity)

    def sibling(self, identity: UUID) -> "FlowRun":
        return self if identity == self.id else FlowRun(self._client, identity)

    def adopt(self, study: StudyState) -> None:
        """Name and tag it after its study. Tags that somebody gave it stay: their automations look for them."""
        tags = dict.fromkeys([*self.read().tags, TAG, study.id])
        self._client.update_flow_run(self.id, name=_name(study.topic, study.id), tags=list(tags))

    def rename(self, topic: str) -> None:
        self._client.update_flow_run(self.id, name=_name(topic))

    def read(self) -> PrefectFlowRun:
        try:
            return self._client.read_flow_run(self.id)
        except Exception:
            self.task_runs.mark_unsent()
            raise

    def read_state(self) -> FlowRunState:
        return FlowRunState.of(self.read().state)

    def request_time(self) -> datetime | None:
        """Return for when a person asked for it last, by the server's clock; None where nobody did."""
        times: list[datetime] = []
        before: State[Any] | None = None
        for state in sorted(self._client.read_flow_run_states(self.id), key=lambda state: state.timestamp):
            if state.message == LEFT and before is not None and before.is_scheduled() and before.timestamp in times:
                times.remove(before.timestamp)  # Prefect's own word for a process that is asked to leave
            wished = state.name not in _WAITS and state.message not in (RESCHEDULED, LEFT)
            if is_put_back(state) and before is not None and not (before.is_final() or before.is_scheduled()):
                wished = False  # the process was killed before it could say LEFT
            if state.is_scheduled() and wished:
                times.append(max(state.timestamp, state.state_details.scheduled_time or state.timestamp))
            before = state
        return max(times, default=None)

    def set(self, state: State[Any]) -> State[Any]:
        self._client.set_flow_run_state(self.id, state, force=True)
        return state

    def show(self, activity: Activity, reason: str, question: Question | None = None) -> None:
        """Show a study that a process drives; a pause that is shown lasts, and its Resume begins no process."""
        if activity is Activity.RUNNING:
            self.set(Running())
        else:
            self.set(self._ask(Paused(timeout_seconds=LASTS_S, reschedule=False, message=_pause(reason)), question))

    def _ask(self, state: State[Any], question: Question | None) -> State[Any]:
        if question is not None:
            for part, content in {"schema": ApprovalForm.model_json_schema(), "description": question.text}.items():
                try:
                    self._client.create_flow_run_input(self.id, key=question.keys[part], value=json.dumps(content))
                except PrefectHTTPStatusError as error:
                    if error.response.status_code != HTTPStatus.CONFLICT:  # there already
                        raise
            state.state_details.run_input_keyset = question.keys
            state.message = "waits for an answer; press Resume"
        return state

    def read_answer(self, question: Question) -> ApprovalForm | None:
        """Return what was answered in the form; None for nothing. One that says `wait` is forgotten."""
        key = question.keys["response"]
        try:
            answer = ApprovalForm.model_validate_json(self._client.read_flow_run_input(self.id, key=key))
        except PrefectHTTPStatusError as error:
            if error.response.status_code == HTTPStatus.NOT_FOUND:
                return None
            raise
        except ValidationError:  # whoever writes to the server by other means than the form
            answer = ApprovalForm()
        if answer.answer != "wait":
            return answer
        with suppress(PrefectHTTPStatusError):
            self._client.delete_flow_run_input(self.id, key=key)
        return None

    def end(self, ending: SessionEnd) -> State[Any]:
        """Set the state after a session, and where it failed say why in the log too, which a page shows. One that rests
        is suspended until somebody resumes it, or answers its question."""
        if ending.how == "rests":
            rest: State[Any] = Suspended(timeout_seconds=LASTS_S, message=_pause(ending.message))
            return self.set(self._ask(rest, ending.question))
        states: Mapping[str, Callable[..., State[Any]]] = {
            "concluded": Completed, "budget": partial(Completed, name="Budget used up"), "cancelled": Cancelled,
            "failed": Failed, "left": Crashed,
        }  # fmt: skip
        if ending.how == "failed":
            self.log([ending.message], logging.ERROR)
        return self.set(states[ending.how](message=ending.message))

    def send_heartbeat(self) -> None:
        event = {
            "id": str(uuid4()), "occurred": datetime.now(UTC).isoformat(), "event": HEARTBEAT, "payload": {},
            "resource": {"prefect.resource.id": f"prefect.flow-run.{self.id}"},
            "related": [{"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}],
        }  # fmt: skip
        self._client.request("POST", "/events", json=[event])

    def log(self, lines: Iterable[str], level: int = logging.INFO) -> None:
        about = {"name": "ajet", "level": level, "flow_run_id": str(self.id)}
        at = datetime.now(UTC).isoformat()
        self._client.create_logs({**about, "message": line, "timestamp": at} for line in lines)

    def publish(self, key: str, type: str, data: object, description: str) -> None:
        """Publish an artifact, in the place of the one of this key if that is there; somebody may have deleted it on
        Prefect's page. `type` is Prefect's: `markdown`, `table` or `progress`."""
        own, of_key = ArtifactFilterFlowRunId(any_=[self.id]), ArtifactFilterKey(any_=[key])
        if shown := self._client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=own, key=of_key)):
            changes = {"data": data, "description": description}
            self._client.request("PATCH", "/artifacts/{id}", path_params={"id": shown[0].id}, json=changes)
            return
        # By hand, because the client's own way sends an event too, by a thread of its own.
        artifact = ArtifactCreate(key=key, type=type, data=data, description=description, flow_run_id=self.id)
        self._client.request("POST", "/artifacts/", json=artifact.model_dump(mode="json", exclude_unset=True))


def _pause(reason: str) -> str:
    return f"{reason}: no run begins, those that are under way are finished"


def _name(topic: str, study: str = "") -> str:
    return (f"{study}: " if study else "") + shorten(topic, _MOST_TOPIC, placeholder=" …")


RETRY_TIMEOUT_S: Final = 300.0
"""Most seconds that a server is waited for."""
AGAIN_S: Final = 2.0

Answer = TypeVar("Answer")


def retry(ask: Callable[[], Answer], note: Callable[[str], None], most_s: float = RETRY_TIMEOUT_S) -> Answer:
    """Return an answer; where a server or the event log is away ask again, for so long, after telling `note` once."""
    until, noted = time.monotonic() + most_s, False
    while True:
        try:
            return ask()
        except (httpx.HTTPError, StoreError) as error:
            away = isinstance(error, httpx.TransportError | StoreError)  # nobody answered, or who cannot now
            if isinstance(error, httpx.HTTPStatusError):
                away = error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
            if not away or time.monotonic() > until:
                raise
            if not noted:
                where = "the event log" if isinstance(error, StoreError) else "Prefect"
                note(f"waiting for {where}: {describe_error(error)}")
                noted = True
        time.sleep(AGAIN_S)
