"""What processes are handed of a brought environment: a client no hidden task, wherever its code looks first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.environments.bring import bring
from research.environments.reference import read_reference
from research.installation.home import Home
from research.results.attempt_files import AttemptSpec
from research.results.collect import collect
from sandboxes import Exit
from swarm.environments import registry
from tests.research.attempts.test_attempt import DEADLINE_S, Trial, untracked
from tests.research.attempts.test_during import evaluated_often

pytestmark = pytest.mark.slow

LOOKING = """
import os, sys
from pathlib import Path
from swarm.environments import Environment, Game, Outcome, Task

def looks_around():
    places = [Path.cwd(), *Path(__file__).parents[:3], *map(Path, sys.argv)]
    places += [place.parent for place in places if place.is_file()]
    files = (path for place in places if place.is_dir() for path in place.rglob("*") if path.is_file())
    found = any("hidden-{}-".format("number").encode() in path.read_bytes() for path in files)
    if found != (sys.argv[1] == "evaluate"):
        os._exit(7)

class Look(Game):
    def opening(self): return [{"role": "user", "content": "?"}]
    def answer(self, message): return []
    def outcome(self): return Outcome(0.0, False)

class Looking(Environment):
    name, title, measures = "looking", "looking around", "it is never solved"
    def tasks(self, split):
        numbers = (Path(__file__).parent / "tasks.json").read_text().split()
        return [Task(f"{split}-number-{n}", {"number": f"{split}-{n}"}) for n in numbers]
    def game(self, task):
        if sys.argv[1] in ("play", "evaluate"):
            DOES
        return Look()
"""


class LookingTrial(Trial):
    """An attempt whose environment looks for hidden tasks in all that it is told of."""

    def __init__(self, path: Path, home: Home, name: str) -> None:
        super().__init__(path)
        self._environments, self._name = home.environments, name

    def order(self, *, steps: int) -> AttemptSpec:
        order = super().order(steps=steps)
        job = {**order.spec.job, "environment": self._name}
        spec = order.spec.model_copy(update={"environment": self._name, "job": job})
        more = {"spec": spec, "run_id": spec.run_id, "environments": str(self._environments)}
        return order.model_copy(update=more)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[LookingTrial]:
    """An attempt at a run of the environment, which looks around, or does what a test says."""
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
    folder = tmp_path / "looking"
    folder.mkdir()
    (folder / "environment.py").write_text(LOOKING.replace("DOES", getattr(request, "param", "looks_around()")))
    (folder / "tasks.json").write_text(" ".join(map(str, range(16))))
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    brought = bring(read_reference(str(folder)), home, lambda _: None)
    assert brought.manifest.hidden_apart
    trial = LookingTrial(tmp_path, home, brought.name)
    yield trial
    for handle in trial.sandbox.list():
        handle.stop(grace_s=1.0)


def test_a_client_is_handed_no_hidden_task_and_finds_none_while_another_process_evaluates_on_them(
    trial: LookingTrial, tmp_path: Path
) -> None:
    order = evaluated_often(trial.order(steps=4), every=8)
    assert order.evaluate_after == (1, 2, 3)
    handle = trial.launch_order(order)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), trial.outcome().reason
    found = collect(trial.folder, order, tmp_path / "study", said=trial.outcome())
    assert "hidden/area" in {measured.key for measured in found.measurements}
    assert trial.outcome().code == "ok"
    assert not trial.folder.all_given.exists(), "nothing that was handed out is left"


@pytest.mark.parametrize(
    ("trial", "code", "said"),
    [
        ("os._exit(7)", "evaluator_died", "os._exit, or a library's exit): exit code 7; it last said: nothing"),
        ("os._exit(0)", "evaluator_failed", "to write evaluation-initial.json; found none (its environment's code"),
        ("os.abort()", "evaluator_died", "or os._exit): killed by signal 6 (SIGABRT: a library of C gave up); it last"),
    ],
    indirect=["trial"],
)  # fmt: skip
def test_code_that_ends_its_process_is_told_as_that(trial: LookingTrial, code: str, said: str) -> None:
    order = trial.order(steps=2)
    registry.look_in(Path(order.environments))
    outcome = asyncio.run(untracked(trial, order).run())
    assert outcome.code == code
    assert said in outcome.reason
    assert "its environment's code ended its process while it played" in outcome.reason
