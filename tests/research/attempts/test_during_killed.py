"""Attempts that end in the middle of an evaluation during training, whoever is killed, and the ones that go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.environments.bring import bring
from research.environments.reference import read_reference
from research.installation.home import Home
from research.results.attempt_files import AttemptSpec
from research.results.collect import collect
from research.results.during import read_during
from sandboxes import Exit
from studies import RunState
from swarm.environments import get_environment, registry
from swarm.environments.playing.evaluate import rounds
from tests.research.attempts.test_attempt import DEADLINE_S, Trial, eventually
from tests.research.attempts.test_during import PLAYS, evaluated_often
from tests.research.attempts.test_resumption import Tries

pytestmark = pytest.mark.slow

STUCK = """
import itertools, sys, time
from pathlib import Path
from swarm.environments import Environment, Game, Outcome, Task

PLACE = Path(PLACE)

def first(path):
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    except FileNotFoundError:  # the place is gone: nobody sticks any more
        pass
    return True

class Play(Game):
    def opening(self): return [{"role": "user", "content": "?"}]
    def answer(self, message): return []
    def outcome(self):
        if "--during" in sys.argv and PLACE.exists():
            number = next(number for number in itertools.count() if first(PLACE / f"played-{number}"))
            if number >= 11:  # from the fourth play of the second evaluation on; nobody of this process goes on
                (PLACE / "reached").touch()
                while PLACE.exists():
                    time.sleep(0.01)
        return Outcome(1.0, success=True)

class Stuck(Environment):
    name, title, measures = "stuck", "sticking", "it is always solved"
    def tasks(self, split): return [Task(f"{split}-{n}", {"n": f"{split}-{n}"}) for n in range(16)]
    def game(self, task): return Play()
"""


class StuckTrial(Trial):
    """An attempt at a run of the environment whose evaluator sticks."""

    environments, name = "", ""

    def order(self, *, steps: int) -> AttemptSpec:
        order = super().order(steps=steps)
        spec = order.spec.model_copy(
            update={"environment": self.name, "job": {**order.spec.job, "environment": self.name}}
        )
        return order.model_copy(update={"spec": spec, "run_id": spec.run_id, "environments": self.environments})


class StuckTries(Tries):
    """Attempts at one run of it."""

    def trial(self, number: int) -> Trial:
        return self.trials.setdefault(number, StuckTrial(self._path / f"a{number}"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Bring the environment; return the folder while which is there its evaluator sticks."""
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
    folder, place = tmp_path / "stuck", tmp_path / "place"
    folder.mkdir()
    place.mkdir()
    (folder / "environment.py").write_text(STUCK.replace("(PLACE)", f"({str(place)!r})"))
    home = Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()
    brought = bring(read_reference(str(folder)), home, lambda _: None)
    monkeypatch.setattr(StuckTrial, "environments", str(home.environments))
    monkeypatch.setattr(StuckTrial, "name", brought.name)
    return place


@pytest.fixture
def tries(tmp_path: Path, place: Path) -> Iterator[Tries]:
    tries = StuckTries(tmp_path, steps=8, checkpoint_every=4)
    tries.order = evaluated_often(tries.order, every=16, checkpoint_every=4)
    tries.run = RunState(tries.order.run_id, tries.order.spec)
    yield tries
    for trial in tries.trials.values():
        for handle in trial.sandbox.list():
            handle.stop(grace_s=1.0)


def go_on(place: Path) -> None:
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


@pytest.mark.parametrize(("word", "code"), [("--during", "evaluator_died"), ("swarm.server", "server_died")])
def test_whoever_is_killed_in_the_middle_of_an_evaluation_the_next_attempt_keeps_those_before_and_plays_it_whole(
    tries: Tries, tmp_path: Path, place: Path, word: str, code: str
) -> None:
    assert tries.order.evaluate_after == (2, 4, 6)
    tries.launch()
    eventually((place / "reached").exists, "the second evaluation is in its middle")
    tries.kill(1, word)
    tries.over(1)
    assert tries.trial(1).outcome().code == code
    assert tries.trial(1).pids("-m") == [], "nothing is left running"
    tries.ended(code)
    (first,) = read_during(tries.folder(1).evaluation("during"))
    assert first.policy_version == 2
    go_on(place)

    order = tries.launch()
    assert order.during_sha256
    outcome = tries.outcome(2)
    assert (outcome.status, outcome.resumed_at) == ("finished", 4), outcome.reason
    evidence = collect(tries.folder(2), order, tmp_path / "study", said=outcome)
    during = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())["during"]
    assert [part["policy_version"] for part in during] == [2, 4, 6]
    assert during[0] == first.model_dump(mode="json", exclude_defaults=True)
    tasks = get_environment(order.spec.environment).tasks("hidden")
    for part in during:
        (chosen,) = rounds(tasks, PLAYS, order.spec.seed + part["policy_version"])
        assert [episode["task_id"] for episode in part["episodes"]] == [task.id for task in chosen]


def test_an_evaluator_that_hangs_ends_its_attempt_by_its_name_long_before_the_attempts_time_is_over(
    tries: Tries, place: Path
) -> None:
    order = tries.order.model_copy(update={"play_s": 5.0})
    assert tries.trial(1).launch_order(order).wait(DEADLINE_S) == Exit("error", 1)
    outcome = tries.trial(1).outcome()
    assert (place / "reached").exists()
    assert outcome.code == "evaluator_timeout"
    said = r"training waits at step 4 for \d evaluation episodes, and none ended for 10 s"
    assert re.fullmatch(said, outcome.reason), outcome.reason
    assert tries.trial(1).pids("-m") == []
