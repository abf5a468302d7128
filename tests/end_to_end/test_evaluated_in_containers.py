"""Attempts in containers that are evaluated during training, by a brought environment."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from research.environments.install import install_environment
from research.environments.reference import read_reference
from research.installation.home import Home
from research.runs.collect import CollectedEvidence, collect
from research.runs.files import AttemptSpec, read_evaluations
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
from studies import RunState
from swarm.environments import registry
from tests.end_to_end.factories import LOOKS_AROUND
from tests.research.factories import with_run, with_schedule
from tests.research.runs.test_containers import ContainedTrial
from tests.research.runs.trials import PLAYS, Trial, Tries, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COUNTING = (
    LOOKS_AROUND
    + """

class Count(Game):
    def __init__(self, number):
        self._number, self._said = number, ""

    def opening(self):
        return [{"role": "user", "content": f"count to {self._number}"}]

    def answer(self, message):
        self._said = text_of(message)
        return []

    def outcome(self):
        right = (self._number + sum(map(ord, self._said))) % 2 > 0
        return Outcome(float(right), success=right)


class Counting(Environment):
    name, title, measures = "counting", "counting", "the count is right"

    def tasks(self, split):
        lines = (Path(__file__).parent / "tasks.jsonl").read_text().splitlines()
        tasks = [json.loads(line) for line in lines]
        return [Task(f"{split}-number-{t['number']}", t) for t in tasks if t["split"] == split]

    def game(self, task):
        looks_around()
        return Count(task.data["number"])
"""
)
SPLITS = ("train", "search", "hidden")


class CountingTrial(ContainedTrial):
    brought: tuple[str, str] = ("", "")

    def order(self, *, steps: int, **fields: Any) -> AttemptSpec:
        name, environments = self.brought
        order = super().order(steps=steps, environment=name, **fields)
        return with_run(order, environment=name).model_copy(update={"environments": environments})


class ContainedTries(Tries):
    def __init__(self, path: Path, trial: type[CountingTrial], engine: ContainerEngine, image: Image) -> None:
        self._made = lambda folder: trial(folder, engine, image)
        super().__init__(path, steps=12, checkpoint_every=4)
        self.order = with_schedule(self.order, 3, PLAYS)
        self.run = RunState(self.order.run_id, self.order.spec)

    def trial(self, number: int) -> Trial:
        return self.trials.setdefault(number, self._made(self._path / f"a{number}"))


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[CountingTrial]:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
    folder = tmp_path / "counting"
    folder.mkdir()
    (folder / "environment.py").write_text(COUNTING)
    lines = (json.dumps({"number": number, "split": SPLITS[number % 3]}) for number in range(1, 97))
    (folder / "tasks.jsonl").write_text("\n".join(lines))
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    brought = install_environment(read_reference(str(folder)), home, lambda _: None)
    assert brought.manifest.hidden_apart
    monkeypatch.setattr(CountingTrial, "brought", (brought.name, str(home.environments)))
    return CountingTrial


def stored(study: Path, evidence: CollectedEvidence) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((study / evidence.evaluation["path"]).read_text())
    return found


def test_a_killed_attempt_in_containers_is_gone_on_from_with_the_evaluations_it_had(
    tmp_path: Path, counting: type[CountingTrial], engine: ContainerEngine, image: Image
) -> None:
    tries = ContainedTries(tmp_path, counting, engine, image)
    try:
        tries.launch()
        eventually(lambda: "event=step step=5/" in tries.log(1), "step 5 is learned")
        (pid,) = tries.trial(1).pids("research.runs.attempt")
        os.kill(pid, signal.SIGKILL)
        tries.over(1)
        tries.ended("lost")
        first = read_evaluations(tries.folder(1).evaluation("during"))
        assert [each.policy_version for each in first][:1] == [3]
        order = tries.launch()
        assert (order.resumes, bool(order.during_sha256)) == (1, True)
        outcome = tries.outcome(2)
        assert (outcome.status, outcome.reason) == ("finished", "")
        assert (outcome.resumed_at or 0) >= 5
        evidence = collect(tries.folder(2), order, tmp_path / "study", said=outcome)
        during = stored(tmp_path / "study", evidence)["during"]
        assert [part["policy_version"] for part in during] == list(order.evaluate_after)
        assert during[0] == first[0].model_dump(mode="json", exclude_defaults=True)
    finally:
        for trial in tries.trials.values():
            assert isinstance(trial, ContainedTrial)
            trial.end()
            assert trial.running() == {}
