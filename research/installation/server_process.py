"""The installation's own swarm server: a detached process in one folder, found again by its record.

The server writes `server.json` once it is bound and `tokens.json` for its owner only; this module starts it,
reads both, and stops the very process it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from research.errors import ResearchError

_BIND_TIMEOUT_S = 60.0


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


def start_swarm(
    folder: Path, *, models: Path, port: int, idle: bool = False, variables: Mapping[str, str] | None = None
) -> SwarmProcess:
    """Start a server in `folder` and wait until it is bound; raises SwarmProcessError with the end of its log.

    It takes up the job whose engine was on when the last server there ended, unless it is to be `idle`. `variables` are
    put beside those of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.json").unlink(missing_ok=True)
    command = [
        sys.executable,
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
        *(["--idle"] if idle else []),
    ]
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, **(variables or {})},
        )  # fmt: skip
    deadline = time.monotonic() + _BIND_TIMEOUT_S
    while (found := find_swarm(folder)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SwarmProcessError(f"the swarm server did not start: {_last_line(log_path)}")
        time.sleep(0.1)
    return found


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
