"""An attempt in real processes, in a sandbox of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from research.files import read_json, write_json
from research.isolation.mode import ENGINE_VARIABLES
from research.runs.files import AttemptFolder, AttemptOutcome, AttemptProgress, AttemptSpec
from sandboxes import Handle, ProcessSandbox, SandboxSpec
from tests.research.factories import make_order

DEADLINE_S = 300.0
EPISODES = 24
PLAYS = 8
FOREVER = 100_000


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not come to pass in time: {what}"
        time.sleep(0.02)


class Trial:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = AttemptFolder(path / "attempt")
        self.sandbox = ProcessSandbox(path / "sandboxes")

    def order(self, *, steps: int, **fields: Any) -> AttemptSpec:
        small = {"steps": steps, "episodes_per_step": 8, "group_size": 4, "seed": 3}
        return make_order(episodes=EPISODES, models=str(self.path / "models"), **{**small, **fields})

    def launch(self, order: AttemptSpec) -> Handle:
        write_json(self.folder.spec, order.model_dump(mode="json"))
        command = (sys.executable, "-m", "research.runs.attempt", str(self.folder.path))
        spec = SandboxSpec("attempt", command, self.folder.path, self.variables(), time_limit_s=None, trusted=True)
        return self.sandbox.run(spec)

    def variables(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ENGINE_VARIABLES if name in os.environ}

    def end(self) -> None:
        for handle in self.sandbox.list():
            handle.stop(grace_s=1.0)

    def outcome(self) -> AttemptOutcome:
        return AttemptOutcome.model_validate(read_json(self.folder.outcome))

    def at(self, stage: str, step: int = 0) -> bool:
        value = read_json(self.folder.progress)
        now = None if value is None else AttemptProgress.model_validate(value)
        return now is not None and now.stage == stage and now.step >= step

    def pids(self, word: str) -> list[int]:
        started = read_json(self.path / "sandboxes" / "attempt" / "started.json")
        assert started is not None
        session = int(started["shim_pid"])
        return [process.pid for process in members(session, word)]


def members(session: int, word: str | None = None) -> list[psutil.Process]:
    """Return the living processes of a session, with a word in their command line where one is named."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            alive = os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
            if alive and (word is None or word in process.cmdline()):
                found.append(process)
    return found
