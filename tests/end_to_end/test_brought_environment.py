"""A whole study of an environment that a user brought: it is locked, run and reported under the hash of what it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.installation.home import Home
from swarm.environments.custom import CustomEnvironment
from tests.end_to_end.factories import ajet, start, state_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEEN = ("--effect", "0.3", "--episodes", "128")
"""An effect and as many episodes as let three seeds see it past what six A/A runs may say of noise; 64 were too few."""
NEXT = '''
"""The number after a number."""
from swarm.environments import Environment, Game, Outcome, Task, said, text_of


class NextGame(Game):
    def __init__(self, number):
        self._number, self._said = number, ""

    def opening(self):
        return [{"role": "user", "content": f"above {self._number}, at most {self._number + 2}"}]

    def answer(self, message):
        self._said = text_of(message).strip()
        return []

    def outcome(self):
        right = self._said == str(self._number + 1)
        return Outcome(float(right), success=right, facts={"letters": len(self._said)})


class Next(Environment):
    name, title, measures = "next", "the next number", "the number after it is said"

    def tasks(self, split):
        first = {"train": 0, "search": 1, "hidden": 2}[split]
        return [Task(f"next-{number}", {"number": number}) for number in range(first, 96, 3)]

    def game(self, task):
        return NextGame(task.data["number"])

    def imitate(self, task, rng):
        number = task.data["number"]
        return [*NextGame(number).opening(), said(str(number + 1 if rng.random() < 0.4 else rng.randint(1, 40)))]
'''


def test_a_folder_is_studied_as_it_was_when_the_study_began(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "my_next"
    folder.mkdir()
    (folder / "environment.py").write_text(NEXT)
    asked = ("--vary", "group_size=4,8", "--set", "steps=3", "--env", str(folder), "--backend", "fake")
    controller = start(environment, "research", *asked, *SEEN, "--max-runs", "13", "--no-prefect", "--json")
    wait_until(controller, environment, lambda state: state.first_launch is not None)
    (folder / "environment.py").write_text("raise RuntimeError('changed')\n")
    out, errors = controller.communicate()
    assert controller.returncode == 0, errors

    state = state_of(environment)
    assert state is not None
    assert (state.status, len(state.verdicts)) == ("concluded", 1)
    assert {run.status for run in state.runs.values()} == {"collected"}
    home = Home.locate(environment)
    (place,) = [path for path in home.environments.iterdir() if path.is_dir()]
    known = CustomEnvironment.open(place).manifest
    assert state.design is not None
    (record,) = state.design.environments
    assert (record.name, record.title, record.reference) == (place.name, "the next number", str(folder))
    assert (record.code, record.data) == (known.hashes["code"], known.hashes["data"])
    assert record.tasks == {"train": 32, "search": 32, "hidden": 32}
    assert not record.hidden_apart
    assert {run.spec.environment for run in state.runs.values()} == {place.name}

    report = json.loads(out)["report"]
    for page in (Path(report["markdown"]).read_text(), Path(report["html"]).read_text()):
        assert place.name in page
        assert record.code in page
        assert record.data in page
        assert "hidden tasks by" in " ".join(page.split())
    proof = ajet(environment, "study", "verify")
    assert proof.returncode == 0, proof.stderr
