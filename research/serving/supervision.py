"""Who looks after an installation's worker: one process, which others can find and end. Knows nothing of Prefect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil
from filelock import FileLock, Timeout

from research.errors import NoWorker, WorkerBusy
from research.installation.home import Home
from research.orchestration.server import lives, record, recorded

LEAVING_S: Final = 40.0
"""Seconds that processes have to leave their studies in order: Prefect may be waited for as long."""
WORKER: Final = "worker.json"
_SUPERVISOR: Final = "supervisor.json"


def require_worker(home: Home) -> None:
    """Raise NoWorker unless a worker of this installation runs."""
    lock = _lock(home)
    try:
        lock.acquire()
    except Timeout:
        return
    lock.release()
    raise NoWorker(
        f"expected a worker of {home.path} to hand the study to; found none; start one, in another terminal or as a "
        "service: ajet up --work"
    )


@contextmanager
def working(home: Home) -> Iterator[None]:
    """Be the one who looks after this installation's worker while inside; one that was left behind is ended.

    The processes of such a one live on. Raises WorkerBusy.
    """
    lock = _lock(home)
    try:
        lock.acquire()
    except Timeout as error:
        raise WorkerBusy(
            f"expected no worker in {home.path}; one runs already; use it, or end it first: ajet up --stop"
        ) from error
    try:
        _end(home, WORKER)
        record(home.prefect / _SUPERVISOR, os.getpid())
        yield
    finally:
        (home.prefect / _SUPERVISOR).unlink(missing_ok=True)
        lock.release()


def is_supervisor(home: Home) -> bool:
    """Return whether this process is the one that is recorded: not where the installation's folder was removed."""
    known = recorded(home.prefect / _SUPERVISOR)
    return known is not None and known["pid"] == os.getpid()


def end_worker(home: Home) -> bool:
    """End whoever looks after the worker, and so the worker, in order; return False where nobody does."""
    return _end(home, _SUPERVISOR) | _end(home, WORKER)


def _end(home: Home, name: str) -> bool:
    """Terminate the process that is recorded under a name, and wait for its end; return whether there was one."""
    known = recorded(home.prefect / name)
    if known is None or not lives(known):
        return False
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(str(known["pid"])))
        process.terminate()
        psutil.wait_procs([process], timeout=2 * LEAVING_S)
    return True


def _lock(home: Home) -> FileLock:
    home.prefect.mkdir(parents=True, exist_ok=True)
    return FileLock(home.prefect / "worker.lock", timeout=0, mode=0o600, fallback_to_soft=False)
