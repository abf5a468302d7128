"""Where a client finds its server, and HTTP to it over aiohttp: keys in, JSON out, refusals as errors.

Servers of this machine lie in <home>/swarm, or <home>/swarms/NAME (home is AJET_HOME, else `.ajet`): server.json (the
address, left behind by a killed server), server.lock (locked while the process lives), tokens.json (keys by role,
owner-readable). Only one that lives counts as found: no key is sent to whoever took the port of a killed one.

A reply is waited for as long as its connection lives: a call may wait at the gate through an update of any length. That
the other side is there is the kernels' to say (TCP keepalives).

aiohttp because on one core it carries an order of magnitude more calls than httpx with many connections open.
"""

import asyncio
import fcntl
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

import aiohttp
from pydantic import ValidationError

from swarm.errors import InvalidRequest, SwarmError, UnknownAnswer, Unreachable, from_wire, to_invalid_request
from swarm.wire import BUNDLE, MOST_BUNDLED

DOWNLOAD_SILENCE_S = 300.0
"""A download of which nothing comes for so long is given up."""
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}
"""Seconds of silence before the other side's kernel is asked, between two questions, and questions without answer; and
milliseconds for which what was sent may be unacknowledged, during which it is not asked (else a quarter of an hour)."""

GATHER_S, WORTH_GATHERING = 0.008, 8
"""How long a request waits for others, while so many and more are being answered: the server has work, and each bundle
costs it and the client as much as some calls do."""
MOST_BUNDLE_BYTES = 256 * 1024
"""Bytes of the bodies of a bundle; what is larger goes alone."""

T = TypeVar("T")


class _Bundled(NamedTuple):
    path: str
    key: str | None
    body: str
    answer: asyncio.Future[Any]


class Transport:
    """A pool of connections to `url`; made and closed on one event loop (use as an async context manager)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._due: dict[str, list[_Bundled]] = {}
        self._sending = 0
        """Requests under way, those of bundles that are not wholly answered."""
        self._gathering: asyncio.Handle | None = None

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
        """Close all connections, and tell who is still gathering that nobody is reached; safe to call twice."""
        if self._gathering is not None:
            self._gathering.cancel()
        due, self._due = self._due, {}
        for each in (each for shared in due.values() for each in shared):
            _settle(each, self._unreachable(aiohttp.ClientConnectionError("closed")))
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, key: str, body: bytes | None = None) -> Any:
        """Send one request to `path` (or to an absolute address) and return the answer's JSON. Raises the server's
        error (`swarm.errors`), Unreachable when nothing answers, UnknownAnswer for what is no JSON."""
        address = path if path.startswith("http") else self.url + path
        try:
            async with self.open().request(method, address, data=body, headers=_headers(key)) as reply:
                data = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        if reply.status >= 400:
            raise _refusal(reply, data)
        if isinstance(found := _parse(data), str):
            raise UnknownAnswer(f"expected a swarm server at {self.url}; found something else that answers there")
        return found

    async def share(self, path: str, key: str, body: str, *, own: bool = True) -> Any:
        """Do as `call` by POST, in one request (`swarm.wire.Bundle`) with all that is shared in the same turn of the
        event loop, or within GATHER_S while many are answered; `own`: the key is for this one alone. Where a caller
        is cancelled, the server goes on with what it asked until the others of the bundle are over."""
        asked = _Bundled(path, key if own else None, body, asyncio.get_running_loop().create_future())
        if not self._due:
            loop = asyncio.get_running_loop()
            few = self._sending < WORTH_GATHERING
            self._gathering = loop.call_soon(self._flush) if few else loop.call_later(GATHER_S, self._flush)
        self._due.setdefault("" if own else key, []).append(asked)
        return await asked.answer

    def _flush(self) -> None:
        due, self._due = self._due, {}
        for key, shared in due.items():
            bundles, size = list[list[_Bundled]]([[]]), 0
            for each in (each for each in shared if not each.answer.done()):
                if len(bundles[-1]) == MOST_BUNDLED or size + len(each.body) > MOST_BUNDLE_BYTES:
                    bundles.append([])
                    size = 0
                bundles[-1].append(each)
                size += len(each.body)
            for bundle in filter(None, bundles):
                sending = asyncio.create_task(self._send(key or bundle[0].key or "", bundle))
                for each in bundle:
                    each.answer.add_done_callback(partial(_cancel_if_unheard, sending, bundle))

    async def _send(self, key: str, bundle: Sequence[_Bundled]) -> None:
        error: Exception = self._unreachable(aiohttp.ClientPayloadError())
        self._sending += len(bundle)
        try:
            if len(bundle) == 1:
                _settle(bundle[0], await self.call("POST", bundle[0].path, key, bundle[0].body.encode()))
            else:
                await self._send_bundle(key, bundle)
        except (aiohttp.ClientError, TimeoutError) as lost:
            error = self._unreachable(lost)
        except SwarmError as refusal:
            error = refusal
        except (ValueError, LookupError, TypeError):
            error = UnknownAnswer(f"expected a swarm server at {self.url}; found something else that answers there")
        finally:
            self._sending -= len(bundle)
            for each in bundle:
                _settle(each, error)

    async def _send_bundle(self, key: str, bundle: Sequence[_Bundled]) -> None:
        requests = ",".join(
            f'{{"path":{json.dumps(each.path)},"key":{json.dumps(each.key)},"body":{each.body}}}' for each in bundle
        )
        body, left = f'{{"requests":[{requests}]}}'.encode(), b""
        async with self.open().post(self.url + BUNDLE, data=body, headers=_headers(key)) as reply:
            if 400 <= reply.status < 429:  # as one of them is wrong, or bundles are not known: nothing was done
                left_over = [each for each in bundle if not each.answer.done()]
                await asyncio.gather(*(self._send(each.key or key, [each]) for each in left_over))
            elif reply.status >= 400:
                raise _refusal(reply, await reply.read())
            async for piece in reply.content.iter_any():  # lines of any length
                *lines, left = (left + piece).split(b"\n")
                for line in map(json.loads, lines):
                    status, told = line["status"], line["body"]
                    _settle(bundle[line["at"]], told if status < 400 else from_wire(status, told, line["retry_after"]))

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"no swarm server answers at {self.url} ({type(error).__name__}); is it running?")

    async def ask(
        self, read: Callable[[Any], T], method: str, path: str, key: str, body: bytes | None = None,
        own: bool | None = None,
    ) -> T:  # fmt: skip
        """Do as `call` (or `share`, if it is said whether the key is its `own`), and return what `read` makes of the
        answer; UnknownAnswer where it can make nothing of it."""
        if own is None:
            found = await self.call(method, path, key, body)
        else:
            found = await self.share(path, key, (body or b"{}").decode(), own=own)
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


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def _settle(asked: _Bundled, found: Any) -> None:
    if not asked.answer.done():
        (asked.answer.set_exception if isinstance(found, Exception) else asked.answer.set_result)(found)


def _cancel_if_unheard(sending: asyncio.Task[None], bundle: Sequence[_Bundled], answer: asyncio.Future[Any]) -> None:
    if answer.cancelled() and all(each.answer.done() for each in bundle):
        sending.cancel()


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
