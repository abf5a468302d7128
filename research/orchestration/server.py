"""The Prefect server: a local one of the installation, or one that is named by PREFECT_API_URL.

The local one is started once per installation, found again and stopped on request; it outlives the command that
started it. It binds loopback, lets in who has its password (whoever reaches its port could have it run flows), takes no
page of another origin, sends no telemetry, and keeps its database in the installation's folder, or where
PREFECT_API_DATABASE_CONNECTION_URL says.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
from filelock import FileLock, Timeout

from research.errors import NotReady
from research.files import read_json, write_bytes, write_json
from research.installation.base_job import PREFECT_REMEDY
from research.text import is_http_url
from studies.log.locks import Holder

SERVER: Final = "PREFECT_API_URL"
DATABASE: Final = "PREFECT_API_DATABASE_CONNECTION_URL"
AUTH: Final = "PREFECT_API_AUTH_STRING"
SERVER_AUTH: Final = "PREFECT_SERVER_API_AUTH_STRING"
_ANSWER_S: Final = 2.0


class PrefectUnavailable(NotReady):
    """No Prefect server could be reached or started; the message says why."""


def require_prefect() -> None:
    """Raise PrefectUnavailable where the package is not installed: it is an extra, as vLLM cannot live beside it."""
    if find_spec("prefect") is None:
        raise PrefectUnavailable(f"expected the package prefect; found it not installed; {PREFECT_REMEDY}")


def find_named_server(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of the server that is named, None for none; PrefectUnavailable unless it lets us in."""
    chosen = environment.get(SERVER)
    if not chosen:
        return None
    url = chosen.rstrip("/").removesuffix("/api")
    if not is_http_url(url):
        raise PrefectUnavailable(f"expected an address such as http://HOST:4200/api in {SERVER}; found another text")
    if (parts := urlsplit(url)).username is not None:
        raise PrefectUnavailable(
            f"expected no user and password in {SERVER}; found them before {parts.hostname}; take them out, and set "
            f"{AUTH}=USER:PASSWORD instead"
        )
    if _ask(f"{url}/api/health") != HTTPStatus.OK:
        raise PrefectUnavailable(
            f"expected a Prefect server at {url}, as {SERVER} names it; found none that answers; start it, correct the "
            "address, or unset it to have one of your own"
        )
    auth = environment.get(AUTH, "")
    status = _ask(f"{url}/api/admin/version", auth)  # its health may be asked for by anybody
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):  # of all else says whoever calls it next
        refused = f"what {AUTH} says" if auth else "whoever names no user"
        raise PrefectUnavailable(
            f"expected the Prefect server at {url} to let us in; found that it refuses {refused} ({status}); set "
            f"{AUTH}=USER:PASSWORD as it was started with"
        )
    return url


def _ask(url: str, auth: str = "") -> int | None:
    """Return the status of an answer to USER:PASSWORD, or to who names no user; None: nobody, no address, no HTTP."""
    import httpx  # not needed where no server is asked

    user, _, password = auth.partition(":")
    try:
        identity = httpx.BasicAuth(user, password) if auth else None
        return httpx.get(url, auth=identity, timeout=_ANSWER_S, follow_redirects=True).status_code
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError):  # ImportError: of a SOCKS proxy
        return None


def password_file(folder: Path) -> Path:
    """Return where the password of a folder's server stands, USER:PASSWORD, as Prefect's pages ask for it."""
    return folder / "password"


def read_password(folder: Path) -> str:
    try:
        return password_file(folder).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def ensure_password(folder: Path) -> str:
    """Return the password for a folder's server: PREFECT_SERVER_API_AUTH_STRING, else the kept one, else a new one."""
    kept = read_password(folder)
    password = os.environ.get(SERVER_AUTH) or kept or f"ajet:{secrets.token_urlsafe(24)}"
    if password != kept:
        write_bytes(password_file(folder), f"{password}\n".encode(), mode=0o600)
    return password


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


@dataclass(frozen=True, slots=True)
class PrefectServer:
    """A server that answers. `note` says what a user should know about how it came to be (or None)."""

    url: str
    reused: bool
    note: str | None = None
    password: Path | None = None
    """The file with the password that its pages ask for; None for a server of somebody else."""

    @property
    def api(self) -> str:
        return f"{self.url}/api"

    @property
    def line(self) -> str:
        told = [self.note or "", f"its password is in {self.password}" if self.password else ""]
        return "  ".join(["Prefect UI", self.url, *(f"({each})" for each in told if each)])


def ensure_server(folder: Path, *, port: int = DEFAULT_PORT) -> PrefectServer:
    """Return a server that answers: the user's, this installation's, or a new one. Raises PrefectUnavailable."""
    require_prefect()
    if (url := find_named_server()) is not None:
        return PrefectServer(url, reused=True, note="named by PREFECT_API_URL")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "starting.lock", timeout=2 * _START_TIMEOUT_S)
    try:
        lock.acquire()  # whoever comes meanwhile finds the server that is being started
    except Timeout as error:
        raise PrefectUnavailable(
            f"expected whoever starts a Prefect server in {folder} to be done in {2 * _START_TIMEOUT_S:.0f} s; found "
            "that it is not, or was suspended (Ctrl-Z); go on with it, or end it"
        ) from error
    try:
        if (known := read_process(folder / "server.json")) is None:
            return _start(folder, port)
        url = str(known["url"])
        if not is_alive(known):
            _end_leftovers(known)
        elif _wait_until_up(url, known["pid"], lambda: is_alive(known)) and _ask(f"{url}/api/admin/version") != 200:
            other = os.environ.get(SERVER_AUTH, read_password(folder)) != read_password(folder)
            note = f"{SERVER_AUTH} counts when it is started again: ajet up --stop, ajet up" if other else None
            return PrefectServer(url, reused=True, note=note, password=password_file(folder))
        else:  # one of an earlier version, say, which lets in who names no user
            stop_server(folder)
        return _start(folder, _port_of(url))
    finally:
        lock.release()


def client_environment(folder: Path) -> dict[str, str]:
    """Return the environment Prefect's client needs beside an address, once there is a server."""
    auth = {} if os.environ.get(SERVER) else {AUTH: read_password(folder) or ensure_password(folder)}
    return auth | client_settings(folder)


def client_settings(folder: Path) -> dict[str, str]:
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


def stop_server(folder: Path) -> bool:
    """Stop the server this installation started, or what a killed one left; return False when nothing was running."""
    known = read_process(folder / "server.json")
    (folder / "server.json").unlink(missing_ok=True)
    if known is None:
        return False
    if not is_alive(known):
        return _end_leftovers(known)
    return end_group(known["pid"], 10.0)  # it leads its own session, hence its own group


def _end_leftovers(known: Mapping[str, Any]) -> bool:
    leader = known["pid"]
    if not _holder(known).shares_host(Holder.here(Path())):  # of another boot
        return False
    if psutil.pid_exists(leader) and psutil.Process(leader).status() != psutil.STATUS_ZOMBIE:
        return False  # the id was given anew, which it is not while the group is there
    return end_group(leader, _REMAINS_S)


def end_group(group: int, grace_s: float) -> bool:
    """End the processes of a group, by force after a grace; return whether there were any."""
    members = [p for p in psutil.process_iter(["pid"]) if _group_of(p.pid) == group]
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    _, left = psutil.wait_procs(members, timeout=grace_s)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=grace_s)
    return bool(members)


def _start(folder: Path, wanted: int) -> PrefectServer:
    port, log = wanted if wanted and _is_free(wanted) else _find_free_port(), folder / "server.log"
    while True:
        url = f"http://127.0.0.1:{port}"
        process = _launch(folder, port)
        # Recorded before it answers: whoever is interrupted or killed meanwhile leaves a server that is found again.
        record_or_end(folder / "server.json", process, url=url)
        if _wait_until_up(url, process.pid, lambda process=process: process.poll() is None):  # type: ignore[misc]
            note = None if port == wanted or not wanted else f"port {wanted} is in use, so Prefect took {port}"
            return PrefectServer(url, reused=False, note=note, password=password_file(folder))
        stop_server(folder)
        if _is_free(port):
            database = (
                f"look whether the database of {DATABASE} can be reached, and " if os.environ.get(DATABASE) else ""
            )
            raise PrefectUnavailable(
                f"expected a Prefect server to come up on {url}; found no answer; {database}see its log: {log}"
            )
        port = _find_free_port()  # somebody was faster: it takes seconds until a server listens


def _wait_until_up(url: str, leader: int, is_there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S  # another that took its port is asked nothing, and told no password
    while not (_is_listening(leader, _port_of(url)) and _ask(f"{url}/api/health") == HTTPStatus.OK):
        if not is_there() or time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _is_listening(leader: int, port: int) -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if _group_of(process.pid) == leader and any(
                each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in process.net_connections("tcp")
            ):
                return True
    return False


def _launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
    own = [f"http://{host}:{port}" for host in ("127.0.0.1", "localhost")]
    ours = ("PREFECT_SERVER_", "PREFECT_API_DATABASE_")  # nothing that names a server or a client's home
    given = {key: text for key, text in os.environ.items() if not key.startswith("PREFECT_") or key.startswith(ours)}
    environment = {
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own),
        **given, **_QUIET, "PREFECT_HOME": str(folder), "PREFECT_UI_API_URL": f"{own[0]}/api",
        SERVER_AUTH: ensure_password(folder),
    }  # fmt: skip
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def record_process(path: Path, pid: int, **more: object) -> None:
    """Write which process it is, by when it began since the boot: neither its id nor a set clock makes it another."""
    process = Holder.of(pid, path.parent)
    write_json(path, {**more, "pid": pid, "boot": process.boot, "started_s": process.started_s})


def record_or_end(path: Path, process: subprocess.Popen[bytes], **more: object) -> None:
    """Write which process, which leads a group, was started; where that fails, end it: nobody would find it again."""
    try:
        record_process(path, process.pid, **more)
    except OSError:
        end_group(process.pid, _REMAINS_S)
        process.wait()
        raise


def read_process(path: Path) -> Mapping[str, Any] | None:
    try:
        known = read_json(path)
    except ValueError:
        return None
    return known if isinstance(known, dict) and {"pid", "boot", "started_s"} <= known.keys() else None


def is_alive(known: Mapping[str, Any]) -> bool:
    holder = _holder(known)
    return holder.shares_host(Holder.here(Path())) and not holder.is_gone()


def _holder(known: Mapping[str, Any]) -> Holder:
    return Holder(socket.gethostname(), known["boot"], known["pid"], known["started_s"], "")


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
