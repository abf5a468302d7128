"""Where a client finds its server.

Servers of this machine lie in <home>/swarm, or <home>/swarms/NAME (home is AJET_HOME, else `.ajet`): server.json (the
address, left behind by a killed server), server.lock (locked while the process lives), tokens.json (keys by role,
owner-readable). Only one that lives counts as found: no key is sent to whoever took the port of a killed one.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Literal, Self

from swarm.errors import InvalidRequest, Unreachable

Role = Literal["admin", "client", "viewer"]


def server_folder(home: Path, name: str | None = None) -> Path:
    """Return the folder of a server of an installation."""
    return home / "swarm" if name is None else home / "swarms" / name


class Connectable:
    """A client that finds its server by itself."""

    def __init__(self, url: str, token: str, *, owner: str | None = None) -> None:
        raise NotImplementedError

    @classmethod
    def from_home(
        cls, name: str | None = None, *, home: Path | str | None = None, role: Role = "admin", owner: str | None = None
    ) -> Self:
        """Return a client of a server of this machine, by its name; Unreachable where it does not run.

        `home` is the installation's folder: AJET_HOME, else `.ajet`, where it is left out.
        """
        root = Path(home or os.environ.get("AJET_HOME") or ".ajet").expanduser().absolute()
        folder = server_folder(root, name)
        called = "" if name is None else f" called {name}"
        start = "ajet swarm start" if name is None else f"ajet swarm start --name {name}"
        try:
            url = str(json.loads((folder / "server.json").read_text())["url"])
            token = str(json.loads((folder / "tokens.json").read_text())[role])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unreachable(
                f"expected a running swarm server{called} in {root}; found none ({type(error).__name__}); start it "
                f"with `{start}`, or set AJET_HOME"
            ) from None
        if not _is_running(folder):
            raise Unreachable(
                f"expected a running swarm server{called} in {root}; found that the one at {url} is gone; start it "
                f"again with `{start}`"
            )
        return cls(url, token, owner=owner)

    @classmethod
    def from_environment(cls, *, owner: str | None = None) -> Self:
        """Return a client of the server that AJET_SERVER and AJET_TOKEN name; InvalidRequest where one is missing."""
        known = {name: os.environ.get(name, "").strip() for name in ("AJET_SERVER", "AJET_TOKEN")}
        if missing := " and ".join(name for name, value in known.items() if not value):
            raise InvalidRequest(f"expected AJET_SERVER (an address) and AJET_TOKEN (a key for it); found no {missing}")
        return cls(known["AJET_SERVER"].rstrip("/"), known["AJET_TOKEN"], owner=owner)


def _is_running(folder: Path) -> bool:
    """Return whether a server holds the lock of its folder, which the kernel lets go of however it ends."""
    try:
        with (folder / "server.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is held (BlockingIOError), or its file system knows no locks to tell by
        return True
    return False
