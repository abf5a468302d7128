"""The installation's own swarm server: a detached process in one folder, found again by its record.

The server writes `server.json` once it is bound and `tokens.json` for its owner only; this module starts it,
reads both, and stops the very process it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from research.errors import ResearchError
from research.installation.backends import python_of

_BIND_TIMEOUT_S = 60.0
STORE: Final = "AJET_SWARM_STORE"
"""Names the variable with a store's URL, which may hold a password; all may read a command line."""


class SwarmProcessError(ResearchError):
    """The swarm server could not be started, or none runs here."""


@dataclass(frozen=True, slots=True)
class SwarmProcess:
    """A swarm server that runs: its address, its process and its tokens."""

    url: str
    pid: int
    admin_token: str
    folder: Path
    client_token: str
    """For those who play, and may set nothing else."""


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

    @property
    def arguments(self) -> list[str]:
        """What of it stands on the server's command line: not the store, whose URL may hold a password."""
        token = [] if self.token_file is None else ["--token-file", self.token_file]
        return ["--host", self.host, *token, *(word for peer in self.peers for word in ("--peer", peer))]


LOOPBACK: Final = Binding()


def start_swarm(
    folder: Path,
    *,
    models: Path,
    port: int,
    idle: bool = False,
    variables: Mapping[str, str] | None = None,
    binding: Binding = LOOPBACK,
) -> SwarmProcess:
    """Start a server in `folder` and wait until it is bound; raises SwarmProcessError with the end of its log.

    It takes up the job whose engine was on when the last server there ended, unless it is to be `idle`. `variables` are
    put beside those of this process.
    """  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.json").unlink(missing_ok=True)
    command = [
        python_of(binding.backend),
        "-m",
        "swarm.server",
        "--directory",
        str(folder),
        "--models",
        str(models),
        "--environments",
        str(models.parent / "environments"),
        "--port",
        str(port),
        *binding.arguments,
        *(["--idle"] if idle else []),
    ]
    store = {} if binding.store is None else {STORE: binding.store}
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**_without_store(os.environ), **(variables or {}), **store},
        )  # fmt: skip
    deadline = time.monotonic() + _BIND_TIMEOUT_S
    try:
        while (found := find_swarm(folder)) is None or found.pid != process.pid:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SwarmProcessError(f"the swarm server did not start: {_last_line(log_path)}")
            time.sleep(0.1)
    except BaseException:  # nobody would know of it
        process.terminate()
        process.wait()
        raise
    return found


def _without_store(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without the store of some server, which is not that of all."""
    return {name: value for name, value in variables.items() if name != STORE}


def stop_swarm(swarm: SwarmProcess, *, grace_s: float = 20.0) -> None:
    """Terminate the server and wait until it is gone; kill it after `grace_s`."""
    try:
        process = psutil.Process(swarm.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(grace_s)
    except psutil.TimeoutExpired:
        os.kill(swarm.pid, signal.SIGKILL)
    except psutil.NoSuchProcess:
        return


def _is_server(pid: int, folder: Path) -> bool:
    try:
        process = psutil.Process(pid)
        command = process.cmdline()
        return process.status() != psutil.STATUS_ZOMBIE and "swarm.server" in command and str(folder) in command
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, or another user's who got its number
        return False


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended without a word (see {path})"
