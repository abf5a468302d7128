"""One attempt in real processes: at a brought environment whose code looks for hidden tasks, and on a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.environments.catalog import read_reference
from research.environments.install import install_environment
from research.installation.base_job import VERL_PYTHON, variables_of
from research.runs.collect import collect
from research.runs.files import AttemptSpec
from research.runs.workers import TRANSCRIPTS
from sandboxes import Exit
from studies.records.runs import Conditions
from swarm.environments import registry
from swarm.job import Job
from tests.research.factories import make_home, with_run, with_schedule
from tests.research.runs.trials import DEADLINE_S, EPISODES, PLAYS, Trial

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
            looks_around()
        return Look()
"""


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(tmp_path)
    yield trial
    trial.end()


@pytest.fixture
def order(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptSpec:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
    folder = tmp_path / "looking"
    folder.mkdir()
    (folder / "environment.py").write_text(LOOKING)
    (folder / "tasks.json").write_text(" ".join(map(str, range(16))))
    home = make_home(tmp_path / "home")
    brought = install_environment(read_reference(str(folder)), home, lambda _: None)
    assert brought.manifest.hidden_apart
    order = with_run(trial.order(steps=4, environment=brought.name), environment=brought.name)
    return with_schedule(order, 1, PLAYS).model_copy(update={"environments": str(home.environments)})


def test_an_attempt_is_evaluated_beside_a_client_that_is_handed_no_hidden_task_and_finishes_and_is_collected(
    trial: Trial, order: AttemptSpec, tmp_path: Path
) -> None:
    assert order.evaluate_after == (1, 2, 3)
    handle = trial.launch(order)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), handle.logs() + trial.outcome().reason
    outcome = trial.outcome()
    assert (outcome.status, outcome.code) == ("finished", "ok")
    assert set(outcome.stages) == {"boot", "initial", "train", "final", "stop"}
    assert (len(outcome.files), trial.pids("-m")) == (4, [])
    assert not trial.folder.worker_dirs.exists()  # nothing that was handed out is left
    evidence = collect(trial.folder, order, tmp_path / "study", said=outcome, neighbours=1)
    assert evidence.payload["snapshot"]["steps"] == 4
    assert {found.key: found.n for found in evidence.measurements}["hidden/area"] == 2 * EPISODES + 3 * PLAYS
    collected = json.loads((tmp_path / "study" / evidence.payload["evaluation"]["path"]).read_text())
    assert [part["policy_version"] for part in collected["during"]] == [1, 2, 3]
    assert all(episode["tokens"] > 0 for episode in collected["final"]["episodes"])
    before, after = ([play["task_id"] for play in collected[part]["transcripts"]] for part in ("initial", "final"))
    assert (before, len(before), evidence.payload["alarms"]) == (after, TRANSCRIPTS, [])
    unsaid = collect(trial.folder, order, tmp_path / "unsaid")
    assert unsaid.measurements == evidence.measurements  # whether or not the attempt's outcome is there
    conditions = Conditions.model_validate(evidence.payload["conditions"])
    assert (conditions.steps, conditions.episodes, conditions.evaluation_episodes) == (4, 32, EPISODES)
    assert (conditions.tokens or 0) > 0
    assert 0 < (conditions.wall_s or 0) < DEADLINE_S
    assert (conditions.decoding or "").startswith("temperature 1, at most 16 tokens")
    assert (conditions.checkpoint, conditions.overlap, conditions.judge_errors) == ("last", 0, 0)
    assert (conditions.image, conditions.neighbours, conditions.stopped_by) == ("process", 1, None)
    unknown = {name for name, value in conditions if value is None}
    fake = {"initial_policy", "template", "optimiser_steps", "probs_diff"}  # it loads and compares nothing
    assert unknown == {*fake, "stopped_by", "stillness", "untrained"}


SEVERAL_BOOTS_S = 400.0


@pytest.mark.timeout(SEVERAL_BOOTS_S)
def test_an_attempt_on_a_cluster_is_trained_measured_and_collected(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = os.environ.get("AJET_TEST_VERL_PYTHON")
    if not named:
        pytest.skip("AJET_TEST_VERL_PYTHON names no environment with verl and vLLM: `make test-verl` makes one")
    monkeypatch.setenv(VERL_PYTHON, named)
    monkeypatch.setattr(trial, "variables", lambda: variables_of("verl"))
    model = {"kind": "tiny", "hidden_size": 32, "layers": 1, "warm_start_steps": 20}
    fields = {"steps": 2, "episodes_per_step": 8, "group_size": 4, "seed": 3, "model": model}
    job = Job.model_validate({"backend": "verl", **fields})
    order = with_run(trial.order(steps=2), job=job.model_dump(mode="json", exclude={"tracking"}))
    handle = trial.launch(order)
    assert handle.wait(SEVERAL_BOOTS_S) == Exit("finished", 0), handle.logs()
    found = collect(trial.folder, order, tmp_path / "study", said=trial.outcome())
    assert found.payload["snapshot"]["steps"] == 2
    assert {measurement.n for measurement in found.measurements} == {EPISODES}
    conditions = found.payload["conditions"]
    assert (conditions["checkpoint"], len(conditions["initial_policy"])) == ("last", 64)
    assert (found.payload["alarms"], trial.pids("-m")) == ([], [])
