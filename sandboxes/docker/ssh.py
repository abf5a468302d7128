"""A Unix socket here behind which the engine of another machine answers, over ssh.

Each connection to it becomes `ssh MACHINE docker system dial-stdio`, which is how docker's own client does it: keys,
agent, known machines and jump hosts are those of the user's ssh, and nothing is asked (BatchMode). Connections share
authenticated ssh connections, SESSIONS each: a server takes 10 by default, and only so many logins at a time.

What it does not know: the protocol that passes through, and whether the far engine works.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from urllib.parse import SplitResult

from sandboxes.docker.address import NoEngine

SESSIONS = 8
_CONNECT_TIMEOUT_S = 10
_END_TIMEOUT_S = 5
_LAST_WORDS = 400
_LONGEST_FOLDER = 50
"""Bytes: the path of a socket has 107 at most, those of ssh too."""


class SshSocket:
    """The socket, and the ssh processes of its connections; they end with this process."""

    def __init__(self, far: SplitResult, environ: Mapping[str, str]) -> None:
        """Raises NoEngine when there is no ssh here."""
        if shutil.which("ssh", path=environ.get("PATH")) is None:
            raise NoEngine(f"expected ssh on PATH, to reach {far.hostname}; found none; install OpenSSH's client")
        folder = tempfile.gettempdir()
        short = folder if len(os.fsencode(folder)) <= _LONGEST_FOLDER else "/tmp"
        self._folder = Path(tempfile.mkdtemp(prefix="ajet-ssh-", dir=short))  # for its owner only
        atexit.register(self.close)
        self._far = far
        self._environ = dict(environ)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen(64)
        self._shared: list[list[subprocess.Popen[bytes]]] = []
        """The connections of each ssh connection."""
        threading.Thread(target=self._serve, name="ajet-ssh", daemon=True).start()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / "engine.sock"

    def complaint(self) -> str:
        """Return the last that ssh said on its standard error."""
        words = self._folder / "errors"
        return " ".join(words.read_text(errors="replace")[-_LAST_WORDS:].split()) if words.exists() else ""

    def close(self) -> None:
        """Take no more connections, and end those there are."""
        self._listener.close()
        for number, children in enumerate(self._shared):
            for child in children:
                child.terminate()
            subprocess.run(self._ssh(number, "-O", "exit"), env=self._environ, capture_output=True, check=False)
            for child in children:
                _wait(child)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        with (self._folder / "errors").open("ab") as errors:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # closed
                    return
                with connection:
                    self._carry(connection.fileno(), errors)

    def _carry(self, end: int, errors: IO[bytes]) -> None:
        number = self._with_room()
        if number == len(self._shared):
            login = self._ssh(number, "-f", "-N")
            done = subprocess.run(login, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=self._environ)
            if done.returncode != 0:
                return
            self._shared.append([])
        command = [*self._ssh(number), "docker", "system", "dial-stdio"]
        self._shared[number].append(subprocess.Popen(command, stdin=end, stdout=end, stderr=errors, env=self._environ))

    def _with_room(self) -> int:
        """Return the number of the first ssh connection that takes one more; the next one's when all are full."""
        self._shared = [[child for child in children if child.poll() is None] for children in self._shared]
        return next((n for n, children in enumerate(self._shared) if len(children) < SESSIONS), len(self._shared))

    def _ssh(self, number: int, *arguments: str) -> list[str]:
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": _CONNECT_TIMEOUT_S,
            "ServerAliveInterval": 15,
            "ControlMaster": "auto",
            "ControlPath": self._folder / str(number),
            "ControlPersist": 60,
        }
        command = ["ssh", "-T", *(f"-o{name}={value}" for name, value in options.items()), *arguments]
        if self._far.username:
            command += ["-l", self._far.username]
        if self._far.port:
            command += ["-p", str(self._far.port)]
        return [*command, self._far.hostname or ""]


def _wait(child: subprocess.Popen[bytes]) -> None:
    """Wait for a child that was told to end, so that none stays behind as a zombie of this process."""
    try:
        child.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
