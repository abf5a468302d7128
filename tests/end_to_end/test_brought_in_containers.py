"""A study's runs, in containers, of an environment that brings a package and looks for the tasks that are hidden.

Its policy is the fake backend's, which says one of the numbers in reach: nothing here depends on what is learned.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from research.files import read_json
from research.installation.home import Home
from research.results.attempt_files import AttemptFolder, AttemptOutcome
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
from swarm.environments.brought import BroughtEnvironment
from tests.end_to_end.test_docker_study import Containers, home  # noqa: F401
from tests.end_to_end.test_study import (
    LARGE,
    environment,  # noqa: F401
    start,
    state_of,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUMERALS = '''
"""Roman numerals, by a package that ajet does not have; its code looks around wherever it is played."""
import json
import os
import sys
from pathlib import Path

import roman

from swarm.environments import Environment, Game, Outcome, Task, said, text_of


def looks_around():
    role = sys.argv[1]
    if role not in ("play", "evaluate"):
        return
    places = (path for top in ("/input", "/workspace", "/tmp", "/run") for path in Path(top).rglob("*"))
    found = any("hidden-{}-".format("number").encode() in path.read_bytes() for path in places if path.is_file())
    if found != (role == "evaluate"):  # a client that finds some, or an evaluator that has none, is not played
        os._exit(7)


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
'''
SPLITS = ("train", "search", "hidden")


def test_a_package_comes_along_and_no_client_finds_a_hidden_task(
    environment: dict[str, str],  # noqa: F811
    home: Home,  # noqa: F811
    engine: ContainerEngine,
    image: Image,
    tmp_path: Path,
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
    study.send_signal(signal.SIGINT)
    _, errors = study.communicate(timeout=400)
    assert study.returncode == 130, errors

    state = state_of(environment)
    assert state is not None
    made = state.settings["sandbox"]["image"]
    assert made != image.id, "it holds the package"
    assert engine.client.images.get(made).labels["ajet.parent"] == image.id
    run = next(run for run in state.runs.values() if run.status == "collected")
    (attempt,) = run.attempts
    assert attempt.sandbox["image"] == made, "where client and evaluators played, and each found what it was to find"
    folder = AttemptFolder(home.attempt(state.id, run.run_id, attempt.number))
    outcome = AttemptOutcome.model_validate(read_json(folder.outcome))
    assert (outcome.code, outcome.refused, set(outcome.evaluations)) == ("ok", {}, {"initial", "final"})
    (known,) = home.environments.glob("numerals@*")
    assert run.spec.environment == known.name
    assert BroughtEnvironment.open(known).manifest.hidden_apart
    assert Containers(engine, home).names() == set()
