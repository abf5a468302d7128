"""Whatever process of a study is killed, it ends whole: no run lost, the chain verifies, a report is built."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from research.files import read_json
from research.installation.home import Home
from research.runs.files import AttemptFolder
from studies import EventLog, RunState
from tests.end_to_end.controller import STUDY, check_results, home_with_study, make_loop
from tests.research.runs.trials import members

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
    state = loop.tick().state
    targets = dict(zip(state.runs, VICTIMS, strict=False))
    sessions: list[int] = []
    for _ in within_deadline():
        for run_id, code in list(targets.items()):
            run = state.runs[run_id]
            if run.active is not None and (session := kill_during_training(home, run, VICTIMS[code])):
                sessions.append(session)
                targets.pop(run_id)
        result = loop.tick()
        state = result.state
        if result.done:
            break
    check_results(home, state)
    assert [len(run.measurements) for run in state.runs.values()] == [2] * 6
    assert targets == {}
    ends = [[attempt.code for attempt in run.attempts] for run in state.runs.values()]
    assert ends == [*([code, "ok"] for code in VICTIMS), ["ok"], ["ok"]]
    begun = [[attempt.resumes for attempt in run.attempts] for run in state.runs.values()]
    assert begun == [*([None, 1] for _ in VICTIMS), [None], [None]]
    assert all(run.attempts[-1].resumed_at is not None for run in list(state.runs.values())[: len(VICTIMS)])
    assert all(members(session) == [] for session in sessions), "what a killed shim left behind was ended"
    for name in ("markdown", "html"):
        assert state.report is not None
        assert (home.study(STUDY) / state.report[name]["path"]).stat().st_size > 1000
