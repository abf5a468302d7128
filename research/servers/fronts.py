"""The passive front of this installation: where it lies, whether it runs, and what its administration is asked for.

A front is found by `front.json`, which it writes once it is bound; its admin key is in `secrets.json` beside it.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import psutil

from research.errors import ResearchError
from research.files import write_bytes
from research.installation.home import Home

_ANSWER_S = 60.0


class NoFront(ResearchError):
    """No passive front runs in this installation, or it does not do what it is asked for."""


@dataclass(frozen=True, slots=True)
class PassiveFront:
    """A front that runs: its address, its process and its admin key."""

    url: str
    pid: int
    admin_key: str

    def ask(self, method: Literal["GET", "POST", "DELETE"], path: str, body: Any = None) -> dict[str, Any]:
        """Ask the administration and return its answer; NoFront where it refuses or does not answer."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, method=method)
        asked.add_header("Authorization", f"Bearer {self.admin_key}")
        try:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would read the key
            with direct.open(asked, timeout=_ANSWER_S) as reply:
                return dict(json.load(reply))
        except urllib.error.HTTPError as error:
            raise NoFront(f"the passive front refused: {_said(error)}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoFront(f"the passive front at {self.url} does not answer ({error})") from error


def front_folder(home: Home) -> Path:
    """Return where the installation's passive front keeps its records and secrets."""
    return home.path / "passive"


def running_front(home: Home) -> PassiveFront:
    """Return the front that runs; NoFront says how to start one."""
    folder = front_folder(home)
    try:
        found = json.loads((folder / "front.json").read_text())
        admin = json.loads((folder / "secrets.json").read_text())["admin"]
        front = PassiveFront(str(found["url"]), int(found["pid"]), str(admin))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise NoFront("no passive front runs here; start one with `ajet passive start --score FILE`") from None
    if not _is_front(front.pid, folder):
        raise NoFront(f"the passive front (process {front.pid}) is gone; start it again with `ajet passive start`")
    return front


def _is_front(pid: int, folder: Path) -> bool:
    """Return whether a process is the front of a folder, and not one that got its number."""
    try:
        command = psutil.Process(pid).cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return "swarm.passive" in command and str(folder) in command


def keep_token(folder: Path, token: str) -> Path:
    """Write the swarm server's token for a front, readable by its owner alone; return its file."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "server_token"
    write_bytes(path, token.encode(), mode=0o600)
    return path


def path_of_user(application: str, user: str) -> str:
    """Return the administration's path of an application's user."""
    return f"/admin/applications/{quote(application, safe='')}/users/{quote(user, safe='')}"


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
