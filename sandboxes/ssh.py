"""A Unix socket here behind which the engine of another machine answers, over ssh.

Each connection to it becomes `ssh MACHINE docker system dial-stdio`, which is how docker's own client does it: keys,
agent, known machines and jump hosts are those of the user's ssh, and nothing is asked (BatchMode). All connections of
a process share one authenticated ssh connection.

What it does not know: the protocol that passes through, and whether the far engine works.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult

from sandboxes.address import NoEngine

_CONNECT_TIMEOUT_S = 10
_LAST_WORDS = 400


class Door:
    """The socket, and the ssh processes of its connections; they end with this process."""

    def __init__(self, far: SplitResult, environ: Mapping[str, str]) -> None:
        """Raises NoEngine when there is no ssh here."""
        if shutil.which("ssh", path=environ.get("PATH")) is None:
            raise NoEngine(f"expected ssh on PATH, to reach {far.hostname}; found none; install OpenSSH's client")
        self._folder = Path(tempfile.mkdtemp(prefix="ajet-ssh-"))  # for its owner only
        atexit.register(self.close)
        self._ssh = _ssh(far, self._folder)
        self._machine = far.hostname or ""
        self._environ = dict(environ)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen(64)
        self._children: list[subprocess.Popen[bytes]] = []
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
        for child in self._children:
            child.terminate()
        end = [*self._ssh, "-O", "exit", self._machine]
        subprocess.run(end, env=self._environ, capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        command = [*self._ssh, self._machine, "docker", "system", "dial-stdio"]
        with (self._folder / "errors").open("ab") as errors:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # closed
                    return
                with connection:
                    end = connection.fileno()
                    self._children = [child for child in self._children if child.poll() is None]
                    self._children.append(
                        subprocess.Popen(command, stdin=end, stdout=end, stderr=errors, env=self._environ)
                    )


def _ssh(far: SplitResult, folder: Path) -> list[str]:
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": _CONNECT_TIMEOUT_S,
        "ServerAliveInterval": 15,
        "ControlMaster": "auto",
        "ControlPath": folder / "%C",
        "ControlPersist": 60,
    }
    command = ["ssh", "-T", *(f"-o{name}={value}" for name, value in options.items())]
    if far.username:
        command += ["-l", far.username]
    if far.port:
        command += ["-p", str(far.port)]
    return command
