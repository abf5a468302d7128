"""Attempts in real processes: one in a sandbox of its own, and several at one run, each gone on from by the next."""

from __future__ import annotations

import dataclasses
import os
import signal
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
from research.runs.resume import plan_resume, transfer_files
from sandboxes import Handle, ProcessSandbox, SandboxSpec
from studies import AttemptState, RunState
from studies.records.procedure import Watchdog
from tests.research.factories import make_order

DEADLINE_S = 300.0
EPISODES = 24
PLAYS = 8
FOREVER = 100_000
STEPS = 24


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
        return self.sandbox.run(dataclasses.replace(spec, after_kill=self.after_kill()))

    def variables(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ENGINE_VARIABLES if name in os.environ}

    def after_kill(self) -> tuple[str, ...]:
        return ()

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


class Tries:
    def __init__(self, path: Path, **fields: Any) -> None:
        self.trials: dict[int, Trial] = {}
        self._path = path
        order = self.trial(1).order(**{"steps": STEPS, **fields})
        self.order = order.model_copy(update={"models": str(path / "models"), "watchdog": Watchdog()})
        self.run = RunState(order.run_id, order.spec)

    def trial(self, number: int) -> Trial:
        return self.trials.setdefault(number, Trial(self._path / f"a{number}"))

    def folder(self, number: int) -> AttemptFolder:
        return self.trial(number).folder

    def log(self, number: int) -> str:
        path = self.folder(number).log("server")
        return path.read_text() if path.exists() else ""

    def begin(self, resumes: int | None = None) -> int:
        number = len(self.run.attempts) + 1
        attempt = AttemptState(number, f"a{number}", "2026-01-01T00:00:00+00:00", resumes=resumes)
        self.run = dataclasses.replace(self.run, attempts=(*self.run.attempts, attempt))
        return number

    def ended(self, code: str, status: Any = "failed") -> None:
        *before, last = self.run.attempts
        last = dataclasses.replace(last, status=status, code=code, seconds=1.0)
        self.run = dataclasses.replace(self.run, attempts=(*before, last))

    def launch(self) -> AttemptSpec:
        begins = plan_resume(self.run, self.folder)
        number = self.begin(begins.resumes)
        if begins.resumes is not None:
            transfer_files(self.folder(begins.resumes), self.folder(number))
        known = {"initial_sha256": begins.initial_sha256, "during_sha256": begins.during_sha256}
        order = self.order.model_copy(update={"attempt": number, "resumes": begins.resumes, **known})
        self.trial(number).launch(order)
        return order

    def kill(self, number: int, word: str) -> None:
        (pid,) = self.trial(number).pids(word)
        os.kill(pid, signal.SIGKILL)

    def over(self, number: int) -> None:
        handle = self.trial(number).sandbox.adopt("attempt")
        assert handle is not None
        assert handle.wait(DEADLINE_S) is not None
        handle.stop()

    def outcome(self, number: int) -> AttemptOutcome:
        self.over(number)
        return self.trial(number).outcome()
