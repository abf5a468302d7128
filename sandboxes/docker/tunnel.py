"""Our end of the tunnel: what a container of an engine without our files connects to, connected here.

`EngineTunnel` runs `inside/tunnel.py` in a container by `docker exec` and connects each connection that comes out to
the Unix socket of that name in a folder here, where a `sandboxes.gateway.gateway.Gateway` decides. It promises:

- the agent's calls pass while the exec lives; when it ends and the container still runs, it is opened anew, which is
  counted and written down with the reason;
- what comes out of the container is not trusted: a broken rule ends that exec;
- it ends when the container does, or at `close`; memory is bounded as `inside/tunnel.py` says.

It works in one thread. It does not know what is spoken through it.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.docker.options import EXCHANGE, TUNNEL_USER
from sandboxes.gateway.listening import name_of
from sandboxes.inside.tunnel import Broken, Multiplexer

if TYPE_CHECKING:
    import docker

PROGRAM = "/opt/ajet/tunnel.py"
CONNECT_TIMEOUT_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_LAST_WORDS = 1000
MOST_NOTES = 100
_READ = 1 << 16
_STDERR = 2
_HEAD = struct.Struct(">BxxxI")


class ExecStream:
    """The connection of a `docker exec`: bytes in, and out of it standard output and error, each piece with a head."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = bytearray()
        self.errors = b""
        """The last that the process said on its standard error."""
        sock.setblocking(False)

    def read(self) -> bytes | None:
        """Return what has arrived on standard output; None for nothing yet, b"" at the end."""
        said = b""
        while not said:
            try:
                data = self._sock.recv(_READ)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            except OSError:
                return b""
            if not data:
                return b""
            self._held += data
            said = self._unpacked()
        return said

    def write(self, data: memoryview) -> int:
        """Send a part of `data`; return its length."""
        try:
            return self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise Broken(str(error)) from error

    def filenos(self) -> tuple[int, int]:
        """Return what to watch."""
        return self._sock.fileno(), self._sock.fileno()

    def _unpacked(self) -> bytes:
        """Return the standard output of all pieces that are whole."""
        said = []
        while len(self._held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held)
            if len(self._held) < _HEAD.size + length:
                break
            piece = bytes(self._held[_HEAD.size : _HEAD.size + length])
            del self._held[: _HEAD.size + length]
            if kind == _STDERR:
                self.errors = (self.errors + piece)[-_LAST_WORDS:]
            else:
                said.append(piece)
        return b"".join(said)


class EngineTunnel:
    """Carries the exchange sockets of one container; starts at once, and says in `log` why it had to open anew."""

    def __init__(
        self, client: docker.DockerClient, container: str, folder: Path, sockets: Sequence[str], log: Path
    ) -> None:
        self._client = client
        self._container = container
        self._folder = folder
        self._sockets = tuple(sockets)
        self._log = log
        self._woken, self._wake = socket.socketpair()
        self._closing = threading.Event()
        self.ready = threading.Event()
        """Set once the container's sockets have been there."""
        self.reopened = 0
        """How often an exec had to be opened anew, or could not be, while its container ran."""
        self.trouble = ""
        """Why the last exec ended, or could not be opened; empty while one works."""
        self._thread = threading.Thread(target=self._work, name=f"tunnel-{container}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still carries."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Lose all connections, and end."""
        self._closing.set()
        with contextlib.suppress(OSError):  # ended by itself, and closed its end
            self._wake.send(b"\0")
        self._thread.join()

    def _work(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set() and self._runs():
            greeted = False
            try:
                greeted = self._carry()
            except Exception as error:  # noqa: BLE001 - the engine went away, by any of the SDK's libraries
                self.trouble = str(error)
            if pause_s == _LONGEST_PAUSE_S and not greeted:
                self._note()
            pause_s = _FIRST_PAUSE_S if greeted else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._closing.wait(pause_s)
        self._woken.close()
        self._wake.close()

    def _note(self) -> None:
        """Write down why an exec ended, or cannot be opened, although the container runs."""
        self.reopened += 1
        if self.reopened <= MOST_NOTES:
            with self._log.open("a") as log:
                log.write(
                    json.dumps({"at": time.time(), "tunnel": self.reopened, "trouble": self.trouble[:_LAST_WORDS]})
                    + "\n"
                )

    def _runs(self) -> bool:
        """Return whether the container is there and runs, or may do so: an engine that does not answer may return."""
        from docker.errors import NotFound

        try:
            state = self._client.api.inspect_container(self._container)["State"]
        except NotFound:
            return False
        except Exception as error:  # noqa: BLE001 - the engine went away, by any of the SDK's libraries
            self.trouble = str(error)
            return True
        return bool(state["Running"])

    def _carry(self) -> bool:
        """Open one exec and carry until it ends; return whether the container's end ever greeted."""
        api: Any = self._client.api
        command = ["python3", "-I", "-S", PROGRAM, EXCHANGE, *self._sockets]
        made = api.exec_create(self._container, command, stdin=True, user=TUNNEL_USER)
        raw = api.exec_start(made["Id"], socket=True)
        sock: socket.socket = getattr(raw, "_sock", raw)
        far = ExecStream(sock)
        tunnel = Multiplexer(far, self._connected)
        tunnel.watch(self._woken.fileno(), selectors.EVENT_READ, lambda _: None)
        tunnel.hello()
        greeted = False
        try:
            while not self._closing.is_set():
                tunnel.turn()
                if tunnel.greeted and not greeted:
                    greeted = True
                    self._greeted()
        except Broken as broken:
            self.trouble = " ".join(f"{broken} {far.errors.decode(errors='replace')}".split())
        finally:
            tunnel.close()
            raw.close()
            sock.close()
        return greeted

    def _greeted(self) -> None:
        """The container's end is there, for the first time or again."""
        self.ready.set()
        if self.trouble:
            self._note()
            self.trouble = ""

    def _connected(self, name: str) -> socket.socket | None:
        """Return a connection to the socket `name` here; None where nobody takes it."""
        if name not in self._sockets:
            raise Broken(f"expected one of {', '.join(self._sockets)}, found {name!r}")
        near = socket.socket(socket.AF_UNIX)
        near.settimeout(CONNECT_TIMEOUT_S)
        try:
            with name_of(self._folder / name) as path:
                near.connect(path)
        except OSError:
            near.close()
            return None
        return near
