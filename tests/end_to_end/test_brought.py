"""A planner and a backend of a package outside, by their names, in a real study."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from research.controller.controller import StudyController, drive
from research.controller.session import StudyRequest, create_study
from research.design.comparison import StatisticalRequirements
from research.installation.home import Home
from research.planners.factory import make_planner
from sandboxes import ProcessSandbox
from studies import EventLog
from swarm.job import Job
from tests.end_to_end.factories import ajet, inherited
from tests.outside import install
from tests.research.banks import bank

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EPISODES = 64
ROOT = Path(__file__).parent.parent.parent
JOB: dict[str, Any] = {
    "backend": "outside",
    "steps": 2,
    "episodes_per_step": 8,
    "group_size": 2,
    "environment": "arith",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    folders = [str(install(tmp_path / "outside")), str(ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, folders))
    return inherited(AJET_HOME=str(tmp_path / "home"), AJET_SANDBOX="process", WANDB_MODE="offline", PYTHONPATH=path)


def test_a_study_is_planned_and_trained_by_what_a_package_brings(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is real but what is known of noise, which spares the study six runs."""
    for name in ("AJET_HOME", "AJET_SANDBOX", "PYTHONPATH"):
        monkeypatch.setenv(name, environ[name])
    monkeypatch.syspath_prepend(str(tmp_path / "outside"))
    base, known = Job(**JOB), bank(0.01, job=Job(**JOB), episodes=EPISODES)
    home = Home.locate().prepare()
    log = EventLog(home.database)
    planner = make_planner("outside", None, os.environ)
    asked = StudyRequest(
        "group size 2 vs 4", planner.name, None, 3600.0, None, (), base=base,
        requirements=StatisticalRequirements(episodes=EPISODES, analyses=1),
    )  # fmt: skip
    create_study(log, "s1", asked)
    controller = StudyController(
        home=home, log=log, study="s1", planner=planner, sandbox=ProcessSandbox(home.sandboxes),
        noise_bank=lambda log: known,
    )  # fmt: skip
    state = drive(controller, [], threading.Event(), poll_s=0.05)
    assert (state.status, state.planner["name"]) == ("concluded", "outside")
    assert state.design is not None
    assert state.design.base_job["backend"] == "outside"
    assert {run.spec.job["backend"] for run in state.runs.values() if run.status == "collected"} == {"outside"}
    again = ajet(environ, "study", "resume", "--no-prefect", "--json")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "expected a planner among rules, llm, broken, failing, misnamed, outside; found 'nobody'"),
        ("broken", "expected 'broken' of ajet.planners to be imported"),
        ("failing", "expected the planner failing of a package to be made; found RuntimeError: no such luck"),
        ("misnamed", "expected the planner misnamed to have that name"),
    ],
)
def test_a_planner_that_cannot_be_had_is_one_line_and_begins_no_study(
    environ: dict[str, str], tmp_path: Path, name: str, said: str
) -> None:
    ended = ajet(environ, "research", "group size 2 vs 4 on arith", "--planner", name, "--no-prefect")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert said in ended.stderr
    assert not (tmp_path / "home" / "ajet.db").exists()
