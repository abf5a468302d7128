"""What a server directory keeps across restarts, readable by its owner alone.

    secret         signs keys, so that they survive a restart
    installation   the directory's name for the database it writes (`swarm.store.databases.database`)
    engine.json    the job whose engine is on; gone once the engine is stopped, there after the server itself ended

Files are whole or absent. Knows nothing of what runs.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from swarm.errors import ServerFailed
from swarm.job import Job

_SECRET_BYTES = 32


class ServerDirectory:
    """The kept files below `path`, which is made if need be; OSError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def secret(self) -> bytes:
        """Return the secret, made the first time; raise ServerFailed if its file is damaged."""
        try:
            return bytes.fromhex(self._kept("secret"))
        except ValueError:
            raise ServerFailed(
                f"{self.path / 'secret'} is damaged: expected {2 * _SECRET_BYTES} hex digits; delete it, and all keys "
                "given so far are void"
            ) from None

    def installation(self) -> str:
        """Return the installation's id, made the first time."""
        return self._kept("installation")

    def engine_on(self, job: Job) -> None:
        """Note that the job's engine is on, durably."""
        write_private(self._engine, json.dumps(job.value()))

    def engine_off(self) -> None:
        """Note that no engine is on."""
        self._engine.unlink(missing_ok=True)

    def interrupted(self) -> Job | None:
        """Return the job whose engine was on when the server ended or died, or None.

        Raises ServerFailed for one this version cannot read.
        """
        try:
            return Job.recorded(self._engine.read_text())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ServerFailed(
                f"{self._engine} holds a job that this version of ajet does not read ({error.error_count()} fields); "
                "delete it to start without that job"
            ) from None

    @property
    def _engine(self) -> Path:
        return self.path / "engine.json"

    def _kept(self, name: str) -> str:
        path = self.path / name
        try:
            return path.read_text()
        except FileNotFoundError:
            write_private(path, secrets.token_hex(_SECRET_BYTES))
            return path.read_text()


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, durably, all or nothing."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
