"""Where a client finds its server, and HTTP to it over aiohttp: keys in, JSON out, refusals as errors.

Servers of this machine lie in <home>/swarm, or <home>/swarms/NAME (home is AJET_HOME, else `.ajet`): server.json (the
address, left behind by a killed server), server.lock (locked while the process lives), tokens.json (keys by role,
owner-readable). Only one that lives counts as found: no key is sent to whoever took the port of a killed one.

A reply is waited for as long as its connection lives: a call may wait at the gate through an update of any length. That
the other side is there is the kernels' to say (TCP keepalives).

aiohttp because on one core it carries an order of magnitude more calls than httpx with many connections open.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import aiohttp
from pydantic import ValidationError

from swarm.errors import InvalidRequest, SwarmError, UnknownAnswer, Unreachable, from_wire, to_invalid_request

DOWNLOAD_SILENCE_S = 300.0
"""A download of which nothing comes for so long is given up."""
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}
"""Seconds of silence before the other side's kernel is asked, between two questions, and questions without answer; and
milliseconds for which what was sent may be unacknowledged, during which it is not asked (else a quarter of an hour)."""

T = TypeVar("T")


class Transport:
    """A pool of connections to `url`; made and closed on one event loop (use as an async context manager)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def open(self) -> aiohttp.ClientSession:
        """Return the open session, opening it at the first call."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0, socket_factory=_keepalive_socket)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self._session

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, key: str, body: bytes | None = None) -> Any:
        """Send one request to `path` (or to an absolute address) and return the answer's JSON. Raises the server's
        error (`swarm.errors`), Unreachable when nothing answers, UnknownAnswer for what is no JSON."""
        address = path if path.startswith("http") else self.url + path
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        try:
            async with self.open().request(method, address, data=body, headers=headers) as reply:
                data = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            what = type(error).__name__
            raise Unreachable(f"no swarm server answers at {self.url} ({what}); is it running?") from error
        if reply.status >= 400:
            raise _refusal(reply, data)
        if isinstance(found := _parse(data), str):
            raise UnknownAnswer(f"expected a swarm server at {self.url}; found something else that answers there")
        return found

    async def ask(self, read: Callable[[Any], T], method: str, path: str, key: str, body: bytes | None = None) -> T:
        """Do as `call`, and return what `read` makes of the answer; UnknownAnswer where it can make nothing of it."""
        found = await self.call(method, path, key, body)
        try:
            return read(found)
        except (ValueError, LookupError, TypeError) as error:
            wrong = to_invalid_request(error).message if isinstance(error, ValidationError) else type(error).__name__
            raise UnknownAnswer(
                f"expected a swarm server of this version at {self.url}; found an answer to {method} "
                f"{path.partition('?')[0]} that it does not give ({wrong}): something else answers there, or another "
                "version of ajet"
            ) from error

    async def download(self, path: str, key: str, to: Path) -> Mapping[str, str]:
        """Write the answer's body to a file, which appears once it is whole; return the headers. Raises as `call`."""
        part = to.with_name(to.name + ".part")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=DOWNLOAD_SILENCE_S)
        headers = {"Authorization": f"Bearer {key}"}
        try:
            async with self.open().get(self.url + path, headers=headers, timeout=timeout) as reply:
                if reply.status >= 400:
                    raise _refusal(reply, await reply.read())
                if reply.content_type == "text/html":
                    raise UnknownAnswer(f"expected a swarm server at {self.url}; found pages for a browser there")
                with part.open("wb") as file:
                    async for piece in reply.content.iter_chunked(1 << 18):
                        file.write(piece)
            os.replace(part, to)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(
                f"the swarm server at {self.url} did not send all of it ({type(error).__name__})"
            ) from error
        finally:
            part.unlink(missing_ok=True)
        return reply.headers


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket whose kernel notices that the other side is gone though nothing is sent."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not everywhere
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data[:200].decode(errors="replace")


def _refusal(reply: aiohttp.ClientResponse, data: bytes) -> SwarmError:
    retry_after = None
    with suppress(ValueError):  # a date, or no such header
        retry_after = float(reply.headers.get("Retry-After", ""))
    return from_wire(reply.status, _parse(data), retry_after)


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
        """Return a client of a server of this machine, by its name; Unreachable where it does not run. `home` is the
        installation's folder: AJET_HOME, else `.ajet`, where it is left out."""
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
        if not is_running(folder):
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


def is_running(folder: Path) -> bool:
    """Return whether a server holds the lock of its folder, which the kernel lets go of however it ends."""
    try:
        with (folder / "server.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is held (BlockingIOError), or its file system knows no locks to tell by
        return True
    return False
