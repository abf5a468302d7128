"""A whole swarm server in this process, as `python -m swarm.server` makes it, with one fault built in.

It is imported in server processes alone: it takes over the process's wall clock before anything reads it.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import time
from ctypes import c_double
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

_real_time = time.time
_shift: Any = c_double(0.0)


def _shifted_time() -> float:
    return _real_time() + float(_shift.value)


time.time = _shifted_time

from swarm.job import Job  # noqa: E402
from swarm.store import database  # noqa: E402
from tests.faults.points import Fault, FaultyApp, FaultyBackend, FaultyStore, Points  # noqa: E402

process: Any = importlib.import_module("swarm.server.__main__")
core: Any = importlib.import_module("swarm.server.service")


def run(directory: Path, port: int, fault: Fault | None, pages: int | None, shift: Synchronized[float]) -> None:
    """Serve `directory` until a signal, or until the fault.

    pages: how many pages its SQLite database may have, as if the disk were full then; SIGUSR1 gives it room again.
    shift: seconds by which its wall clock is off; the parent may change it at any time.
    """
    global _shift
    _shift = shift
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
    if pages is None:
        return
    limit = f"max_page_count={pages}"
    database.PRAGMAS.append(limit)
    signal.signal(signal.SIGUSR1, lambda *_: database.PRAGMAS.remove(limit))


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
