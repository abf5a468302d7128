"""Whole studies from the command line, everything real: Prefect, swarm servers, the local backend, W&B logs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from studies import EventLog, StudyState, fold
from tests.furnished import furnish
from tests.research.planner.scripted_endpoint import Reply, says, scripted_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "group size 4 vs 8 on arith with 3 training steps"
LARGE = ("--effect", "0.3", "--episodes", "64")
"""An effect so large that few seeds and episodes see it: these tests are about the way, not about what is found."""
DEADLINE_S = 600.0


@pytest.fixture
def environment(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of an installation of its own; its Prefect server is stopped at the end."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AJET_", "OPENAI_", "PREFECT_", "WANDB_"))}
    home = tmp_path / "home"
    furnish(home, tmp_path_factory)
    mine = {**inherited, "AJET_HOME": str(home), "AJET_SANDBOX": "process", "AJET_ROUNDS": "1", "WANDB_MODE": "offline"}
    yield mine
    ajet(mine, "up", "--stop")


def ajet(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "research", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "research", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def state_of(environment: dict[str, str]) -> StudyState | None:
    database = Path(environment["AJET_HOME"]) / "ajet.db"
    if not database.exists():
        return None
    log = EventLog(f"sqlite:///{database}")
    try:
        known = log.studies()
        return fold(log.read(known[0])) if known else None
    finally:
        log.close()


def wait_until(
    controller: subprocess.Popen[str], environment: dict[str, str], reached: Callable[[StudyState], bool]
) -> StudyState:
    """Poll the log until the study has come so far; the controller must live as long."""
    deadline = time.monotonic() + DEADLINE_S
    while (state := state_of(environment)) is None or not reached(state):
        assert controller.poll() is None, controller.communicate()
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    return state


def check_whole(state: StudyState | None) -> StudyState:
    """Every planned run is collected once, the verdict is there, the report was built."""
    assert state is not None
    assert state.status == "concluded"
    assert len(state.runs) == 6
    assert all(run.status == "collected" for run in state.runs.values())
    assert all(sum(a.status == "finished" for a in run.attempts) == 1 for run in state.runs.values())
    assert state.locked is not None
    assert state.first_launch is not None
    assert state.locked.seq < state.first_launch.seq
    assert len(state.verdicts) == 1
    assert state.report is not None
    return state


def flow_runs(url: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(f"{url}/api/flow_runs/filter", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        found: list[dict[str, Any]] = json.load(reply)
    return found


def test_a_killed_study_is_resumed_to_a_trustworthy_report(environment: dict[str, str]) -> None:
    controller = start(environment, "research", TOPIC, "--max-runs", "6", *LARGE)
    wait_until(controller, environment, lambda state: any(run.status == "collected" for run in state.runs.values()))
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()

    resumed = ajet(environment, "study", "resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    result = json.loads(resumed.stdout)
    state = check_whole(state_of(environment))
    assert result["runs"] == {"planned": 6, "collected": 6}
    assert state.planner["name"] == "rules"
    assert state.model is not None
    assert re.fullmatch("[0-9a-f]{64}", state.model["sha256"])

    html, markdown = (Path(result["report"][kind]).read_text() for kind in ("html", "markdown"))
    for run_id in state.runs:
        assert run_id in html
        assert run_id in markdown
    assert not re.search(r"""(src|href)=["']https?://""", html), "the report is one self-contained file"
    assert result["verdicts"][0]["verdict"] in {"supported", "refuted", "equivalent", "inconclusive"}

    states = sorted(run["state"]["type"] for run in flow_runs(result["prefect"]))
    assert states == ["COMPLETED", "CRASHED"]


def test_a_language_model_plans_and_an_interrupted_study_goes_on(environment: dict[str, str]) -> None:
    hypothesis = {
        "statement": "A larger group learns sums faster.", "mechanism": "A better baseline.", "variable": "group_size",
        "control": 4, "treatment": 8, "direction": "increase", "predicted_low": 0.0, "predicted_high": 0.3,
        "probability": 0.6, "smallest_effect": 0.3, "falsifier": "It learns no faster.",
    }  # fmt: skip
    design = {"action": "design", "environment": "arith", "seeds_per_arm": 3, "steps": 3, "constants": []}
    replies: list[Reply] = [
        says('{"action": "propose", "hypotheses": ['),
        says({"action": "propose", "hypotheses": [hypothesis]}),
        says({**design, "steps": 1_000_000}),
        says(design),
        says({"action": "conclude", "reason": "The question is answered as far as the budget goes."}),
    ]
    options = ("--planner", "llm", "--planner-model", "scripted", "--no-prefect", *LARGE)
    with scripted_endpoint(replies) as endpoint:
        environment |= {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "sk-hush"}
        controller = start(environment, "research", "Do larger groups help with sums?", *options)
        state = wait_until(controller, environment, lambda state: any(run.active for run in state.runs.values()))
        controller.send_signal(signal.SIGINT)
        out, err = controller.communicate(timeout=400)
        assert controller.returncode == 130, err
        assert f"ajet study resume {state.id}" in out
        assert "Traceback" not in out + err
        check_stopped(state_of(environment))
        ended = ajet(environment, "study", "resume", "--no-prefect", "--json")
    assert ended.returncode == 0, ended.stderr
    state = check_whole(state_of(environment))
    assert state.planner == {"name": "llm", "model": "scripted"}
    assert [act.tries for act in state.planner_acts] == [2, 2, 1]
    assert "budget" in state.planner_acts[1].rejected[0]
    assert state.said is not None
    assert state.said.text == "The question is answered as far as the budget goes."
    result = json.loads(ended.stdout)
    report = Path(result["report"]["markdown"]).read_text()
    assert "scripted" in report
    assert result["prefect"] is None
    database = Path(environment["AJET_HOME"], "ajet.db").read_text("latin-1")
    assert "sk-hush" not in out + ended.stdout + ended.stderr + report + database


def check_stopped(state: StudyState | None) -> None:
    assert state is not None
    assert state.status == "stopped"
    assert not any(run.active for run in state.runs.values())
