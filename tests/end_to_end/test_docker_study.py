"""Whole studies in containers: one that is killed, one of a brought environment, one with a generated reward."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from research.files import read_json
from research.installation.home import Home
from research.runs.files import AttemptFolder, AttemptOutcome
from sandboxes import DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.build import Image
from studies import StudyState
from studies.report.evidence import gather
from swarm.environments.custom import CustomEnvironment
from tests.end_to_end.factories import (
    LARGE,
    LOOKS_AROUND,
    TOPIC,
    ajet,
    check_whole,
    eventually,
    interrupt,
    start,
    state_of,
    wait_until,
)
from tests.research.planners.scripted_endpoint import says, scripted_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Containers:
    def __init__(self, found: ContainerEngine, home: Home) -> None:
        self._engine = found
        self._installation = DockerSandbox(home.containers, found).installation

    def names(self, *labels: str) -> set[str]:
        wanted = {"label": [f"ajet.installation={self._installation}", *(f"ajet.label.{label}" for label in labels)]}
        return {item["Names"][0] for item in self._engine.client.api.containers(all=True, filters=wanted)}


def test_a_study_in_containers_survives_its_attempt_and_its_controller_and_leaves_no_container(
    environment: dict[str, str], contained_home: Home, engine: ContainerEngine, image: Image
) -> None:
    home = contained_home
    held = Containers(engine, home)
    controller = start(environment, "research", TOPIC, "--max-runs", "7", *LARGE, "--sandbox", "docker", "--no-prefect")
    eventually(lambda: bool(held.names("attempt=1")), controller)
    state = state_of(environment)
    assert state is not None
    assert state.settings["sandbox"]["image"] == image.id
    run = next(run for run in state.runs.values() if held.names(f"run_id={run.run_id}"))

    folder = AttemptFolder(home.attempt(state.id, run.run_id, 1))
    words = ["research.runs.attempt", str(folder.path)]
    found = [p for p in psutil.process_iter(["cmdline"]) if [*filter(None, p.info["cmdline"] or [])][-2:] == words]
    (killed,) = [p for p in found if os.getpgid(p.pid) == p.pid]  # of an attempt and the forks that it set aside
    killed.send_signal(signal.SIGKILL)
    wait_until(controller, environment, lambda state: state.runs[run.run_id].attempts[0].status == "failed")
    assert held.names(f"run_id={run.run_id}", "attempt=1") == set()  # the event came after the containers' end

    eventually(lambda: bool(held.names(f"run_id={run.run_id}", "attempt=2")), controller)
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()

    gone = {**environment, "DOCKER_HOST": "unix:///nobody/listens/here.sock"}
    refused = ajet(gone, "study", "resume", "--no-prefect")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "install Docker" in refused.stderr

    resumed = ajet(environment, "study", "resume", "--no-prefect", "--json")
    assert resumed.returncode == 0, resumed.stderr
    final = check_whole(state_of(environment))
    assert held.names() == set()
    assert all(attempt.sandbox["image"] == image.id for run in final.runs.values() for attempt in run.attempts)
    finished = [AttemptFolder(home.attempt(final.id, r.run_id, r.attempts[-1].number)) for r in final.runs.values()]
    outcomes = [AttemptOutcome.model_validate(read_json(folder.outcome)) for folder in finished]
    assert all(outcome.refused == {} for outcome in outcomes)
    report = Path(json.loads(resumed.stdout)["report"]["markdown"]).read_text()
    assert f"containers of image {image.id}" in report


NUMERALS = (
    f'"Roman numerals, by a package that ajet does not have."\nimport roman\n{LOOKS_AROUND}'
    + """

class NumeralGame(Game):
    def __init__(self, number):
        self._number, self._said = number, ""

    def opening(self):
        return [{"role": "user", "content": f"which of {self._number - 1} to {self._number + 1} is {self._number}?"}]

    def answer(self, message):
        self._said = text_of(message).strip()
        return []

    def outcome(self):
        right = self._said.isdigit() and roman.toRoman(int(self._said) + 1) == roman.toRoman(self._number + 1)
        return Outcome(float(right), success=right)


class Numerals(Environment):
    name, title, measures = "numerals", "Roman numerals", "the numeral is right"

    def tasks(self, split):
        lines = (Path(__file__).parent / "tasks.jsonl").read_text().splitlines()
        tasks = [json.loads(line) for line in lines]
        return [Task(f"{split}-number-{t['number']}", t) for t in tasks if t["split"] == split]

    def game(self, task):
        looks_around()
        return NumeralGame(task.data["number"])

    def imitate(self, task, rng):
        number = task.data["number"]
        right = number if rng.random() < 0.4 else rng.randint(1, 96)
        return [*NumeralGame(number).opening(), said(str(right))]
"""
)
SPLITS = ("train", "search", "hidden")


def test_a_package_comes_along_and_no_client_finds_a_hidden_task(
    environment: dict[str, str], contained_home: Home, engine: ContainerEngine, image: Image, tmp_path: Path
) -> None:
    mine = tmp_path / "numerals"
    mine.mkdir()
    (mine / "environment.py").write_text(NUMERALS)
    (mine / "requirements.txt").write_text("roman==5.2\n")
    lines = (json.dumps({"number": number, "split": SPLITS[number % 3]}) for number in range(1, 97))
    (mine / "tasks.jsonl").write_text("\n".join(lines))

    asked = ("--vary", "group_size=4,8", "--set", "steps=3", "--env", str(mine), "--max-runs", "13")
    study = start(environment, "research", *asked, *LARGE, "--backend", "fake", "--sandbox", "docker", "--no-prefect")
    wait_until(study, environment, lambda state: any(run.status == "collected" for run in state.runs.values()))
    assert "ajet study resume" in interrupt(study)

    state = state_of(environment)
    assert state is not None
    assert state.status == "stopped"
    assert not any(run.active for run in state.runs.values())
    made = state.settings["sandbox"]["image"]
    assert made != image.id  # it holds the package
    assert engine.client.images.get(made).labels["ajet.parent"] == image.id
    run = next(run for run in state.runs.values() if run.status == "collected")
    (attempt,) = run.attempts
    assert attempt.sandbox["image"] == made  # where client and evaluators played, and each found what it was to find
    folder = AttemptFolder(contained_home.attempt(state.id, run.run_id, attempt.number))
    outcome = AttemptOutcome.model_validate(read_json(folder.outcome))
    assert (outcome.code, outcome.refused) == ("ok", {})
    (known,) = contained_home.environments.glob("numerals@*")
    assert run.spec.environment == known.name
    assert CustomEnvironment.open(known).manifest.hidden_apart
    assert Containers(engine, contained_home).names() == set()


REWARD_TOPIC = "Does a dense reward function help with sums?"
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
        options = (*llm, "--no-prefect", "--max-runs", "7", "--json", *LARGE)
        ended = ajet(settings, "research", REWARD_TOPIC, *options)
    assert "sk-hush" not in ended.stdout + ended.stderr + Path(environment["AJET_HOME"], "ajet.db").read_text("latin-1")
    assert ended.returncode == 0, ended.stderr
    state = state_of(environment)
    assert state is not None
    assert (state.status, state.planner) == ("concluded", {"name": "llm", "model": "scripted"})
    return state, json.loads(ended.stdout)


@pytest.mark.usefixtures("contained_home")
def test_a_generated_reward_is_trained_on_in_containers_and_reported(
    environment: dict[str, str], tmp_path: Path
) -> None:
    trace, contained = tmp_path / "trace", {**environment, "AJET_SANDBOX": "docker"}
    code = source(trace)
    state, result = studied(contained, code)
    assert not trace.exists()
    assert state.design is not None
    assert (state.design.code, result["runs"]) == ({"last-digit": code}, {"planned": 7, "collected": 7})
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
    assert "code last-digit" in ajet(contained, "study", "show").stdout
    again = ajet(contained, "study", "report", "--build")
    assert again.returncode == 0, again.stderr
