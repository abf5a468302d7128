"""A whole swarm server in this process, as `python -m swarm.server` makes it, with one fault built in."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from swarm.job import Job
from swarm.store import database
from tests.faults.points import Fault, FaultyApp, FaultyBackend, FaultyStore, Points

process: Any = importlib.import_module("swarm.server.__main__")
core: Any = importlib.import_module("swarm.server.service")


def run(directory: Path, port: int, fault: Fault | None, pages: int | None) -> None:
    """Serve `directory` until a signal, or until the fault.

    pages: how many pages its SQLite database may have, as if the disk were full then.
    """
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    points = Points(fault)
    _limit(pages)
    _break_in(points)
    sys.stdout.flush()
    os._exit(process.main(["--directory", str(directory), "--port", str(port)]))


def _limit(pages: int | None) -> None:
    """Limit the database's pages: each connection is told, and the writer makes a new one after it failed."""
    if pages is not None:
        database.PRAGMAS.append(f"max_page_count={pages}")


def _break_in(points: Points) -> None:

    def backend(job: Job, _: Path) -> FaultyBackend:
        return FaultyBackend(job, points=points)

    open_store, make_app = core.open_store, process.make_app

    def opened(*arguments: Any) -> Any:
        store, recovered = open_store(*arguments)
        return FaultyStore(store, points), recovered

    core.open_store = opened
    process.SwarmServer = functools.partial(process.SwarmServer, backends=backend)
    process.make_app = lambda server: FaultyApp(make_app(server), points)
