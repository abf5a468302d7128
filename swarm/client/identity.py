"""A client's identity: where it finds its server, and how the leases of one that was killed are taken over.

Servers of this machine lie in <home>/swarm, or <home>/swarms/NAME (home is AJET_HOME, else `.ajet`): server.json (the
address, left behind by a killed server), server.lock (locked while the process lives), tokens.json (keys by role,
owner-readable). Only one that lives counts as found: no key is sent to whoever took the port of a killed one.

Each client holds a record of its server and a secret under an exclusive file lock, which the kernel lets go when the
process dies. Whoever gets the lock knows that its client is dead and has its secret, with which the server gives up its
open episodes (`POST /owners/release`). The owner's name ends with the secret's fingerprint. No living client's episodes
are given up, also of the same name or process, or stopped; records of another boot or machine are left alone, as locks
may not reach there: those leases run out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, Literal, Self

from swarm.errors import EngineUnavailable, InvalidKey, InvalidRequest, SwarmError, Unreachable
from swarm.wire import fingerprint

Role = Literal["admin", "client", "viewer"]
Release = Callable[[str], Awaitable[object]]
"""Tells the server that the client with this secret is dead."""
log = logging.getLogger(__name__)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_OWNER: Final = 128


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


class ClientIdentity:
    """One client's record; `folder` is where those of this user lie."""

    def __init__(self, url: str, name: str, folder: Path | None = None) -> None:
        self.secret = secrets.token_hex(32)
        """With which the server gives up what is open under the owner's name."""
        mark = f":{fingerprint(self.secret)}"
        self.owner = name[: _MOST_OWNER - len(mark)] + mark
        """Under which the client begins episodes."""
        self._folder = folder or _default_folder()
        self._server = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
        self._path = self._folder / f"{self._server}-{secrets.token_hex(8)}.lock"
        self._lock: int | None = None

    async def enter(self, release: Release) -> None:
        """Hold the record from now on, and take over from dead clients of the same server; again: no change."""
        if self._lock is not None:
            return
        with contextlib.suppress(OSError):  # no place for records: leases run out by themselves
            self._lock = self._create_record()
        for path, secret in list(self._find_dead_clients()):
            try:
                await release(secret)
            except (Unreachable, EngineUnavailable, InvalidKey):
                continue  # the next client may try
            except SwarmError as refusal:  # a server, or a door before it, that does not do that
                log.info("event=not_released reason=%r", refusal.message)
            with contextlib.suppress(OSError):  # a folder that became read-only
                path.unlink(missing_ok=True)

    def leave(self) -> None:
        """Give the record up: nothing is open any more."""
        if self._lock is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _create_record(self) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self._folder} is not this user's alone")
        new = self._path.with_suffix(".new")
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, json.dumps({"boot": _boot_id(), "secret": self.secret}).encode())
            os.rename(new, self._path)  # only now, as it is locked
        except OSError:  # a full disk: nothing is left behind, so that the next episode may find room
            os.close(lock)
            new.unlink(missing_ok=True)
            raise
        return lock

    def _find_dead_clients(self) -> Iterator[tuple[Path, str]]:
        """Yield the records, and secrets, of dead clients of the same server."""
        for path in sorted(self._folder.glob(f"{self._server}-*.lock")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its client lives
                record = json.load(file)
                if record["boot"] == _boot_id():
                    yield path, str(record["secret"])


def _default_folder() -> Path:
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "ajet-clients"
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # no place can be written to: there will be no record, and a client plays all the same
        temporary = "/tmp"
    return Path(temporary) / f"ajet-clients-{os.getuid()}"


def _boot_id() -> str:
    """Return what tells this run of this machine's kernel from all others, as far as the system says."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return socket.gethostname()
