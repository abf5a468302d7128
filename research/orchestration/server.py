"""One local Prefect server per installation: started once, found again, stopped on request.

It binds loopback, sends no telemetry, and keeps its database in the installation's folder, or where
PREFECT_API_DATABASE_CONNECTION_URL says (PostgreSQL, for studies of days). It outlives the command that started it, so
that a finished study can still be looked at. A server named by PREFECT_API_URL is used instead when it answers.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock

from research.files import read_json, write_json

DEFAULT_PORT = 4200
_START_TIMEOUT_S = 120.0
_REMAINS_S = 5.0
_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
_DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"
"""Prefect's own setting, the only one of them that a server of ours takes from whoever starts it."""


class PrefectUnavailable(Exception):
    """No Prefect server could be reached or started; the message says why."""


@dataclass(frozen=True, slots=True)
class PrefectServer:
    """A server that answers. `note` says what a user should know about how it came to be (or None)."""

    url: str
    reused: bool
    note: str | None = None

    @property
    def api(self) -> str:
        """Address of the API, as PREFECT_API_URL wants it."""
        return f"{self.url}/api"


def ensure_server(folder: Path, *, port: int = DEFAULT_PORT) -> PrefectServer:
    """Return a server that answers: the user's, this installation's, or a new one. Raises PrefectUnavailable."""
    chosen = os.environ.get("PREFECT_API_URL")
    if chosen:
        url = chosen.rstrip("/").removesuffix("/api")
        if _answers(url):
            return PrefectServer(url, reused=True, note="named by PREFECT_API_URL")
        raise PrefectUnavailable(
            f"PREFECT_API_URL names {url}, but no Prefect server answers there; unset it or start one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "starting.lock"):  # whoever comes meanwhile finds the server that is being started
        known = recorded(folder / "server.json")
        if known is not None and lives(known):
            url = str(known["url"])
            if _comes_up(url, lambda: lives(known)):
                return PrefectServer(url, reused=True)
            stop_server(folder)
        elif known is not None:
            _end_remains(int(str(known["pid"])))
        return _start(folder, port if known is None else _port_of(str(known["url"])))


def client_environment(folder: Path) -> dict[str, str]:
    """Return the environment Prefect's client needs beside an address; it is read when prefect is first imported."""
    return {
        **_QUIET,
        "PREFECT_HOME": str(folder),
        # A server that is gone must not hold up the next try: by default a call is tried for two minutes and more.
        "PREFECT_CLIENT_MAX_RETRIES": "1",
        "PREFECT_API_REQUEST_TIMEOUT": "15",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # as below
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal is the progress screen's
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    }


def stop_server(folder: Path, *, grace_s: float = 10.0) -> bool:
    """Stop the server this installation started; return False when none was running."""
    known = recorded(folder / "server.json")
    (folder / "server.json").unlink(missing_ok=True)
    if known is None or not lives(known):
        return False
    end_group(int(str(known["pid"])), grace_s)  # it leads its own session, hence its own group
    return True


def _end_remains(leader: int) -> None:
    """End what a killed server left: a process of its group listens where it did.

    Its id is nobody else's while the group is there, and where it was given anew, somebody has it: no group of ours.
    """
    if not psutil.pid_exists(leader) or psutil.Process(leader).status() == psutil.STATUS_ZOMBIE:
        end_group(leader, _REMAINS_S)


def end_group(group: int, grace_s: float) -> None:
    """End the processes of a group, by force after a grace."""
    members = [p for p in psutil.process_iter(["pid"]) if _group_of(p.pid) == group]
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    _, left = psutil.wait_procs(members, timeout=grace_s)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=grace_s)


def _start(folder: Path, wanted: int) -> PrefectServer:
    port = wanted if wanted and _free(wanted) else _any_port()
    note = None if port == wanted or not wanted else f"port {wanted} is in use, so Prefect took {port}"
    url = f"http://127.0.0.1:{port}"
    process = _launch(folder, port)
    # Recorded before it answers: whoever is interrupted or killed meanwhile leaves a server that is found again.
    record(folder / "server.json", process.pid, url=url)
    if not _comes_up(url, lambda: process.poll() is None):
        stop_server(folder)
        raise PrefectUnavailable(f"the Prefect server did not come up on {url}; its log is {folder / 'server.log'}")
    return PrefectServer(url, reused=False, note=note)


def _comes_up(url: str, is_there: Callable[[], bool]) -> bool:
    """Wait until a server answers; False when it died before or took too long (a busy machine makes it slow)."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not _answers(url):
        if not is_there() or time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PREFECT_") or key == _DATABASE},
        **_QUIET,
        "PREFECT_HOME": str(folder),
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def record(path: Path, pid: int, **more: object) -> None:
    """Write which process it is, so that its id on another one is not taken for it."""
    write_json(path, {**more, "pid": pid, "created": psutil.Process(pid).create_time()})


def recorded(path: Path) -> Mapping[str, object] | None:
    """Return what was recorded of a process; None where nothing can be read."""
    try:
        value = read_json(path)
    except ValueError:
        return None
    return value if isinstance(value, dict) and {"pid", "created"} <= value.keys() else None


def lives(known: Mapping[str, object]) -> bool:
    """Return whether the process that was recorded still runs."""
    try:
        process = psutil.Process(int(str(known["pid"])))
        ended = process.status() == psutil.STATUS_ZOMBIE  # of whoever started it, and has not looked yet
        return not ended and abs(process.create_time() - float(str(known["created"]))) < 1.0
    except psutil.NoSuchProcess:
        return False


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=2.0) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError, http.client.HTTPException):  # nobody, no address, or no HTTP
        return False


def _port_of(url: str) -> int:
    """Return the port of a server that was here before: pages that are open find it again."""
    return int(url.rpartition(":")[2])


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
