"""A controller killed while it waits for approval: the same question stays open, and one answer begins the training."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from research.installation.home import Home
from research.study.one_controller import is_driven
from studies import EventLog, StudyState
from tests.end_to_end.controller import EPISODES, STUDY
from tests.end_to_end.test_faults import check_whole, state_of, within_deadline
from tests.research.fakes import create_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    with closing(EventLog(home.database)) as log:
        create_study(log, STUDY, budget_s=3600.0, episodes=EPISODES, approve="plan")
    return home


@contextmanager
def controller(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """A controller of the study as a process of its own; killed at the end, where it still lives."""
    process = subprocess.Popen([sys.executable, "-m", "tests.end_to_end.controller", str(home.path)], cwd=ROOT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def until(home: Home, reached: str) -> StudyState:
    for _ in within_deadline():
        if (state := state_of(home)).status == reached:
            return state
    raise AssertionError


def has_a_controller(home: Home) -> bool:
    with closing(EventLog(home.database)) as log:
        return is_driven(home, log, STUDY)


def ajet(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"AJET_HOME": str(home.path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "research", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)


def test_a_killed_controller_leaves_the_same_question_open(home: Home) -> None:
    with controller(home):
        asked = until(home, "waiting")
    assert not has_a_controller(home)
    with controller(home) as second:
        for _ in within_deadline():
            if has_a_controller(home):
                break
        answered = ajet(home, "study", "approve", "--note", "go")
        assert answered.returncode == 0, answered.stderr
        assert "goes on under its controller" in answered.stdout
        state = until(home, "concluded")
        assert second.wait(timeout=400) == 0
    state = state_of(home)
    check_whole(state)
    assert state.questions == asked.questions, "nothing was asked anew"
    assert [given.note for given in state.approvals] == ["go"]
    assert asked.runs == {}
    verified = ajet(home, "study", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
