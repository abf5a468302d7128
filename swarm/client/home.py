"""Where an installation keeps its swarm servers, so that a client finds one that runs on this machine.

    <home>/swarm/           the server without a name
    <home>/swarms/NAME/     the one called NAME
        server.json         its address; a killed server leaves it behind
        server.lock         locked by the server for as long as its process lives
        tokens.json         its keys by role, readable by their owner alone

Home is AJET_HOME, else `.ajet` of the working folder. A server that is found here lives: no key is sent to whoever took
the port of one that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from swarm.errors import InvalidRequest, Unreachable

Role = Literal["admin", "client", "viewer"]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server and a key for it."""

    url: str
    token: str = field(repr=False)


def folder_of(home: Path, name: str | None = None) -> Path:
    """Return the folder of a server of an installation."""
    return home / "swarm" if name is None else home / "swarms" / name


def at_home(name: str | None = None, home: Path | str | None = None, *, role: Role = "admin") -> ServerAddress:
    """Return the address of a server that runs on this machine, with its key; Unreachable where none does."""
    root = Path(home or os.environ.get("AJET_HOME") or ".ajet").expanduser().absolute()
    folder = folder_of(root, name)
    called = "" if name is None else f" called {name}"
    start = "ajet swarm start" if name is None else f"ajet swarm start --name {name}"
    try:
        found = ServerAddress(str(_read(folder / "server.json")["url"]), str(_read(folder / "tokens.json")[role]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreachable(
            f"expected a running swarm server{called} in {root}; found none ({type(error).__name__}); start it with "
            f"`{start}`, or set AJET_HOME"
        ) from None
    if not _lives(folder):
        raise Unreachable(
            f"expected a running swarm server{called} in {root}; found that the one at {found.url} is gone; start it "
            f"again with `{start}`"
        )
    return found


def in_environment(environ: Mapping[str, str] | None = None) -> ServerAddress:
    """Return the server that AJET_SERVER and AJET_TOKEN name; InvalidRequest where one of them is missing."""
    known = os.environ if environ is None else environ
    url, token = known.get("AJET_SERVER", "").strip(), known.get("AJET_TOKEN", "").strip()
    if not url or not token:
        missing = " and ".join(name for name, value in (("AJET_SERVER", url), ("AJET_TOKEN", token)) if not value)
        raise InvalidRequest(f"expected AJET_SERVER (an address) and AJET_TOKEN (a key for it); found no {missing}")
    return ServerAddress(url.rstrip("/"), token)


def _lives(folder: Path) -> bool:
    """Return whether a server holds the lock of its folder, which the kernel lets go of however it ends."""
    try:
        with (folder / "server.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is held (BlockingIOError), or its file system knows no locks to tell by
        return True
    return False


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
