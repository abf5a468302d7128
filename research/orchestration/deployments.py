"""The two deployments of an installation: their names, and where on a server they are.

`ajet-research` takes a topic, `ajet-resume` a study; both are named after the place, this machine and this
installation's folder, as a study goes on where its folder is. What a session shows belongs to `ajet-resume`, also where
no worker was ever there: Prefect's pages offer Cancel and Pause for runs of deployments only.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import hashlib
import re
import socket
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from research.installation.home import Home

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


def place_of(home: Home) -> str:
    """Return the name of this machine and installation, the same for all its processes, however they spell its path."""
    return f"{socket.gethostname()}-{hashlib.sha256(str(home.path.resolve()).encode()).hexdigest()[:4]}"


def deployment_of(client: SyncPrefectClient, home: Home, name: str, **told: Any) -> DeploymentResponse:
    """Return a deployment of an installation; where there is none, one is made that is told this.

    Prefect makes one over another of its name, and what only that one was told is gone: a worker's command, say. So
    the installation's processes make theirs one after the other.
    """
    if (known := known_deployment(client, home, name)) is not None:
        return known
    home.prefect.mkdir(parents=True, exist_ok=True)
    with FileLock(home.prefect / "deployments.lock", timeout=_OTHERS_S, mode=0o600, fallback_to_soft=False):
        if (known := known_deployment(client, home, name)) is not None:
            return known
        own = own_name(name, place_of(home))
        made = client.create_deployment(client.create_flow_from_name(name), own, tags=[TAG], **told)
        return client.read_deployment(made)


def own_name(name: str, place: str) -> str:
    """Return what a deployment of a place is called, by which Prefect's lists tell the two apart."""
    return f"{name.removeprefix(f'{TAG}-')}@{place}"


def known_deployment(client: SyncPrefectClient, home: Home, name: str) -> DeploymentResponse | None:
    """Return a deployment of an installation that the server knows; those of earlier versions bear the place alone."""
    place = place_of(home)
    for own in (own_name(name, place), place):
        with suppress(ObjectNotFound):
            return client.read_deployment_by_name(f"{name}/{own}")
    return None


def resume_deployment(client: SyncPrefectClient, home: Home) -> UUID:
    """Return the deployment that takes up an installation's studies; one without a worker where there is none."""
    return deployment_of(client, home, RESUME, description=_NO_WORKER).id


def hand_over(client: SyncPrefectClient, home: Home, study: str, key: str) -> FlowRun:
    """Ask an installation's worker to go on with a study; asked again with the same key, it is the same flow run."""
    return client.create_flow_run_from_deployment(
        resume_deployment(client, home), parameters={"study": study}, name=study, tags=[TAG, study],
        idempotency_key=key,
    )  # fmt: skip


def wish_of(run: FlowRun) -> datetime | None:
    """Return for when somebody asked for a flow run; None where nobody did: a worker takes up what was left."""
    key = run.idempotency_key
    return None if key is not None and _TAKEN_UP.fullmatch(key) is not None else run.expected_start_time or run.created
