"""Swarm servers of this machine: started, found, listed; `--server NAME|URL`.

Each is a detached process in one folder, found again by its record: `<home>/swarm/` for the one without a name, as
every version wrote it, and `<home>/swarms/NAME/`. The server writes `server.json` once it is bound and `tokens.json`
for its owner only; this module starts it, reads both, and stops the very process it started. It starts again as it was:
`start.json` keeps host, store, token file and peers, for the owner alone, as a store's URL may have a password.
"""

import json
import os
import re
import signal
import subprocess
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import psutil
import typer
from filelock import FileLock

from research.errors import BadInput, NotReady
from research.files import read_json, write_bytes
from research.installation.base_job import python_of
from research.installation.home import Home
from research.text import is_http_url
from swarm.client.sync_client import SwarmClient
from swarm.client.transport import server_folder
from swarm.errors import Forbidden, InvalidKey, SwarmError

_BIND_TIMEOUT_S = 60.0
STORE: Final = "AJET_SWARM_STORE"
"""Names the variable with a store's URL, which may hold a password; all may read a command line."""
UserRole = Literal["admin", "client"]
"""What commands use a server as."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
Server = Annotated[str | None, typer.Option(
    help="A swarm server: the name of one started here, or an address, whose key is read from AJET_TOKEN; else that of "
    "AJET_SERVER, else the one here without a name.", show_default=False,
)]  # fmt: skip
HOW_TO_START = "start one with `ajet swarm start --environment guess`"
SERVER, TOKEN = "AJET_SERVER", "AJET_TOKEN"
_LIKE = "http://127.0.0.1:8700"
KEPT = "start.json"
START_LOCK = "start.lock"
ANSWER_S: Final = 10.0
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class SwarmProcess:
    """A swarm server that runs: its address, its process and its tokens."""

    url: str
    pid: int
    admin_token: str = field(repr=False)
    folder: Path
    client_token: str = field(repr=False)
    """For those who play, and may set nothing else."""

    def key(self, role: UserRole) -> str:
        return self.admin_token if role == "admin" else self.client_token


def find_swarm(folder: Path) -> SwarmProcess | None:
    """Return the server recorded in `folder` if its process still lives."""
    try:
        record = json.loads((folder / "server.json").read_text())
        tokens = json.loads((folder / "tokens.json").read_text())
        admin, client = str(tokens["admin"]), str(tokens["client"])
        found = SwarmProcess(str(record["url"]), int(record["pid"]), admin, folder, client)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return found if _is_server(found.pid, folder) else None


def _is_server(pid: int, folder: Path) -> bool:
    try:
        process = psutil.Process(pid)
        command = process.cmdline()
        return process.status() != psutil.STATUS_ZOMBIE and "swarm.server" in command and str(folder) in command
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, or another user's who got its number
        return False


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a server listens and keeps its store, and whom it asks."""

    host: str = "127.0.0.1"
    store: str | None = field(default=None, repr=False)
    """URL of its database; None for SQLite in its folder."""
    token_file: str | None = None
    """Owner-only file with an admin token of one's own; an address beyond loopback needs one."""
    backend: str = "local"
    """The backend of the jobs it is for: one may need a Python of its own."""
    peers: tuple[str, ...] = ()
    """Addresses of servers that it may ask what became of a team."""
    port: int = 8700
    """The one that it was bound to last, where clients look for it."""


LOOPBACK: Final = Binding()


def start_swarm(
    folder: Path, *, models: Path, port: int, idle: bool = False, variables: Mapping[str, str] | None = None,
    binding: Binding = LOOPBACK,
) -> SwarmProcess:  # fmt: skip
    """Start a server in `folder`, with the last one's job unless `idle`, and wait until it is bound; raise NotReady."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.json").unlink(missing_ok=True)
    command = [
        python_of(binding.backend), "-m", "swarm.server", "--directory", str(folder), "--models", str(models),
        "--environments", str(models.parent / "environments"), "--port", str(port), "--host", binding.host,
        *(["--token-file", binding.token_file] if binding.token_file is not None else []),
        *(word for peer in binding.peers for word in ("--peer", peer)), *(["--idle"] if idle else []),
    ]  # fmt: skip
    store = {} if binding.store is None else {STORE: binding.store}
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**without_store(os.environ), **(variables or {}), **store},
        )  # fmt: skip
    deadline = time.monotonic() + _BIND_TIMEOUT_S
    try:
        while (found := find_swarm(folder)) is None or found.pid != process.pid:
            if process.poll() is not None or time.monotonic() > deadline:
                lines = log_path.read_text(errors="replace").strip().splitlines()
                last = lines[-1] if lines else f"it ended without a word (see {log_path})"
                raise NotReady(f"the swarm server did not start: {last}")
            time.sleep(0.1)
    except BaseException:  # nobody would know of it
        process.terminate()
        process.wait()
        raise
    return found


def without_store(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name != STORE}


def stop_swarm(swarm: SwarmProcess, *, grace_s: float = 20.0) -> None:
    try:
        process = psutil.Process(swarm.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(grace_s)
    except psutil.TimeoutExpired:
        os.kill(swarm.pid, signal.SIGKILL)
    except psutil.NoSuchProcess:
        return


def validate_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"expected the name of a server of at most 64 small letters, digits and inner hyphens, such as `speaker`; "
            f"found {name[:80]!r}"
        )
    return name


def servers(home: Home) -> Iterator[tuple[str | None, SwarmProcess | None]]:
    """Yield the installation's servers by name, None for the one without: its process, or None where it is down."""
    if (own := server_folder(home.path)).is_dir():
        yield None, find_swarm(own)
    for name in find_server_names(home):
        yield name, find_swarm(server_folder(home.path, name))


def find_server_names(home: Home) -> list[str]:
    """Return the names of servers that were ever started: a refused start leaves its lock alone."""
    return sorted({path.parent.name for path in (home.path / "swarms").glob("*/*") if path.name != START_LOCK})


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """A server with a key for it."""

    url: str
    token: str = field(repr=False)
    process: SwarmProcess | None = None
    """Its process, where it is one of this installation."""


def find_running(name: str | None = None, home: Home | None = None) -> SwarmProcess:
    """Return a server of this installation that runs; NotReady says how to start it."""
    home = home or Home.locate()
    if (process := find_swarm(server_folder(home.path, name))) is not None:
        return process
    if name is None:
        running = [name for name, process in servers(home) if name is not None and process is not None]
        others = f"; {', '.join(running)} run here: --server NAME" if running else ""
        raise NotReady(f"no swarm server runs here; {HOW_TO_START}, or name one with --server{others}")
    known = f"; those started here were {', '.join(find_server_names(home))}" if find_server_names(home) else ""
    raise NotReady(f"no swarm server called {name} runs here; start it with `ajet swarm start --name {name}`{known}")


def _server_named(asked: str | None, environ: Mapping[str, str]) -> str | None:
    return asked if asked is not None else environ.get(SERVER, "").strip() or None


def own_name(asked: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of the server here that is asked for, else by AJET_SERVER, or None; BadInput for an address."""
    name = _server_named(asked, environ)
    if name is not None and _is_address(name):
        raise BadInput(
            f"expected the name of a server that was started here, found the address {name!r}: its files lie on its "
            "own machine; run this command there"
        )
    return None if name is None else validate_name(name)


def resolve_target(
    name: str | None, server: str | None, environ: Mapping[str, str] = os.environ
) -> tuple[str | None, str | None]:
    """Return the name of the server to start here, and the address of one in its place, by AJET_SERVER if need be."""
    watched = None if name is not None or server is not None else _server_named(None, environ)
    if watched is None:
        return name, server
    return (None, watched) if _is_address(watched) else (watched, None)


def connect_server(
    asked: str | None, *, role: UserRole = "admin", environ: Mapping[str, str] = os.environ, home: Home | None = None
) -> ServerConnection:
    """Return the server that is asked for by name or address, else that of AJET_SERVER, else this installation's own.
    Its key is read from its folder, another's from AJET_TOKEN. Raises BadInput, and NotReady where none runs."""
    place, name = home or Home.locate(), _server_named(asked, environ)
    if name is not None and _is_address(name):
        return _connect_address(name.rstrip("/"), role, environ, place)
    process = find_running(None if name is None else validate_name(name), place)
    return ServerConnection(process.url, process.key(role), process)


def _is_address(server: str) -> bool:
    return any(mark in server for mark in ":/.")


def _connect_address(url: str, role: UserRole, environ: Mapping[str, str], home: Home) -> ServerConnection:
    if "@" in (urlsplit(url).netloc if is_http_url(url) else url):  # what is no address is not quoted then, either
        raise BadInput(f"expected an address like {_LIKE}, with the key in {TOKEN}; found a name or password in it")
    if not is_http_url(url) or urlsplit(url).query or urlsplit(url).fragment:
        raise BadInput(f"expected an address like {_LIKE} as the server, found {url[:80]!r}")
    for _, process in servers(home):
        if process is not None and process.url == url:
            return ServerConnection(url, process.key(role), process)
    token = environ.get(TOKEN, "").strip()
    if not token:
        raise BadInput(
            f"expected the {role} token of {url} in {TOKEN}, found none; `ajet swarm token --role {role}` prints it "
            "where the server runs"
        )
    if not (token.isascii() and token.isprintable()):
        raise BadInput(f"expected a token in {TOKEN}, as `ajet swarm token` prints it; found other characters")
    try:  # of a signed token; an admin's may be of somebody's own choice
        claimed = str(json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))["role"])
    except (ValueError, LookupError, TypeError):
        claimed = ""
    if role == "client" and claimed != "client":
        raise BadInput(
            f"expected a client's token of {url} in {TOKEN}, as `ajet swarm token` prints it where the server runs; "
            "found another: an admin's opens more than is needed here, and would stand behind whatever code plays"
        )
    return ServerConnection(url, token)


def ensure_server(
    home: Home, name: str | None, changes: Mapping[str, Any], *, port: int | None, idle: bool
) -> tuple[SwarmProcess, bool]:
    """Return the server of a name, as it was started last but for `changes` of its Binding, and whether it ran before.
    Without a `port` it is bound to its last one, if that is free. Raises BadInput where it runs with others."""
    folder = server_folder(home.path, name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(folder / START_LOCK):  # two commands at once: the second finds what the first started
        known, running, path = load_binding(folder), find_swarm(folder), folder / KEPT
        wanted = replace(known, **{"store": os.environ.get(STORE) or known.store, **changes})
        if running is not None:
            others = [field for field in changes if getattr(wanted, field) != getattr(known, field)]
            if port and not running.url.endswith(f":{port}"):
                others.append("port")
            if others:
                stop = "ajet swarm stop" if name is None else f"ajet swarm stop --server {name}"
                raise BadInput(
                    f"expected options (and a job's backend) that the server at {running.url} was started with; found "
                    f"others ({', '.join(others)}); stop it first (`{stop}`), and start it with them"
                )
            return running, True
        if wanted.host not in LOCAL and wanted.token_file is None:
            raise BadInput(
                f"--host {wanted.host} is reached by others: expected --token-file FILE with an admin token of at "
                "least 32 characters that its owner alone can read; found none"
            )
        before = path.read_bytes() if path.exists() else None
        if wanted != known:  # before it is started: whoever kills this command in between leaves no server unknown
            write_bytes(path, json.dumps(asdict(wanted)).encode(), mode=0o600)
        try:
            chosen = known.port if port is None else port
            started = start_swarm(folder, models=home.models, port=chosen, idle=idle, binding=wanted)
        except BaseException:  # what does not start is not what the server was started with last
            if before is None:
                path.unlink(missing_ok=True)
            else:  # in place of the other: on a full disk nothing is lost, least of all its store and its token
                write_bytes(path, before, mode=0o600)
            raise
        bound = replace(wanted, port=urlsplit(started.url).port or wanted.port)
        if bound != wanted:
            with suppress(OSError):  # on a full disk it runs all the same, and may be elsewhere the next time
                write_bytes(path, json.dumps(asdict(bound)).encode(), mode=0o600)
        return started, False


def load_binding(folder: Path) -> Binding:
    """Return how a server was started last; the default where it never was."""
    path = folder / KEPT
    try:
        known = read_json(path)
        return LOOPBACK if known is None else Binding(**{**known, "peers": tuple(known["peers"])})
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"expected in {path} how the server was started last; found it broken ({type(error).__name__}); remove it, "
            "and say its --host, --store, --token-file and --peer again"
        ) from None


KEYS = "server-keys.json"
"""In an installation's folder, for its owner alone: keys of the servers elsewhere that studies train on."""


def parse_servers(text: str) -> tuple[str, ...]:
    """Return the servers of `--server A,B`, each once; BadInput for none."""
    names = tuple(dict.fromkeys(part.strip().rstrip("/") for part in text.split(",") if part.strip()))
    if not names:
        raise BadInput(f"expected --server NAME|URL, more than one with commas between; found {text[:80]!r}")
    return tuple(name if _is_address(name) else validate_name(name) for name in names)


def reach(home: Home, server: str) -> ServerConnection:
    """Return a server that a study trains on, by the key that was kept; raises as `connect_server`."""
    return connect_server(server, environ={TOKEN: _kept(home).get(server, "")}, home=home)


def _kept(home: Home) -> dict[str, str]:
    return dict(read_json(home.path / KEYS) or {})


def require_servers(
    home: Home, names: Sequence[str], environ: Mapping[str, str] = os.environ, *, now: bool = True
) -> None:
    """Raise BadInput or NotReady unless studies may train on each of these servers: it takes an admin's key, of
    AJET_TOKEN (one for all addresses, or one each) or the one that was kept; then it is kept for the controllers of
    studies. Unless that is asked `now`, one that does not answer is left as it is."""
    given = [key.strip() for key in environ.get(TOKEN, "").split(",") if key.strip()]
    addresses = [name for name in names if _is_address(name)]
    if len(given) > 1 and len(given) != len(addresses):
        raise BadInput(
            f"expected one key in {TOKEN} for all servers, or one for each of the {len(addresses)} addresses in their "
            f"order, with commas between; found {len(given)}"
        )
    keys = dict(zip(addresses, given * len(addresses) if len(given) == 1 else given, strict=False))
    good, found = dict[str, str](), dict[str, str]()
    for name in names:
        server = connect_server(name, environ={TOKEN: keys.get(name) or _kept(home).get(name, "")}, home=home)
        if (other := found.setdefault(server.url, name)) != name:
            raise BadInput(f"expected each server once; found {server.url} as {other} and as {name}")
        try:
            with SwarmClient(server.url, server.token) as client:
                client.status(within_s=ANSWER_S)
                client.files("tracking/-")  # which an admin's key alone may ask
        except (InvalidKey, Forbidden) as error:
            raise BadInput(
                f"expected the admin token of {server.url} in {TOKEN} (`ajet swarm token --role admin` prints it "
                f"there); {error}"
            ) from None
        except SwarmError as error:
            if now:
                raise NotReady(f"expected a swarm server of this version at {server.url}: {error}") from None
        else:
            good |= {name: keys[name]} if name in keys else {}
    if good:
        with FileLock((home.path / KEYS).with_suffix(".lock")):
            write_bytes(home.path / KEYS, json.dumps({**_kept(home), **good}).encode(), mode=0o600)
