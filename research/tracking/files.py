"""A study's files at W&B, as artifacts: the last checkpoint of each run on its page, the report on a run of its own.

They are sent one at a time, when nothing else is under way; what is not sent within the time stays where it is, here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.installation.home import Home
from research.results.attempt_files import AttemptFolder
from research.tracking.calls import WandbCalls, WandbProcess
from studies import RunState, StudyState

MOST_CHECKPOINT_BYTES = 256 * 2**20
"""A larger checkpoint stays where it is, which is said."""


@dataclass(frozen=True, slots=True)
class SentFile:
    """Files to be sent: the W&B run that holds them, what they are called, and where W&B's client says what it does."""

    run: Mapping[str, Any]
    artifact: Mapping[str, Any]
    files: list[Path]
    said: Path


class SentFiles:
    """The files of one study that are to be sent, and the one that is under way."""

    def __init__(self, home: Home, study: str, warn: Callable[[str], None]) -> None:
        """`warn` takes a line on what is not sent."""
        self._home = home
        self._study = study
        self._warn = warn
        self._waiting: deque[SentFile] = deque()
        self._under_way: tuple[SentFile, WandbProcess] | None = None

    def add_checkpoint(self, run: RunState, attempt: int) -> None:
        """Have the last checkpoint of a run sent, if it left one that is not too large."""
        folder = AttemptFolder(self._home.attempt(self._study, run.run_id, attempt))
        found = sorted((folder.server / "checkpoints").glob("step-*"))
        if not found:
            return
        if (size := _bytes(found[-1])) > MOST_CHECKPOINT_BYTES:
            self._warn(f"not sent to W&B: the checkpoint {found[-1]} of {size / 2**20:.0f} MiB; at most "
                       f"{MOST_CHECKPOINT_BYTES / 2**20:.0f} MiB are")  # fmt: skip
            return
        about = {"study": self._study, "arm": run.spec.arm, "seed": run.spec.seed, "checkpoint": found[-1].name}
        artifact = {"name": f"checkpoint-{run.run_id}", "type": "model", "metadata": about}
        of = {"id": f"{run.run_id}-a{attempt}", "resume": "must"}
        self._waiting.append(SentFile(of, artifact, [found[-1]], folder.log("wandb")))

    def add_report(self, state: StudyState) -> None:
        """Have the report on a study sent before anything else, if it has one."""
        if state.report is None:
            return
        folder = self._home.study(self._study)
        files = [folder / state.report[kind]["path"] for kind in ("markdown", "html")]
        run = {"id": f"{self._study}-report", "name": "report", "group": self._study, "job_type": "report",
               "tags": [self._study], "resume": "allow", "config": {"study": self._study}}  # fmt: skip
        artifact = {"name": f"report-{self._study}", "type": "report"}
        self._waiting.appendleft(SentFile(run, artifact, files, folder / "wandb.log"))

    def go_on(self, calls: WandbCalls, entity: str) -> bool:
        """Send the next file unless one is under way; return whether anything is left to wait for."""
        if self._under_way is not None:
            file, process = self._under_way
            if (code := process.ended()) is None:
                return True
            self._under_way = None
            if code:
                self._warn(f"not sent to W&B: {file.artifact['name']} ({process.last_line()})")
        if self._waiting:
            file = self._waiting[0]  # where a full disk lets nothing be started, it waits on
            self._under_way = file, calls.keep(file.run, file.artifact, file.files, entity, file.said)
            self._waiting.popleft()
        return self._under_way is not None

    def end(self) -> None:
        """End what is under way, and say what was not sent."""
        if self._under_way is not None:
            file, process = self._under_way
            process.end()
            self._waiting.appendleft(file)
        if self._waiting:
            self._warn(f"not sent to W&B: {', '.join(str(file.artifact['name']) for file in self._waiting)}")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
