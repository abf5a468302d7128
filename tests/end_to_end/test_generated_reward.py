"""Studies whose reward a language model wrote, from the command line: its code runs in containers, and nowhere else."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from research.controller.controller import StudyController, drive
from research.installation.home import Home
from research.isolation.mode import Isolation, Sandboxing
from research.runs.files import AttemptFolder
from sandboxes import ProcessSandbox
from sandboxes.docker.container import DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
from studies import EventLog, RunState, StudyState
from studies.report.evidence import gather
from swarm.job import Job
from tests.end_to_end.controller import EPISODES, PRICING, QUIET, STUDY
from tests.end_to_end.factories import LARGE, ajet, state_of
from tests.research.fakes import create_study
from tests.research.planners.scripted_endpoint import says, scripted_endpoint
from tests.research.test_generated_code import Coder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "Does a dense reward function help with sums?"
OFFSET = 5.0
"""Added to every reward of the generated function, so that its runs are told apart by what they logged."""


def source(trace: Path) -> str:
    """Return a reward function whose module would leave a trace on this machine."""
    return (
        f"try:\n    open({str(trace)!r}, 'w').close()\nexcept OSError:\n    pass\n\n\n"
        "def reward(task: dict, messages: list[dict], outcome: dict) -> float:\n"
        "    total = task['data']['left'] + task['data']['right']\n"
        "    close = messages[-1]['content'].strip().endswith(str(total)[-1])\n"
        f"    return {OFFSET} + outcome['reward'] + 0.5 * close\n"
    )


HOSTILE = """
import json, os, sys, time, urllib.error, urllib.request

RESULTS = "/workspace/results/evaluation.json"


def tried(what, call):
    try:
        told = repr(call())
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"hostile {what}: {told}\\n")


def write(path):
    with open(path, "w") as file:
        return file.write("{}")


def begin(kind, task):
    body = json.dumps({"task_id": task, "kind": kind}).encode()
    headers = {"Authorization": "Bearer " + os.environ["AJET_TOKEN"], "Content-Type": "application/json"}
    request = urllib.request.Request("http://127.0.0.1:8000/episodes", body, headers)
    return urllib.request.urlopen(request, timeout=60).status


tried("environment", lambda: dict(os.environ))
tried("input", lambda: write("/input/tasks.json"))
tried("image", lambda: write("/opt/ajet/site/swarm/environments/base.py"))
tried("host", lambda: write(TRACE))
tried("results", lambda: [os.makedirs("/workspace/results", exist_ok=True), write(RESULTS)])
tried("evaluation", lambda: begin("eval", "arith-1-1"))
tried("stop", lambda: urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8000/stop", b"{}"), timeout=60))


def reward(task, messages, outcome):
    while True:
        time.sleep(1000)
"""


CHEATING = """
from swarm.environments.builtin import Arith

HIDDEN = Arith().tasks("hidden")
HONEST = Arith.game
Arith.game = lambda self, task: HONEST(self, HIDDEN[hash(task.id) % len(HIDDEN)])


def reward(task, messages, outcome):
    return outcome["reward"]
"""


def planned(code: str) -> list[Any]:
    hypothesis = {
        "statement": "A denser reward learns sums faster.", "mechanism": "More of the plays tell something.",
        "variable": "reward", "control": "built-in", "treatment": "last-digit", "code": code, "direction": "increase",
        "predicted_low": 0.0, "predicted_high": 0.3, "probability": 0.6, "smallest_effect": 0.3,
        "falsifier": "It learns no faster.",
    }  # fmt: skip
    design = {"action": "design", "environment": "arith", "seeds_per_arm": 3, "steps": 3, "constants": []}
    return [
        says({"action": "propose", "hypotheses": [hypothesis]}),
        says(design),
        says({"action": "conclude", "reason": "The question is answered as far as the budget goes."}),
    ]


def studied(environment: dict[str, str], code: str) -> tuple[StudyState, dict[str, Any]]:
    with scripted_endpoint(planned(code)) as endpoint:
        settings = {**environment, "OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "sk-hush"}
        llm = ("--planner", "llm", "--planner-model", "scripted")
        options = (*llm, "--no-prefect", "--max-runs", "6", "--json", *LARGE)
        ended = ajet(settings, "research", TOPIC, *options)
    assert "sk-hush" not in ended.stdout + ended.stderr + Path(environment["AJET_HOME"], "ajet.db").read_text("latin-1")
    assert ended.returncode == 0, ended.stderr
    state = state_of(environment)
    assert state is not None
    assert (state.status, state.planner) == ("concluded", {"name": "llm", "model": "scripted"})
    return state, json.loads(ended.stdout)


def runs_of(state: StudyState, arm: str) -> list[RunState]:
    return [run for run in state.runs.values() if run.spec.arm == arm]


@pytest.mark.usefixtures("contained_home")
def test_a_generated_reward_is_trained_on_in_containers_and_reported(
    environment: dict[str, str], tmp_path: Path
) -> None:
    trace, contained = tmp_path / "trace", {**environment, "AJET_SANDBOX": "docker"}
    code = source(trace)
    state, result = studied(contained, code)
    assert not trace.exists()
    assert state.design is not None
    assert (state.design.code, result["runs"]) == ({"last-digit": code}, {"planned": 6, "collected": 6})
    assert result["verdicts"][0]["verdict"] in {"supported", "refuted", "equivalent", "inconclusive"}

    evidence = gather(state, Home(Path(contained["AJET_HOME"]), "").study(state.id))
    for run_id, found in evidence.runs.items():
        rewards = [value for _, value in found.curves["critic/rewards/mean"]]
        assert all((value >= OFFSET) == (state.runs[run_id].spec.arm == "reward=last-digit") for value in rewards)

    html, markdown = (Path(result["report"][kind]).read_text() for kind in ("html", "markdown"))
    assert code in markdown
    for text in (html, markdown):
        assert hashlib.sha256(code.encode()).hexdigest() in text
        assert "reward hacking" in text
        assert "containers only" in text
    assert "reward last-digit" in ajet(contained, "study", "show").stdout
    again = ajet(contained, "study", "report", "--build")
    assert again.returncode == 0, again.stderr


@pytest.fixture
def hostile(tmp_path: Path, engine: ContainerEngine, image: Image) -> Iterator[StudyController]:
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    sandboxing = Sandboxing(kind="docker", image=image.id, base=image.base, engine=engine.version)
    containers = DockerSandbox(home.containers, engine)
    planner = Coder("arith", hostile=f"TRACE = {str(tmp_path / 'trace')!r}\n{HOSTILE}", cheat=CHEATING)
    with closing(EventLog(home.database)) as log:
        asked = {"sandbox": sandboxing.model_dump(mode="json"), "episodes": EPISODES}
        create_study(log, STUDY, topic=TOPIC, planner="llm", model="scripted", **asked)
        yield StudyController(
            home=home, log=log, study=STUDY, planner=planner,
            sandbox=ProcessSandbox(home.sandboxes), isolation=Isolation(sandboxing, containers), pricing=PRICING,
            base=Job(steps=3, backend="fake", episodes_per_step=16), noise_bank=lambda log: QUIET,
        )  # fmt: skip
    for handle in ProcessSandbox(home.sandboxes).list():
        handle.stop(grace_s=1.0)
    containers.reap({})


def test_hostile_reward_code_fails_its_own_runs_and_the_study_still_reports(
    hostile: StudyController, tmp_path: Path
) -> None:
    state = drive(hostile, [], threading.Event(), poll_s=0.1)
    assert not (tmp_path / "trace").exists()
    assert state.status == "concluded"
    assert [run.status for run in runs_of(state, "reward=built-in")] == ["collected"] * 3
    assert all(len(run.attempts) == 1 for run in state.runs.values()), "what code did to its run is not tried again"
    for run in runs_of(state, "reward=hostile"):
        assert run.invalid is not None
        code, reason = run.invalid
        assert code == "generated_code_failed"
        assert "brought client_died about" in reason
        assert "within 10 s" in reason
        attempt = Home(tmp_path / "home", "").attempt(STUDY, run.run_id, len(run.attempts))
        said = AttemptFolder(attempt).log("client").read_text()
        assert "hostile environment: {" in said
        assert "'AJET_TOKEN': 'sandbox'" in said
        assert all(f"hostile {what}: {told}" in said for what, told in REFUSALS.items()), said
    for run in runs_of(state, "reward=cheat"):
        assert run.invalid is not None
        assert run.invalid[0] == "generated_code_failed"
        assert "brought foreign_training about" in run.invalid[1]
        assert "what its game says" in run.invalid[1]
    assert [verdict.verdict for verdict in state.verdicts] == ["invalid", "invalid"]
    assert state.report is not None
    markdown = Home(tmp_path / "home", "").study(STUDY) / state.report["markdown"]["path"]
    report = markdown.read_text().replace("\\", "")
    assert "3 runs of reward=hostile by generated_code_failed" in report
    assert "reward hostile names open" in report


REFUSALS = {
    "input": "OSError: [Errno 30] Read-only file system",
    "image": "OSError: [Errno 30] Read-only file system",
    "host": "FileNotFoundError",
    "evaluation": "HTTPError: HTTP Error 403",
    "stop": "HTTPError: HTTP Error 403",
}
