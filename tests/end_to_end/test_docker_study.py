"""Whole studies whose clients and evaluators are containers: one that is killed, and one of a brought environment."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from research.files import read_json
from research.installation.home import Home
from research.runs.files import AttemptFolder, AttemptOutcome
from sandboxes import DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
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
    controller = start(environment, "research", TOPIC, "--max-runs", "6", *LARGE, "--sandbox", "docker", "--no-prefect")
    eventually(lambda: bool(held.names("attempt=1")), controller)
    state = state_of(environment)
    assert state is not None
    assert state.settings["sandbox"]["image"] == image.id
    run = next(run for run in state.runs.values() if held.names(f"run_id={run.run_id}"))

    folder = AttemptFolder(home.attempt(state.id, run.run_id, 1))
    words = ["research.runs.attempt", str(folder.path)]
    (killed,) = [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-2:] == words]
    killed.send_signal(signal.SIGKILL)
    wait_until(controller, environment, lambda state: state.runs[run.run_id].attempts[0].status == "failed")
    assert held.names(f"run_id={run.run_id}", "attempt=1") == set(), "the event came after the containers' end"

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
    assert all(outcome.refused == {} and set(outcome.evaluations) == {"initial", "final"} for outcome in outcomes)
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
    assert made != image.id, "it holds the package"
    assert engine.client.images.get(made).labels["ajet.parent"] == image.id
    run = next(run for run in state.runs.values() if run.status == "collected")
    (attempt,) = run.attempts
    assert attempt.sandbox["image"] == made, "where client and evaluators played, and each found what it was to find"
    folder = AttemptFolder(contained_home.attempt(state.id, run.run_id, attempt.number))
    outcome = AttemptOutcome.model_validate(read_json(folder.outcome))
    assert (outcome.code, outcome.refused, set(outcome.evaluations)) == ("ok", {}, {"initial", "final"})
    (known,) = contained_home.environments.glob("numerals@*")
    assert run.spec.environment == known.name
    assert CustomEnvironment.open(known).manifest.hidden_apart
    assert Containers(engine, contained_home).names() == set()
