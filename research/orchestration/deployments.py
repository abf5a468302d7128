"""The two deployments of an installation: their names, and where on a server they are.

`ajet-research` takes a topic, `ajet-resume` a study; both are named after the place, this machine and this
installation's folder, as a study goes on where its folder is. What a session shows belongs to `ajet-resume`, also where
no worker was ever there: Prefect's pages offer Cancel and Pause for runs of deployments only.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import hashlib
import socket
from typing import Final
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from research.installation.home import Home

RESEARCH: Final = "ajet-research"
RESUME: Final = "ajet-resume"
TAG: Final = "ajet"
"""On every flow run of ours, so that automations can tell them from others."""
_NO_WORKER: Final = (
    "What `ajet research` and `ajet study resume` drive on this machine. Cancel and Pause are obeyed; a run that is "
    "begun here waits for a worker: `ajet up --work`."
)


def place_of(home: Home) -> str:
    """Return the name of this machine and installation, the same for all its processes."""
    return f"{socket.gethostname()}-{hashlib.sha256(str(home.path).encode()).hexdigest()[:4]}"


def resume_deployment(client: SyncPrefectClient, place: str) -> UUID:
    """Return the deployment that takes up studies of a place; one without a worker is made where there is none."""
    try:
        return client.read_deployment_by_name(f"{RESUME}/{place}").id
    except ObjectNotFound:
        flow = client.create_flow_from_name(RESUME)
        return client.create_deployment(flow, place, description=_NO_WORKER, tags=[TAG])


def hand_over(client: SyncPrefectClient, place: str, study: str, key: str) -> UUID:
    """Ask the worker of a place to go on with a study; asked again with the same key, it is the same flow run."""
    made = client.create_flow_run_from_deployment(
        resume_deployment(client, place), parameters={"study": study}, name=study, tags=[TAG, study],
        idempotency_key=key,
    )  # fmt: skip
    return made.id
