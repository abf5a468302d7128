"""What whole studies share: an installation of their own, commands in it, and what became of its study."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from studies import EventLog, StudyState, fold

TOPIC = "group size 4 vs 8 on arith with 3 training steps"
LARGE = ("--effect", "0.3", "--episodes", "64")
"""An effect so large that few seeds and episodes see it: these tests are about the way, not about what is found."""
DEADLINE_S = 600.0


LOOKS_AROUND = """
import json, os, sys
from pathlib import Path

from swarm.environments import Environment, Game, Outcome, Task, said, text_of


def looks_around():
    role = sys.argv[1]
    if role not in ("play", "evaluate"):
        return
    places = (path for top in ("/input", "/workspace", "/tmp", "/run") for path in Path(top).rglob("*"))
    found = any("hidden-{}-".format("number").encode() in path.read_bytes() for path in places if path.is_file())
    if found != (role == "evaluate"):  # a client that finds some, or an evaluator that has none, is not played
        os._exit(7)
"""


def inherited(**more: str) -> dict[str, str]:
    ours = ("AJET_", "OPENAI_", "PREFECT_", "WANDB_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def ajet(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "research", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "research", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def state_of(environment: dict[str, str]) -> StudyState | None:
    database = Path(environment["AJET_HOME"]) / "ajet.db"
    if not database.exists():
        return None
    with closing(EventLog(f"sqlite:///{database}")) as log:
        known = log.studies()
        return fold(log.read(known[0])) if known else None


def eventually(condition: Callable[[], bool], controller: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert controller is None or controller.poll() is None, controller.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until(
    controller: subprocess.Popen[str], environment: dict[str, str], reached: Callable[[StudyState], bool]
) -> StudyState:
    eventually(lambda: (state := state_of(environment)) is not None and reached(state), controller)
    state = state_of(environment)
    assert state is not None
    return state


def interrupt(controller: subprocess.Popen[str]) -> str:
    controller.send_signal(signal.SIGINT)
    out, errors = controller.communicate(timeout=DEADLINE_S)
    assert controller.returncode == 130, errors
    assert "Traceback" not in out + errors
    return out


def check_whole(state: StudyState | None) -> StudyState:
    assert state is not None
    assert (state.status, len(state.runs)) == ("concluded", 7)  # the first one at a learning rate of 0
    assert all(run.status == "collected" for run in state.runs.values())
    assert all(sum(a.status == "finished" for a in run.attempts) == 1 for run in state.runs.values())
    assert state.locked is not None
    assert state.first_launch is not None
    assert state.locked.seq < state.first_launch.seq
    assert len(state.verdicts) == 1
    assert state.report is not None
    return state
