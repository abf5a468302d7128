"""What a server is told of a machine's worker: its pool, the two deployments with their forms, and an automation.

Told again it changes nothing of what people set in Prefect's pages: schedules, an automation that was edited, the
pool's limit.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker

from research.installation.home import Home
from research.orchestration.deployments import RESEARCH, RESUME, TAG, deployment_of
from research.orchestration.flow_run import HEARTBEAT
from research.orchestration.session import BEAT_S
from research.serving.parameters import ResearchParameters, ResumeParameters, form_of

SITTING: Final = "research.serving.sitting"
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
        command = shlex.join([sys.executable, "-m", SITTING])
        return {"command": command, "working_dir": str(self.folder), "stream_output": False}


def register(client: SyncPrefectClient, home: Home, pool: ProcessPool) -> None:
    """Make the worker's pool, deployments and automation, or bring them up to this version, and to this pool."""
    _make_pool(client, pool)
    _deploy(client, home, RESEARCH, form_of(ResearchParameters), pool)
    _deploy(client, home, RESUME, form_of(ResumeParameters), pool)
    if not client.read_automations_by_name(SILENT):
        client.create_automation(_silent())


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
    """Return the template of the pool's jobs: Prefect's own, in which no flow run has anything to say but a name.

    Else whoever begins one in the pages would say what runs on this machine, and with which environment.
    """
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
    known = deployment_of(client, home, name, **told)
    # What is not told stays, schedules among it; but the runs that a schedule has planned go with each change.
    if any(getattr(known, field) != value for field, value in told.items()):
        client.update_deployment(known.id, DeploymentUpdate(**told))


def _crash(message: str) -> ChangeFlowRunState:
    return ChangeFlowRunState(name="Crashed", state=StateType.CRASHED, message=message, force=False)


def _silent() -> AutomationCore:
    """Return the automation that ends flow runs of killed controllers; one that lives puts itself back."""
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
        actions=[_crash("no heartbeat: its process is gone")],
    )
