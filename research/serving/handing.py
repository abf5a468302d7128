"""Handing a study to the worker of this installation: a flow run that it takes up."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import closing

from research.errors import NoWorker
from research.installation.home import Home
from research.orchestration import PrefectUnavailable, ensure_server
from research.orchestration.server import client_environment
from research.serving.supervision import require_worker
from research.serving.wishes import leads_on
from studies import EventLog

Giving = Callable[[str], str]
"""Gives the worker a study that is in the log; returns the address of its flow run, or raises NoWorker."""


def worker_of(home: Home) -> Giving:
    """Return the way to the worker of an installation; raise NoWorker where none runs or its server is silent."""
    require_worker(home)
    try:
        server = ensure_server(home.prefect)
    except PrefectUnavailable as error:
        raise NoWorker(str(error)) from error
    os.environ.update(client_environment(home.prefect))
    from research.orchestration.deployments import wish_of  # Prefect reads its settings at import
    from research.orchestration.flow_run import connect
    from research.serving.waiting import give_once

    def give(study: str) -> str:
        key = f"{study}/{secrets.token_hex(8)}"  # of its own: an earlier flow run may have been cancelled
        try:
            with connect(server.api) as client, closing(EventLog(home.database)) as log:
                # One that waits since before a stop would leave the study stopped.
                run = give_once(
                    client, home, study, key, again=True, will_do=lambda run: leads_on(log, study, wish_of(run))
                )
                return f"{server.url}/runs/flow-run/{run.id}"
        except Exception as error:  # a client's errors are many, and mean the same here
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise NoWorker(
                f"expected the Prefect server at {server.url} to take study {study} for the worker; found {why}; the "
                f"study is kept, give it again with: ajet study resume {study} --detach"
            ) from error

    return give
