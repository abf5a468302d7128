"""Whatever process of a study is killed, it ends whole, and its logs arrive once at W&B, here a stand-in."""

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

from research.files import read_json
from research.installation.home import Home
from research.runs.files import AttemptFolder
from research.scheduler.next_step import is_done
from studies import EventLog, RunState, StudyState
from tests.end_to_end.controller import BASE, STUDY, check_results, home_with_study, make_loop, state_of
from tests.research.runs.trials import members
from tests.wandb_standin import KEY, StandIn, standing_in

DEADLINE_S = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with home_with_study(tmp_path / "home") as home:
        yield home


def within_deadline() -> Iterator[None]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
    raise AssertionError(f"it did not come to pass within {DEADLINE_S:g} s")


def named(word: str) -> Callable[[psutil.Process], bool]:
    return lambda process: word in process.cmdline()


VICTIMS: dict[str, Callable[[psutil.Process], bool]] = {
    "server_died": named("swarm.server"),
    "client_died": named("play"),
    "attempt_died": named("research.runs.attempt"),
    "lost": lambda process: any(word.endswith("shim.py") for word in process.cmdline()),
}


def kill_during_training(home: Home, run: RunState, is_victim: Callable[[psutil.Process], bool]) -> int | None:
    assert run.active is not None
    progress = read_json(AttemptFolder(home.attempt(STUDY, run.run_id, run.active.number)).progress)
    if progress is None or progress["stage"] != "train":
        return None
    started = read_json(home.sandboxes / run.active.name / "started.json")
    session = int(started["shim_pid"])
    victims = [process for process in members(session) if is_victim(process)]
    for victim in victims:
        victim.kill()
    return session if victims else None


def test_each_kind_of_process_may_be_killed_and_its_run_goes_on(home: Home) -> None:
    loop = make_loop(home, EventLog(home.database))
    state = loop.tick()
    targets = dict(zip(state.runs, VICTIMS, strict=False))
    sessions: list[int] = []
    for _ in within_deadline():
        for run_id, code in list(targets.items()):
            run = state.runs[run_id]
            if run.active is not None and (session := kill_during_training(home, run, VICTIMS[code])):
                sessions.append(session)
                targets.pop(run_id)
        state = loop.tick()
        if is_done(state):
            break
    check_results(home, state)
    assert [len(run.measurements) for run in state.runs.values()] == [2] * 6
    assert targets == {}
    ends = [[attempt.code for attempt in run.attempts] for run in state.runs.values()]
    assert ends == [*([code, "ok"] for code in VICTIMS), ["ok"], ["ok"]]
    begun = [[attempt.resumes for attempt in run.attempts] for run in state.runs.values()]
    assert begun == [*([None, 1] for _ in VICTIMS), [None], [None]]
    assert all(run.attempts[-1].resumed_at is not None for run in list(state.runs.values())[: len(VICTIMS)])
    assert all(members(session) == [] for session in sessions)  # what a killed shim left behind was ended
    assert (home.sandboxes / "preload.log").read_text() == ""  # all of them were forked
    for name in ("markdown", "html"):
        assert state.report is not None
        assert (home.study(STUDY) / state.report[name]["path"]).stat().st_size > 1000


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with standing_in() as found:
        yield found


@pytest.fixture
def sent(tmp_path: Path, standin: StandIn) -> Iterator[Home]:
    with home_with_study(tmp_path / "sent", wandb={"base_url": standin.url}) as sent:
        yield sent


def controller(sent: Home, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.end_to_end.controller", str(sent.path)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], env={**os.environ, **environment})


def check_key_is_kept(sent: Home) -> None:
    asked = 0
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            ours = {"research.runs.attempt", "swarm.server"} & set(command)
            if ours and any(str(sent.path) in word for word in command):
                assert KEY not in process.environ().values()
                asked += 1
    assert asked


def killed_once(
    sent: Home,
    standin: StandIn,
    reached: Callable[[StudyState], bool],
    look: Callable[[Home], None] = lambda sent: None,
) -> None:
    """Run a controller, look around as soon as the study has `reached` a point, and kill -9 it."""
    running = controller(sent, **standin.environment)
    deadline = time.monotonic() + DEADLINE_S
    while not reached(state_of(sent)):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    look(sent)
    running.kill()
    running.wait()


def report_of(sent: Home, state: StudyState) -> str:
    assert state.report is not None
    return (sent.study(STUDY) / state.report["markdown"]["path"]).read_text()


def test_a_study_is_copied_whole_though_wandb_is_down_and_its_controller_killed(sent: Home, standin: StandIn) -> None:
    standin.fail("", times=10**6)
    killed_once(sent, standin, lambda state: any(run.status == "collected" for run in state.runs.values()))
    assert {attempt.standing for run in state_of(sent).runs.values() for attempt in run.attempts} == {""}
    standin.faults.clear()

    def is_sent(state: StudyState) -> bool:
        return any(run.active is not None and run.active.standing for run in state.runs.values())

    killed_once(sent, standin, is_sent, check_key_is_kept)
    ended = controller(sent, **standin.environment)
    assert ended.wait(DEADLINE_S) == 0
    state = state_of(sent)
    check_results(sent, state)
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
        assert attempt.url in report_of(sent, state).replace("\\", "")
    assert not standin.unknown
    for path in sent.path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), f"the key is in {path}"
