"""`python -m tests.research.filling attempt|commands HOME`: a study whose disk is full for a while, as a process.

`attempt`: real attempts on it die of it; `commands`: the command line works on it. The end is printed as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

from research.controller.controller import StudyController
from research.runs.wandb_log import read_tracking
from sandboxes import ProcessSandbox, SandboxError
from studies import StudiesError, StudyState
from tests.research.bench import STUDY, Bench
from tests.research.commands import ended
from tests.research.designs import design

PIECE = b"\0" * 4096


def fill(filler: Path) -> None:
    try:
        with open(filler, "wb", buffering=0) as file:
            while file.write(PIECE):
                pass
    except OSError:
        return


def complaint(loop: StudyController) -> str:
    while True:
        try:
            loop.tick()
        except SandboxError as error:
            return str(error)
        time.sleep(0.2)


def await_death() -> None:
    while any(
        "research.runs.attempt" in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ):
        time.sleep(0.2)


def second_attempt(loop: StudyController) -> StudyState:
    while True:
        state = loop.tick().state
        if any(len(run.attempts) > 1 for run in state.runs.values()):
            return state
        time.sleep(0.2)


def commands(home: Path) -> None:
    bench = Bench(home, design=design(16))
    loop, filler = bench.loop(), home / "filler"
    loop.tick()
    fill(filler)
    tried = [
        ended("study", "resume", STUDY, "--no-prefect"),
        ended("study", "amend", STUDY, "--note", "the disk is full"),
        ended("research", "group size 4 vs 8", "--no-prefect"),
    ]
    try:
        loop.tick()
        raise AssertionError("a full disk takes nothing")
    except (SandboxError, StudiesError, OSError) as error:
        said = str(error)
    filler.unlink()
    bench.sandbox.polls = 1
    state = bench.drive(bench.loop()).state
    print(
        json.dumps({"tried": tried, "said": said, "status": state.status, "studies": len(list(home.glob("studies/*")))})
    )


def attempt(home: Path) -> None:
    bench = Bench(home, design=design(16), parallel=1)
    sandbox = ProcessSandbox(bench.home.sandboxes)
    bench.sandbox = sandbox  # type: ignore[assignment]
    bench.read_tracking = read_tracking
    loop, filler = bench.loop(), home / "filler"
    loop.tick()
    fill(filler)
    said = complaint(loop)
    await_death()
    filler.unlink()
    state = second_attempt(loop)
    for handle in sandbox.list():
        handle.stop(grace_s=1.0)
    attempts = [[a.number, a.status, a.code, a.reason] for run in state.runs.values() for a in run.attempts]
    print(json.dumps({"said": said, "attempts": attempts}))


if __name__ == "__main__":
    {"attempt": attempt, "commands": commands}[sys.argv[1]](Path(sys.argv[2]))
