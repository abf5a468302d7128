"""A study whose logs are sent to W&B, here a stand-in: W&B is down, the controller is killed, and all arrives once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from research.installation.home import Home
from studies import StudyState
from tests.end_to_end.controller import BASE, STUDY, check_results, home_with_study, state_of
from tests.wandb_standin import StandIn, standing_in
from tests.wandb_standin.server import KEY

DEADLINE_S = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with standing_in() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path, standin: StandIn) -> Iterator[Home]:
    with home_with_study(tmp_path / "home", wandb={"base_url": standin.url}) as home:
        yield home


def controller(home: Home, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.end_to_end.controller", str(home.path)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], env={**os.environ, **environment})


def check_key_is_kept(home: Home) -> None:
    asked = 0
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            ours = {"research.runs.attempt", "swarm.server"} & set(command)
            if ours and any(str(home.path) in word for word in command):
                assert KEY not in process.environ().values()
                asked += 1
    assert asked


def killed_once(
    home: Home,
    standin: StandIn,
    reached: Callable[[StudyState], bool],
    look: Callable[[Home], None] = lambda home: None,
) -> None:
    """Run a controller, look around as soon as the study has `reached` a point, and kill -9 it."""
    running = controller(home, **standin.environment)
    deadline = time.monotonic() + DEADLINE_S
    while not reached(state_of(home)):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    look(home)
    running.kill()
    running.wait()


def report_of(home: Home, state: StudyState) -> str:
    assert state.report is not None
    return (home.study(STUDY) / state.report["markdown"]["path"]).read_text()


def test_a_study_is_copied_whole_though_wandb_is_down_and_its_controller_killed(home: Home, standin: StandIn) -> None:
    standin.fail("", times=10**6)
    killed_once(home, standin, lambda state: any(run.status == "collected" for run in state.runs.values()))
    assert {attempt.standing for run in state_of(home).runs.values() for attempt in run.attempts} == {""}
    standin.faults.clear()

    def is_sent(state: StudyState) -> bool:
        return any(run.active is not None and run.active.standing for run in state.runs.values())

    killed_once(home, standin, is_sent, check_key_is_kept)
    ended = controller(home, **standin.environment)
    assert ended.wait(DEADLINE_S) == 0
    state = state_of(home)
    check_results(home, state)
    for run in state.runs.values():
        (attempt,) = run.attempts
        assert (attempt.standing, attempt.standing_reason) == ("sent", "")
        assert attempt.url == f"{standin.url}/standin/ajet/runs/{run.run_id}-a1"
        found = standin.run(f"{run.run_id}-a1")
        assert (found.group, found.state) == (STUDY, "finished")
        assert found.tags == [STUDY, run.spec.arm, "confirm"]
        assert (found.values["design_hash"], found.values["group_size"]) == (
            state.design_hash, run.spec.job["group_size"],
        )  # fmt: skip
        assert found.steps == list(range(1, BASE.steps + 1))
        assert attempt.url in report_of(home, state).replace("\\", "")
    assert standin.artifacts.files(f"report-{STUDY}")["report.md"] == report_of(home, state).encode()
    assert standin.run(f"{STUDY}-report").group == STUDY
    assert not standin.unknown
    for path in home.path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), f"the key is in {path}"
