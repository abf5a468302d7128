"""Handing a study to the worker of this installation: a flow run that it takes up."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from research.errors import NoWorker
from research.installation.home import Home
from research.orchestration import PrefectUnavailable, ensure_server
from research.orchestration.server import client_environment
from research.serving.supervision import require_worker
from studies import EventLog, fold

Giving = Callable[[str], str]
"""Gives the worker a study that is in the log; returns the address of its flow run."""


def worker_of(home: Home) -> Giving:
    """Return the way to the worker of an installation; raise NoWorker where none runs or its server is silent."""
    require_worker(home)
    try:
        server = ensure_server(home.prefect)
    except PrefectUnavailable as error:
        raise NoWorker(str(error)) from error
    os.environ.update(client_environment(home.prefect))
    from research.orchestration.deployments import hand_over, place_of  # Prefect reads its settings at import
    from research.orchestration.flow_run import connect

    def give(study: str) -> str:
        with closing(EventLog(home.database)) as log:
            key = f"{study}/{fold(log.read(study)).head_hash}"
        with connect(server.api) as client:
            return f"{server.url}/runs/flow-run/{hand_over(client, place_of(home), study, key)}"

    return give
