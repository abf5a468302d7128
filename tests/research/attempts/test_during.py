"""Attempts whose policies are evaluated during training: what is written, what counts, and what a retry keeps."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from research.attempts.takeover import beginning, take_over
from research.results.attempt_files import AttemptSpec
from research.results.collect import CollectError, collect
from research.results.during import read_during
from sandboxes import Exit
from studies import RunState
from studies.metrics.kinds.area import Area
from studies.metrics.kinds.base import Asked
from studies.metrics.kinds.transfer import Transfer
from studies.records.design import Metric, Schedule
from studies.records.design_parts import Watchdog
from studies.records.run_specs import evaluated
from swarm.environments import get_environment
from swarm.environments.playing.evaluate import rounds
from swarm.job import Job, TinyModel
from tests.research.attempts.test_attempt import DEADLINE_S, EPISODES, Trial, eventually
from tests.research.attempts.test_resumption import Tries

PLAYS = 8


def metric(every: int, horizon: int) -> Metric:
    return Area().define(Asked("it is solved", EPISODES, horizon, schedule=Schedule(every=every, episodes=PLAYS)))


def evaluated_often(order: AttemptSpec, every: int, **fields: Any) -> AttemptSpec:
    """Return an order whose policy is evaluated every so many training episodes."""
    job = {**Job.recorded({**order.spec.job, **fields}).model_dump(mode="json", exclude={"tracking"})}
    judged = metric(every, job["steps"] * job["episodes_per_step"])
    spec = order.spec.model_copy(update={"metric": judged, "job": evaluated(job, judged)})
    return order.model_copy(update={"spec": spec, "run_id": spec.run_id})


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(tmp_path)
    yield trial
    for handle in trial.sandbox.list():
        handle.stop(grace_s=1.0)


def test_an_attempt_is_evaluated_during_training_and_measured_by_it(trial: Trial, tmp_path: Path) -> None:
    order = evaluated_often(trial.order(steps=6), every=16)
    assert order.evaluate_after == (2, 4)
    handle = trial.launch_order(order)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), handle.logs() + trial.outcome().reason
    outcome = trial.outcome()
    assert set(outcome.files) >= {"evaluation-initial.json", "evaluation-during.json", "evaluation-final.json"}
    evidence = collect(trial.folder, order, tmp_path / "study", said=outcome)
    stored = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())
    assert [part["policy_version"] for part in stored["during"]] == [2, 4]
    tasks = get_environment("guess").tasks("hidden")
    for part in stored["during"]:
        (chosen,) = rounds(tasks, PLAYS, order.spec.seed + part["policy_version"])
        assert {episode["task_id"] for episode in part["episodes"]} == {task.id for task in chosen}
    shares = [
        sum(episode["success"] for episode in part["episodes"]) / len(part["episodes"])
        for part in (stored["initial"], *stored["during"], stored["final"])
    ]
    area = sum((before + after) / 2 for before, after in pairwise(shares)) / 3
    found = {measured.key: measured for measured in evidence.measurements}
    assert found["hidden/area"].value == pytest.approx(area)
    assert found["hidden/area"].n == 2 * EPISODES + 2 * PLAYS
    assert evidence.conditions.overlap == 0
    assert not trial.folder.all_given.exists()


def test_a_training_that_a_rule_stops_is_measured_by_what_was_evaluated_up_to_its_end(
    trial: Trial, tmp_path: Path
) -> None:
    model = TinyModel(hidden_size=16, layers=1, warm_start_steps=20)
    fields = {"backend": "local", "model": model.model_dump(), "epochs": 2, "learning_rate": 0.01}
    order = evaluated_often(trial.order(steps=400), every=16, **fields)
    order = order.model_copy(update={"watchdog": Watchdog(kl=1e-12, patience=6)})
    handle = trial.launch_order(order)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), handle.logs()
    outcome = trial.outcome()
    assert outcome.stopped_by == "kl_blow_up"
    evidence = collect(trial.folder, order, tmp_path / "study", said=outcome)
    steps = evidence.snapshot["steps"]
    assert 6 <= steps < 400
    stored = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())
    assert [part["policy_version"] for part in stored["during"]] == list(range(2, steps, 2))
    assert stored["final"]["policy_version"] == steps
    assert "hidden/area" in {measured.key for measured in evidence.measurements}


@pytest.mark.parametrize(("word", "code"), [("--during", "evaluator_died"), ("swarm.server", "server_died")])
def test_an_evaluator_that_dies_during_training_fails_the_attempt_by_its_name(
    trial: Trial, word: str, code: str
) -> None:
    handle = trial.launch_order(evaluated_often(trial.order(steps=1000), every=80))
    eventually(lambda: trial.at("train", step=1), "training has begun")
    (pid,) = trial.pids(word)
    os.kill(pid, signal.SIGKILL)
    assert handle.wait(DEADLINE_S) == Exit("error", 1)
    assert (trial.outcome().code, trial.pids("-m")) == (code, [])


@pytest.fixture
def tries(tmp_path: Path) -> Iterator[Tries]:
    tries = Tries(tmp_path, checkpoint_every=4)
    tries.order = evaluated_often(tries.order, every=24, checkpoint_every=4)
    tries.run = RunState(tries.order.run_id, tries.order.spec)
    yield tries
    for trial in tries.trials.values():
        for handle in trial.sandbox.list():
            handle.stop(grace_s=1.0)


@pytest.mark.parametrize(("word", "code"), [("swarm.server", "server_died"), ("research.attempts.attempt", "lost")])
def test_an_attempt_that_goes_on_keeps_the_evaluations_before_its_step_and_plays_the_others_again(
    tries: Tries, tmp_path: Path, word: str, code: str
) -> None:
    assert tries.order.evaluate_after == (3, 6, 9, 12, 15, 18, 21)
    tries.launch()
    eventually(lambda: "event=step step=8/" in tries.log(1), "step 8 is learned")
    tries.kill(1, word)
    tries.over(1)
    tries.ended(code)
    first = read_during(tries.folder(1).evaluation("during"))
    assert [each.policy_version for each in first][:2] == [3, 6]

    order = tries.launch()
    assert order.during_sha256
    outcome = tries.outcome(2)
    assert outcome.status == "finished", outcome.reason
    assert outcome.resumed_at is not None
    assert outcome.resumed_at >= 8
    evidence = collect(tries.folder(2), order, tmp_path / "study", said=outcome)
    stored = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())
    assert [part["policy_version"] for part in stored["during"]] == list(order.evaluate_after)
    for part, kept in zip(stored["during"], first, strict=False):
        if kept.policy_version < outcome.resumed_at:
            assert part == kept.model_dump(mode="json", exclude_defaults=True)


def test_evaluations_that_were_kept_and_changed_are_not_gone_on_with(tries: Tries) -> None:
    tries.launch()
    eventually(lambda: "event=step step=8/" in tries.log(1), "step 8 is learned")
    tries.kill(1, "swarm.server")
    tries.outcome(1)
    tries.ended("server_died")
    begins = beginning(tries.run, tries.folder)
    take_over(tries.folder(1), tries.folder(2))
    path = tries.folder(2).kept
    path.write_text(path.read_text().replace("true", "false"))
    order = tries.order.model_copy(
        update={
            "attempt": 2, "resumes": begins.resumes, "initial_sha256": begins.initial_sha256,
            "during_sha256": begins.during_sha256,
        }
    )  # fmt: skip
    assert tries.trial(2).launch_order(order).wait(DEADLINE_S) == Exit("error", 1)
    assert tries.trial(2).outcome().code == "evaluation_unreadable"


def test_a_run_whose_evaluations_were_lost_begins_anew(tries: Tries) -> None:
    """As where a container that made them was killed, and so handed none over."""
    tries.launch()
    eventually(lambda: tries.trial(1).at("train", step=8), "step 8 is seen")
    tries.kill(1, "research.attempts.attempt")
    tries.over(1)
    tries.ended("lost")
    assert beginning(tries.run, tries.folder).resumes == 1
    path = tries.folder(1).evaluation("during")
    whole = path.read_bytes()
    path.unlink()
    begins = beginning(tries.run, tries.folder)
    assert (begins.resumes, begins.why) == (None, "its evaluations during training were lost with what made them")
    path.write_text('{"evaluations": [3]}')
    assert beginning(tries.run, tries.folder).resumes is None
    path.write_bytes(whole)
    assert beginning(tries.run, tries.folder).during_sha256


def test_the_last_policy_plays_another_environment_where_success_there_is_asked_for(
    trial: Trial, tmp_path: Path
) -> None:
    order = trial.order(steps=2)
    metric = Transfer().define(Asked("it is solved", EPISODES, 16, of="arith"))
    spec = order.spec.model_copy(update={"metric": metric})
    order = order.model_copy(update={"spec": spec, "run_id": spec.run_id})
    handle = trial.launch_order(order)
    assert handle.wait(DEADLINE_S) == Exit("finished", 0), handle.logs()
    evidence = collect(trial.folder, order, tmp_path / "study", said=trial.outcome())
    stored = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())
    assert (stored["other"]["environment"], stored["other"]["policy_version"]) == ("arith", 2)
    assert all(episode["tokens"] > 0 for episode in stored["final"]["episodes"])
    solved = sum(episode["success"] for episode in stored["other"]["episodes"])
    (measured,) = (found for found in evidence.measurements if found.key == "hidden/success_on_arith")
    assert (measured.value, measured.n) == (solved / EPISODES, EPISODES)
    trial.folder.evaluation("other").unlink()
    with pytest.raises(CollectError, match=r"evaluation-other\.json"):
        collect(trial.folder, order, tmp_path / "again")
