"""The Prefect server: a local one of the installation, or one that is named.

The local one is started once per installation, found again and stopped on request; it outlives the command that
started it, so that a finished study can still be looked at. It binds loopback, lets in who has its password (whoever
reaches its port could have it run flows), takes no page of another origin, sends no telemetry, and keeps its database
in the installation's folder, or where PREFECT_API_DATABASE_CONNECTION_URL says (PostgreSQL, for studies of days); what
else the environment says of Prefect's server, it does. One named by PREFECT_API_URL is used instead when it answers.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import psutil
import sqlalchemy as sa
from filelock import FileLock, Timeout
from sqlalchemy.exc import ArgumentError

from research.files import read_json, write_bytes, write_json
from research.installation.base_job import PREFECT_REMEDY
from studies.log.locks import Holder

SERVER: Final = "PREFECT_API_URL"
DATABASE: Final = "PREFECT_API_DATABASE_CONNECTION_URL"
AUTH: Final = "PREFECT_API_AUTH_STRING"
SERVER_AUTH: Final = "PREFECT_SERVER_API_AUTH_STRING"
_ANSWER_S: Final = 2.0
_LONGEST: Final = 300
_RAISED: Final = re.compile(r"^[\w.]*(?:Error|Exception|Refused|Timeout)\b.*", re.MULTILINE)


class PrefectUnavailable(Exception):
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
    _require_address(url)
    if not is_reachable(url):
        raise PrefectUnavailable(
            f"expected a Prefect server at {url}, as {SERVER} names it; found none that answers; start it, correct the "
            "address, or unset it to have one of your own"
        )
    _require_entry(url, environment.get(AUTH, ""))
    return url


def is_reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=_ANSWER_S) as reply:
            return bool(reply.status == HTTPStatus.OK)
    except (OSError, ValueError, http.client.HTTPException):  # nobody, no address, or no HTTP
        return False


def password_file(folder: Path) -> Path:
    """Return where the password of a folder's server stands, USER:PASSWORD, as Prefect's pages ask for it."""
    return folder / "password"


def read_password(folder: Path) -> str:
    try:
        return password_file(folder).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def ensure_password(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the password for a folder's server: PREFECT_SERVER_API_AUTH_STRING, else the kept one, else a new one."""
    kept = read_password(folder)
    password = environment.get(SERVER_AUTH) or kept or f"ajet:{secrets.token_urlsafe(24)}"
    if password != kept:
        write_bytes(password_file(folder), f"{password}\n".encode(), mode=0o600)
    return password


def is_unprotected(url: str) -> bool:
    """Return whether a server lets in who says no password, as those did that earlier versions started."""
    try:
        urllib.request.urlopen(_authorized_request(f"{url}/api/admin/version", ""), timeout=_ANSWER_S).close()
    except (OSError, http.client.HTTPException):
        return False
    return True


def startup_error(log: Path, since: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return why a server that was started does not answer: the last error in its log after so many bytes."""
    with log.open("rb") as file:
        file.seek(since)
        raised = _RAISED.findall(file.read().decode(errors="replace"))
    why = raised[-1][:_LONGEST].strip() if raised else "no answer"
    database = environment.get(DATABASE)
    if database is None:
        return f"found {why}; see its log: {log}"
    return (
        f"found {_redact(why, database)}; look whether {_hide_password(database)} can be reached, "
        f"which {DATABASE} names, and at its log: {log}"
    )


def _require_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise PrefectUnavailable(f"expected an address such as http://HOST:4200/api in {SERVER}; found another text")
    if parts.username is not None:
        raise PrefectUnavailable(
            f"expected no user and password in {SERVER}; found them before {parts.hostname}; take them out, and set "
            f"{AUTH}=USER:PASSWORD instead"
        )


def _require_entry(url: str, auth: str) -> None:
    """Raise PrefectUnavailable where a server refuses us; health may be asked of it by anybody."""
    try:
        urllib.request.urlopen(_authorized_request(f"{url}/api/admin/version", auth), timeout=_ANSWER_S).close()
    except urllib.error.HTTPError as error:
        if error.code not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return  # whoever calls it next says what is wrong
        refused = f"what {AUTH} says" if auth else "whoever names no user"
        raise PrefectUnavailable(
            f"expected the Prefect server at {url} to let us in; found that it refuses {refused} ({error.code}); set "
            f"{AUTH}=USER:PASSWORD as it was started with"
        ) from error
    except (OSError, http.client.HTTPException):
        return  # as above: it answered a moment ago


def _authorized_request(url: str, auth: str) -> urllib.request.Request:
    asked = urllib.request.Request(url)
    if auth:
        asked.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    return asked


def _hide_password(database: str) -> str:
    try:
        return sa.make_url(database).set(query={}).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return "the database"


def _redact(text: str, database: str) -> str:
    found = re.search(r"://[^:/@]*:(.*)@", database)
    secret = found.group(1) if found else ""
    for said in {database, secret, unquote(secret)} - {""}:
        text = text.replace(said, "***")
    return text


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
    with _start_lock(folder):  # whoever comes meanwhile finds the server that is being started
        return _find_or_start(folder, port)


def _find_or_start(folder: Path, port: int) -> PrefectServer:
    known = read_process(folder / "server.json")
    if known is not None and is_alive(known):
        url = str(known["url"])
        if _wait_until_up(url, int(str(known["pid"])), lambda: is_alive(known)) and not is_unprotected(url):
            other = os.environ.get(SERVER_AUTH, read_password(folder)) != read_password(folder)
            note = f"{SERVER_AUTH} counts when it is started again: ajet up --stop, ajet up" if other else None
            return PrefectServer(url, reused=True, note=note, password=password_file(folder))
        stop_server(folder)
    elif known is not None:
        _end_leftovers(known)
    return _start(folder, port if known is None else _port_of(str(known["url"])))


@contextmanager
def _start_lock(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / "starting.lock", timeout=2 * _START_TIMEOUT_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise PrefectUnavailable(
            f"expected whoever starts a Prefect server in {folder} to be done in {2 * _START_TIMEOUT_S:.0f} s; found "
            "that it is not, or was suspended (Ctrl-Z); go on with it, or end it"
        ) from error
    try:
        yield
    finally:
        lock.release()


def client_environment(folder: Path) -> dict[str, str]:
    """Return the environment Prefect's client needs beside an address; it is read when prefect is first imported."""
    return {
        **({} if os.environ.get(SERVER) else {AUTH: read_password(folder) or ensure_password(folder)}),
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
    """Stop the server this installation started, or what a killed one left; return False when nothing was running."""
    known = read_process(folder / "server.json")
    (folder / "server.json").unlink(missing_ok=True)
    if known is None:
        return False
    if not is_alive(known):
        return _end_leftovers(known)
    return end_group(int(str(known["pid"])), grace_s)  # it leads its own session, hence its own group


def _end_leftovers(known: Mapping[str, object]) -> bool:
    """End what a killed server left, which may listen where it did; return whether there was anything."""
    leader = int(str(known["pid"]))
    if _is_of_another_boot(known):
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
    port = wanted if wanted and _is_free(wanted) else _find_free_port()
    try:
        url = _start_and_wait(folder, port)
    except PrefectUnavailable:
        if _is_free(port):
            raise
        port = _find_free_port()  # somebody was faster: it takes seconds until a server listens
        url = _start_and_wait(folder, port)
    note = None if port == wanted or not wanted else f"port {wanted} is in use, so Prefect took {port}"
    return PrefectServer(url, reused=False, note=note, password=password_file(folder))


def _start_and_wait(folder: Path, port: int) -> str:
    url = f"http://127.0.0.1:{port}"
    log = folder / "server.log"
    said = log.stat().st_size if log.exists() else 0
    process = _launch(folder, port)
    # Recorded before it answers: whoever is interrupted or killed meanwhile leaves a server that is found again.
    record_or_end(folder / "server.json", process, url=url)
    if not _wait_until_up(url, process.pid, lambda: process.poll() is None):
        stop_server(folder)
        raise PrefectUnavailable(f"expected a Prefect server to come up on {url}; {startup_error(log, said)}")
    return url


def _wait_until_up(url: str, leader: int, is_there: Callable[[], bool]) -> bool:
    """Wait until a server answers; False when it died before or took too long (a busy machine makes it slow)."""
    deadline = time.monotonic() + _START_TIMEOUT_S  # another that took its port is asked nothing, and told no password
    while not (_is_listening(leader, _port_of(url)) and is_reachable(url)):
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


def _server_environment(folder: Path, port: int) -> dict[str, str]:
    own = [f"http://{host}:{port}" for host in ("127.0.0.1", "localhost")]
    servers = ("PREFECT_SERVER_", "PREFECT_API_DATABASE_")  # none that names a server or a client's home
    return {
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own),
        **{
            key: value for key, value in os.environ.items() if not key.startswith("PREFECT_") or key.startswith(servers)
        },
        **_QUIET,
        "PREFECT_HOME": str(folder),
        "PREFECT_UI_API_URL": f"{own[0]}/api",
        SERVER_AUTH: ensure_password(folder),
    }


def _launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_server_environment(folder, port),
            start_new_session=True,
        )  # fmt: skip


def record_process(path: Path, pid: int, **more: object) -> None:
    """Write which process it is, by when it began since the boot: neither its id nor a set clock makes it another."""
    process = Holder.of(pid, path.parent)
    created = psutil.Process(pid).create_time()
    write_json(path, {**more, "pid": pid, "created": created, "boot": process.boot, "started_s": process.started_s})


def record_or_end(path: Path, process: subprocess.Popen[bytes], **more: object) -> None:
    """Write which process, which leads a group, was started; where that fails, end it: nobody would find it again."""
    try:
        record_process(path, process.pid, **more)
    except OSError:
        end_group(process.pid, _REMAINS_S)
        process.wait()
        raise


def read_process(path: Path) -> Mapping[str, object] | None:
    try:
        value = read_json(path)
    except ValueError:
        return None
    return value if isinstance(value, dict) and {"pid", "created"} <= value.keys() else None


def is_alive(known: Mapping[str, object]) -> bool:
    if "started_s" in known:
        return not _is_of_another_boot(known) and not _holder(known).is_gone()
    try:  # as earlier versions recorded it
        process = psutil.Process(int(str(known["pid"])))
        ended = process.status() == psutil.STATUS_ZOMBIE  # of whoever started it, and has not looked yet
        return not ended and abs(process.create_time() - float(str(known["created"]))) < 1.0
    except psutil.NoSuchProcess:
        return False


def _holder(known: Mapping[str, object]) -> Holder:
    pid, started_s = int(str(known["pid"])), float(str(known["started_s"]))
    return Holder(socket.gethostname(), str(known["boot"]), pid, started_s, "")


def _is_of_another_boot(known: Mapping[str, object]) -> bool:
    if "boot" in known:
        return not _holder(known).shares_host(Holder.here(Path()))
    return float(str(known["created"])) < psutil.boot_time()


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _port_of(url: str) -> int:
    """Return the port of a server that was here before: pages that are open find it again."""
    return int(url.rpartition(":")[2])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
