"""The client of a Prefect server: deployments, one flow run, and what users did there.

`ajet-research` takes a topic, `ajet-resume` a study; both are named after this machine and this installation's folder,
as a study goes on where its folder is. Sessions belong to `ajet-resume` even without a worker, because Prefect offers
Cancel and Pause for runs of deployments only. Runs are found again by their keys, so what is written twice changes
nothing.

Reconciling: what UI and log agreed on last is remembered, and the side that differs has changed. A change in the UI is
a user's action, which the study follows; where both changed, the action goes first. A server that is away is waited
for.

Import only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
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
from prefect.states import Cancelled, Completed, Crashed, Failed, Paused, Running

from research.installation.home import Home
from research.orchestration.server import AUTH
from research.orchestration.task_rows import TaskRuns
from research.scheduler.required_runs import is_stopped_by_budget
from studies import StudyState

RESEARCH: Final = "ajet-research"
RESUME: Final = "ajet-resume"
TAG: Final = "ajet"
"""On every flow run of ours, so that automations can tell them from others."""
_OTHERS_S: Final = 60.0
"""How long others are waited for that make a deployment at the same time."""
_TAKEN_UP: Final = re.compile(r".+/[0-9a-f]{64}/.+")
"""The key of a flow run by which a worker takes up what was left with a log of that hash."""
_NO_WORKER: Final = (
    "What `ajet research` and `ajet study resume` drive on this machine. Cancel and Pause are obeyed; a run that is "
    "begun here waits for a worker: `ajet up --work`."
)


def installation_name(home: Home) -> str:
    """Return the name of this machine and installation, the same for all its processes, however they spell its path."""
    return f"{socket.gethostname()}-{hashlib.sha256(str(home.path.resolve()).encode()).hexdigest()[:4]}"


def ensure_deployment(client: SyncPrefectClient, home: Home, name: str, **told: Any) -> DeploymentResponse:
    """Return a deployment of an installation; where there is none, one is made that is told this.

    The installation's processes do so one after the other: Prefect makes one over another of its name.
    """
    if (known := find_deployment(client, home, name)) is not None:
        return known
    home.prefect.mkdir(parents=True, exist_ok=True)
    with FileLock(home.prefect / "deployments.lock", timeout=_OTHERS_S, mode=0o600, fallback_to_soft=False):
        if (known := find_deployment(client, home, name)) is not None:
            return known
        own = deployment_name(name, installation_name(home))
        made = client.create_deployment(client.create_flow_from_name(name), own, tags=[TAG], **told)
        return client.read_deployment(made)


def deployment_name(name: str, place: str) -> str:
    return f"{name.removeprefix(f'{TAG}-')}@{place}"


def find_deployment(client: SyncPrefectClient, home: Home, name: str) -> DeploymentResponse | None:
    """Return a deployment of an installation that the server knows; those of earlier versions bear the place alone."""
    place = installation_name(home)
    for own in (deployment_name(name, place), place):
        with suppress(ObjectNotFound):
            return client.read_deployment_by_name(f"{name}/{own}")
    return None


def resume_deployment(client: SyncPrefectClient, home: Home) -> UUID:
    return ensure_deployment(client, home, RESUME, description=_NO_WORKER).id


def schedule_resume(client: SyncPrefectClient, home: Home, study: str, key: str) -> PrefectFlowRun:
    """Ask an installation's worker to go on with a study; asked again with the same key, it is the same flow run."""
    return client.create_flow_run_from_deployment(
        resume_deployment(client, home), parameters={"study": study}, name=study, tags=[TAG, study],
        idempotency_key=key,
    )  # fmt: skip


def request_time(run: PrefectFlowRun) -> datetime | None:
    """Return for when somebody asked for a flow run; None where nobody did: a worker takes up what was left."""
    key = run.idempotency_key
    return None if key is not None and _TAKEN_UP.fullmatch(key) is not None else run.expected_start_time or run.created


EndStatus = Literal["concluded", "budget", "cancelled", "failed", "left"]


class Activity(Enum):
    """What a study that is not over is shown as."""

    RUNNING = "running"
    PAUSED = "paused"


class UserAction(Enum):
    """What a user may click in Prefect's UI."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The activity on both sides now, and the action that the study has to be asked for to get there."""

    activity: Activity
    ask: UserAction | None = None


def reconcile(agreed: Activity, action: UserAction | None, study: Activity) -> Reconciliation:
    """Return what follows from a user's action (None for none) and the study, which agreed on `agreed` before."""
    if action is UserAction.STOP:
        return Reconciliation(agreed, UserAction.STOP)
    wanted = {UserAction.CONTINUE: Activity.RUNNING, UserAction.PAUSE: Activity.PAUSED, None: agreed}[action]
    if wanted is agreed:
        return Reconciliation(study)
    return Reconciliation(wanted, action if wanted is not study else None)


def activity(state: StudyState) -> Activity:
    return Activity.RUNNING if state.paused_reason is None else Activity.PAUSED


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended, for its flow run's last state."""

    how: EndStatus
    message: str


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
_RETRIED = "AwaitingRetry"
"""The name of the state that Retry of Prefect's pages sets."""
LASTS_S: Final = 10 * 365 * 86_400
"""Seconds that a pause may last: Prefect fails a flow run whose pause has expired."""


class FlowRunGone(Exception):
    """The server answers but does not know the flow run: its database is another one."""


def connect(api: str) -> SyncPrefectClient:
    """Return a client of the server at this address, let in as the environment says."""
    entry = {PREFECT_API_AUTH_STRING: os.environ[AUTH]} if os.environ.get(AUTH) else {}
    with temporary_settings({PREFECT_API_URL: api, **entry}):
        return get_client(sync_client=True)


def close_abandoned(client: SyncPrefectClient, flow_run: str) -> None:
    """Mark the flow run of a controller that was killed as Crashed, unless it is unknown or over, and end its rows."""
    message = "the controller ended without closing this flow run; the study was resumed in a new one"
    with suppress(ObjectNotFound):
        state = client.read_flow_run(UUID(flow_run)).state
        TaskRuns(client, UUID(flow_run)).close("the study was resumed, and this goes on in its next flow run")
        if state is None or not state.is_final():
            client.set_flow_run_state(flow_run, Crashed(message=message), force=True)


@dataclass(frozen=True, slots=True)
class FlowRunState:
    """A flow run's state as it was found: what somebody clicked, and the activity it shows; None for no such."""

    action: UserAction | None
    shows: Activity | None


class RequestedWork(NamedTuple):
    """What a flow run was created for. `requested_at` is by the server's clock: when it was to begin, or Retry was
    pressed last; None where a worker handed a study over by itself."""

    flow: str
    parameters: Mapping[str, Any]
    requested_at: datetime | None


class FlowRun:
    """A flow run that this process writes."""

    def __init__(self, client: SyncPrefectClient, identity: UUID) -> None:
        self.id = identity
        self._client = client
        self.task_runs = TaskRuns(client, identity)

    @classmethod
    def begin(cls, client: SyncPrefectClient, home: Home, study: str, topic: str, key: str) -> FlowRun:
        """Create a study's flow run, running, or return the one that was created with this key before."""
        made = client.create_flow_run_from_deployment(
            resume_deployment(client, home), name=_name(study, topic), parameters={"study": study}, state=Running(),
            tags=[TAG, study], idempotency_key=key,
        )  # fmt: skip
        return cls(client, made.id)

    @classmethod
    def adopt(cls, client: SyncPrefectClient, identity: UUID, study: str, topic: str) -> FlowRun:
        """Return the flow run that a worker's process was started for, named after its study; raises FlowRunGone.

        Tags that somebody gave it stay: their automations look for them.
        """
        try:
            tags = dict.fromkeys([*client.read_flow_run(identity).tags, TAG, study])
            client.update_flow_run(identity, name=_name(study, topic), tags=list(tags))
        except ObjectNotFound as error:
            raise FlowRunGone from error
        return cls(client, identity)

    def rename(self, topic: str) -> None:
        self._client.update_flow_run(self.id, name=_shorten_topic(topic))

    def read_request(self) -> RequestedWork:
        found = self._client.read_flow_run(self.id)
        flow = self._client.read_flow(found.flow_id).name
        # A retry leaves the expected time as it was.
        retried = (each.timestamp for each in self._client.read_flow_run_states(self.id) if each.name == _RETRIED)
        request_times = [each for each in (request_time(found), *retried) if each is not None]
        return RequestedWork(flow, found.parameters, max(request_times, default=None))

    def read_state(self) -> FlowRunState:
        """Read the state; raises FlowRunGone."""
        try:
            state = self._client.read_flow_run(self.id).state
        except ObjectNotFound as error:
            raise FlowRunGone from error
        except Exception:
            self.task_runs.mark_unsent()
            raise
        if state is None:
            return FlowRunState(None, None)
        if state.is_cancelling() or state.is_cancelled():
            return FlowRunState(UserAction.STOP, None)
        if state.is_paused():
            return FlowRunState(UserAction.PAUSE, None if state.state_details.pause_reschedule else Activity.PAUSED)
        if state.is_running():
            return FlowRunState(UserAction.CONTINUE, Activity.RUNNING)
        return FlowRunState(
            UserAction.CONTINUE if state.is_scheduled() else None, None
        )  # Resume schedules a pause that ended runs

    def show(self, activity: Activity, reason: str) -> None:
        """Show the study as running or paused, whatever the state was; a pause that is shown lasts."""
        message = f"{reason}: no run begins, those that are under way are finished"
        paused: State[Any] = Paused(timeout_seconds=LASTS_S, reschedule=False, message=message)
        self._set(Running() if activity is Activity.RUNNING else paused)

    def end(self, ending: SessionEnd) -> None:
        """Set the last state, and where it failed say why in the log, which a page shows; raises FlowRunGone."""
        states: dict[EndStatus, Callable[..., State[Any]]] = {
            "concluded": Completed, "budget": partial(Completed, name="Budget used up"), "cancelled": Cancelled,
            "failed": Failed, "left": Crashed,
        }  # fmt: skip
        try:
            if ending.how == "failed":
                self.log([ending.message], logging.ERROR)
            self._set(states[ending.how](message=ending.message))
        except ObjectNotFound as error:
            raise FlowRunGone from error

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

    def publish(self, key: str, type: str, data: object, description: str, shown: UUID | None = None) -> UUID:
        """Publish an artifact, in the place of what was `shown` if that is there; return what is shown now.

        The newest of a key is shown first. `type` is Prefect's: `markdown`, `table` or `progress`.
        """
        if shown is not None and self._replace(shown, data, description):
            return shown
        # By hand, because the client's own way sends an event too, by a thread of its own.
        artifact = ArtifactCreate(key=key, type=type, data=data, description=description, flow_run_id=self.id)
        made = self._client.request("POST", "/artifacts/", json=artifact.model_dump(mode="json", exclude_unset=True))
        identity = UUID(made.json()["id"])
        own, of_key = ArtifactFilterFlowRunId(any_=[self.id]), ArtifactFilterKey(any_=[key])
        for found in self._client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=own, key=of_key)):
            if found.id != identity:
                with suppress(ObjectNotFound):
                    self._client.delete_artifact(found.id)
        return identity

    def _replace(self, shown: UUID, data: object, description: str) -> bool:
        changes = {"data": data, "description": description}
        try:
            self._client.request("PATCH", "/artifacts/{id}", path_params={"id": shown}, json=changes)
        except PrefectHTTPStatusError as error:  # somebody may have deleted it on Prefect's page
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def _set(self, state: State[Any]) -> None:
        self._client.set_flow_run_state(self.id, state, force=True)


def _name(study: str, topic: str) -> str:
    return f"{study}: {_shorten_topic(topic)}"


def _shorten_topic(topic: str) -> str:
    return shorten(topic, _MOST_TOPIC, placeholder=" …")


RETRY_TIMEOUT_S: Final = 300.0
"""Most seconds that a server is waited for."""
AGAIN_S: Final = 2.0
"""Seconds between two tries."""

Answer = TypeVar("Answer")


def retry(ask: Callable[[], Answer], note: Callable[[str], None], most_s: float = RETRY_TIMEOUT_S) -> Answer:
    """Return a server's answer; where it is away ask again, for so many seconds, after telling `note` once."""
    until, told = time.monotonic() + most_s, False
    while True:
        try:
            return ask()
        except httpx.HTTPError as error:
            if not _is_unreachable(error) or time.monotonic() > until:
                raise
            if not told:
                note(f"waiting for Prefect: {' '.join(f'{type(error).__name__}: {error}'.split())}")
                told = True
        time.sleep(AGAIN_S)


def _is_unreachable(error: httpx.HTTPError) -> bool:
    """Return whether nobody answered, or somebody who cannot now; a refusal is an answer."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, httpx.TransportError)
