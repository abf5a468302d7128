"""Processes of an installation that others find: who looks after its worker, and who serves its pages."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import UUID

import psutil
from filelock import FileLock, Timeout

from research.errors import NotReady
from research.installation.home import Home
from research.orchestration.server import is_alive, read_process, record_process
from sandboxes.spec import wait_until

LEAVING_S: Final = 40.0
"""Seconds that processes have to leave their studies in order: Prefect may be waited for as long."""
ASKING_S: Final = 1.0
"""Seconds that whoever becomes the worker waits for those who only ask whether there is one."""
WORKER: Final = "worker.json"
PREFECT_COMMAND: Final = "research.orchestration.prefect_command"
PAGES: Final = "ui/address.json"
_SUPERVISOR: Final = "supervisor.json"
_LOCK: Final = "worker.lock"


def require_worker(home: Home) -> None:
    """Raise NotReady unless somebody holds the lock; those who ask so at once share it, and are taken for no worker."""
    home.prefect.mkdir(parents=True, exist_ok=True)
    lock = os.open(home.prefect / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(lock)
    raise NotReady(
        f"expected a worker of {home.path} to hand the study to; found none; start one, in another terminal or as a "
        "service: ajet up --work"
    )


@contextmanager
def become_supervisor(home: Home) -> Iterator[None]:
    """Look after this installation's worker while inside; one left behind is ended, not its flow runs; or NotReady."""
    home.prefect.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home.prefect / _LOCK, timeout=ASKING_S, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise NotReady(
            f"expected no worker in {home.path}; one runs already; use it, or end it first: ajet up --stop"
        ) from error
    try:
        _end(home, WORKER, psutil.Process.kill)  # asked to end, Prefect's worker may wait for its flow runs
        record_process(home.prefect / _SUPERVISOR, os.getpid())
        yield
    finally:
        (home.prefect / _SUPERVISOR).unlink(missing_ok=True)
        lock.release()


def _is_own(path: Path) -> bool:
    known = read_process(path)
    return known is not None and known["pid"] == os.getpid()


def is_supervisor(home: Home) -> bool:
    """Return whether this process is the one that is recorded: not where the installation's folder was removed."""
    return _is_own(home.prefect / _SUPERVISOR)


@contextmanager
def flow_run_process(home: Home, flow_run: UUID) -> Iterator[None]:
    """Record this process as the one of a flow run while inside, unless another one is, which lives."""
    path = _flow_run_file(home, flow_run)
    if not is_flow_run_alive(home, flow_run):
        record_process(path, os.getpid())
    try:
        yield
    finally:
        if _is_own(path):
            path.unlink(missing_ok=True)


def is_flow_run_alive(home: Home, flow_run: UUID) -> bool:
    known = read_process(_flow_run_file(home, flow_run))
    return known is not None and is_alive(known)


def end_worker(home: Home) -> bool:
    """End whoever looks after the worker, and so the worker, in order; return False where nobody does."""
    return _end(home, _SUPERVISOR) | _end(home, WORKER)


def _end(home: Home, name: str, how: Callable[[psutil.Process], None] = psutil.Process.terminate) -> bool:
    known = read_process(home.prefect / name)
    if known is None or not is_alive(known):
        return False
    with suppress(psutil.NoSuchProcess):
        how(psutil.Process(known["pid"]))
    wait_until(lambda: not is_alive(known), 2 * LEAVING_S)  # one that has ended and was not reaped yet does not live
    return True


def leave_flow_runs(home: Home, worker: int) -> None:
    """Have every process of a flow run leave its study; their worker is killed first, or it would begin them again.
    What is asked to leave is Prefect's executor, which puts the flow run back in line; where it is gone, ours."""
    executors: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        executors += psutil.Process(worker).children()
        psutil.Process(worker).kill()
    for path in (home.prefect / "sittings").glob("*.json"):
        if (record := read_process(path)) is not None and is_alive(record):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(record["pid"])
                parent = process.parent()
                executes = parent is not None and PREFECT_COMMAND in parent.cmdline()
                executors.append(parent if parent is not None and executes else process)
    for executor in set(executors):
        with suppress(psutil.NoSuchProcess):
            executor.terminate()
    wait_until(lambda: not any(map(_lives, executors)), LEAVING_S)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _flow_run_file(home: Home, flow_run: UUID) -> Path:
    return home.prefect / "sittings" / f"{flow_run}.json"


@contextmanager
def announce_pages(home: Home, url: str) -> Iterator[None]:
    """Record where this process serves the pages while inside; of several the last one is found."""
    path = home.path / PAGES
    with suppress(OSError):  # an installation that can only be read
        record_process(path, os.getpid(), url=url)
    try:
        yield
    finally:
        if _is_own(path):
            path.unlink(missing_ok=True)


def pages_address(home: Home, study: str = "") -> str:
    """Return where the pages are served, or that of a study; empty where nobody serves them."""
    found = _address_in(home.path / PAGES)
    return f"{found}/s/{study}" if found and study else found and f"{found}/"


def prefect_address(home: Home) -> str:
    """Return where this installation's own Prefect server shows its UI; empty where none runs."""
    return _address_in(home.prefect / "server.json")


def _address_in(path: Path) -> str:
    known = read_process(path)
    return "" if known is None or not is_alive(known) else str(known["url"])


def pages_line(home: Home, study: str = "") -> str:
    address = pages_address(home, study)
    return f"pages  {address}" if address else "review it: ajet ui"
