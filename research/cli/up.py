"""`ajet up`: the Prefect server and the worker of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from research.cli.app import Json, answer, console
from research.controller.session import catch_interrupts
from research.errors import NotReady
from research.installation.home import Home
from research.orchestration import PrefectServer, PrefectUnavailable, ensure_server, stop_server
from research.orchestration.server import client_environment
from research.terminal import warn


def up(
    work: Annotated[
        bool, typer.Option("--work", help="Stay, and work on what is begun, scheduled or resumed in Prefect's pages.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Most studies that the worker drives at once.")] = 2,
    stop: Annotated[bool, typer.Option("--stop", help="Stop it instead, and the worker.")] = False,
    json: Json = False,
) -> None:
    """Start (or find) the local Prefect server and print its address, or stay and work on studies there.

    PREFECT_API_URL names a server that is there already; PREFECT_API_DATABASE_CONNECTION_URL another database than
    SQLite for the one that is started (PostgreSQL, for studies of days).

    Examples:

        ajet up

        ajet up --work

        ajet up --work --limit 4

        ajet up --stop
    """
    home = Home.locate().prepare()
    if stop:
        from research.orchestration.supervision import end_worker

        ended = end_worker(home)
        stopped = stop_server(home.prefect)
        worker = ["ended the worker; what it drove is left in order"] if ended else []
        outcome = "stopped the Prefect server" if stopped else "no Prefect server of this installation runs"
        answer(json, {"stopped": stopped, "worker": ended}, *worker, outcome)
    elif work:
        from research.orchestration.supervision import become_supervisor

        with become_supervisor(home), catch_interrupts() as until:
            server = _server(home)
            _say(server, json)
            os.environ.update(client_environment(home.prefect))
            from research.orchestration.deployment import ProcessPool
            from research.orchestration.prefect_api import installation_name  # Prefect reads its settings at import
            from research.orchestration.worker import StudyWorker

            say = warn if json else console().print
            how = "begin them there, or with: ajet research --detach. Ctrl-C ends it"
            say(f"worker      {limit} studies at once; {how}")
            StudyWorker(home, ProcessPool(installation_name(home), Path.cwd(), limit), say, warn).run(until)
    else:
        _say(_server(home), json)


def _server(home: Home) -> PrefectServer:
    try:
        return ensure_server(home.prefect)
    except PrefectUnavailable as error:
        raise NotReady(str(error)) from error


def _say(server: PrefectServer, json: bool) -> None:
    password = str(server.password) if server.password else None
    told = {"url": server.url, "reused": server.reused, "note": server.note, "password_file": password}
    answer(json, told, server.line)
