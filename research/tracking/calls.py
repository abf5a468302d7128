"""Calls on W&B's own client, each in a process that can be ended: `research.tracking.wandb_client`.

The processes get of the controller's environment what W&B's client needs, its key too, and tell it to look at nothing
but what is sent. They end when the controller does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from research.tracking.login import OnlineLogging

ANSWER_S = 60.0
"""For W&B to answer a question: importing its client takes seconds on a busy machine."""
_KEPT = ("WANDB_API_KEY", "WANDB_CONFIG_DIR", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_CREDENTIALS_FILE")
_QUIET = {
    "WANDB_MODE": "online", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true", "WANDB_DISABLE_JOB_CREATION": "true",
    "WANDB_X_DISABLE_STATS": "true", "WANDB_X_DISABLE_META": "true", "WANDB_X_DISABLE_MACHINE_INFO": "true",
    "WANDB_X_SAVE_REQUIREMENTS": "false", "WANDB_SAVE_CODE": "false",
}  # fmt: skip
_FOLDERS = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")


class WandbUnavailable(Exception):
    """W&B's client did not do what it was asked; the message says so in one line."""


class WandbViewer(NamedTuple):
    """Who is logged in, and the address of W&B's pages."""

    entity: str
    pages: str


class WandbProcess:
    """One call under way; what it says goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process = process
        self._said = said

    def ended(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait for so long at most; return its exit code, None where it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def end(self) -> None:
        """End it at once, with whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_line(self) -> str:
        """Return the last line that it said."""
        return (self._said.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]


class WandbCalls:
    """Calls on one server of W&B. A context; leaving it ends every call that is under way."""

    def __init__(self, online: OnlineLogging, environ: Mapping[str, str]) -> None:
        self._online = online
        self._environ = environ

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="ajet-wandb-", ignore_cleanup_errors=True)
        self._stdin, self._leash = os.pipe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._leash, self._stdin):
            os.close(end)
        self._folder.cleanup()

    def viewer(self) -> WandbViewer:
        """Return who is logged in; raises WandbUnavailable."""
        found = self._answer("viewer", {})
        return WandbViewer(self._online.entity or str(found["entity"]), str(found["pages"]).rstrip("/"))

    def last_step(self, entity: str, run_id: str) -> int | None:
        """Return the last step that W&B shows of a run, 0 before its first, None where it knows no such run.

        Raises WandbUnavailable.
        """
        found = self._answer("last_step", {"path": f"{entity}/{self._online.project}/{run_id}"})["step"]
        return None if found is None else max(0, int(found))

    def send(self, log: Path, entity: str, said: Path, *, live: bool) -> WandbProcess:
        """Begin to send an offline log; with `live` what is added to it too, until it is closed."""
        given = {"log": str(log), "entity": entity, "project": self._online.project, "live": live}
        return self._start("send", given, said)

    def complete(self, log: Path, entity: str, run_id: str, after: int, said: Path) -> WandbProcess:
        """Begin to add to a run what a log has after a step."""
        run = {"id": run_id, "entity": entity, "project": self._online.project}
        return self._start("complete", {"log": str(log), "run": run, "after": after}, said)

    def keep(
        self, run: Mapping[str, Any], artifact: Mapping[str, Any], files: list[Path], entity: str, said: Path
    ) -> WandbProcess:
        """Begin to log files as an artifact of a run."""
        where = {"entity": entity, "project": self._online.project}
        given = {"run": {**run, **where}, "artifact": artifact, "files": [str(path) for path in files]}
        return self._start("keep", given, said)

    def _answer(self, command: str, given: Mapping[str, Any]) -> dict[str, Any]:
        said = Path(self._folder.name) / f"{command}.txt"
        said.unlink(missing_ok=True)
        process = self._start(command, given, said)
        code = process.wait(ANSWER_S)
        if code is None:
            process.end()
            raise WandbUnavailable(f"{self._online.server} did not answer within {ANSWER_S:g} s")
        if code:
            raise WandbUnavailable(process.last_line())
        try:
            found: dict[str, Any] = json.loads(process.last_line())
        except ValueError as error:  # on a full disk, say, its answer was cut
            raise WandbUnavailable(f"expected an answer of W&B's client; found {process.last_line()[:80]!r}") from error
        return found

    def _start(self, command: str, given: Mapping[str, Any], said: Path) -> WandbProcess:
        said.parent.mkdir(parents=True, exist_ok=True)
        with open(said, "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "research.tracking.wandb_client", command, json.dumps(given)],
                env=self._environment(), stdin=self._stdin, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return WandbProcess(process, said)

    def _environment(self) -> dict[str, str]:
        own = {key: value for key, value in self._environ.items() if not key.startswith("WANDB_") or key in _KEPT}
        folders = dict.fromkeys(_FOLDERS, self._folder.name)
        server = {"WANDB_BASE_URL": self._online.base_url} if self._online.base_url else {}
        return {**own, **folders, **_QUIET, **server}
