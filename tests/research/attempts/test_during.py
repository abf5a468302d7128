"""Attempts whose policies are evaluated during training: what is written, what counts, and what a retry keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from research.attempts.takeover import beginning
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
from tests.research.attempts.test_attempt import DEADLINE_S, EPISODES, Trial, eventually, untracked
from tests.research.attempts.test_resumption import Tries

PLAYS = 8
SEVERAL_LIVES_S = 3 * DEADLINE_S


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


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Tries]]:
    made: list[Tries] = []
    yield made
    for tries in made:
        for trial in tries.trials.values():
            for handle in trial.sandbox.list():
                handle.stop(grace_s=1.0)


def tries_evaluated(made: list[Tries], path: Path, every: int, **fields: Any) -> Tries:
    """Return attempts at a run whose policy is evaluated every so many training episodes."""
    made.append(tries := Tries(path, **fields))
    tries.order = evaluated_often(tries.order, every, **fields)
    tries.run = RunState(tries.order.run_id, tries.order.spec)
    return tries


LOST = "its evaluations during training were lost with what made them"


def stopped_and_killed(tries: Tries) -> None:
    """Have a rule stop a training, and kill it in its last evaluation."""
    tries.launch()
    first = tries.trial(1)
    eventually(lambda: bool(first.at("final") and first.pids("evaluate")), "it is evaluated")
    tries.kill(1, "evaluate")
    died = tries.outcome(1)
    assert (died.code, died.stopped_by) == ("evaluator_died", "kl_blow_up")
    tries.ended("evaluator_died")


@pytest.mark.timeout(SEVERAL_LIVES_S)
def test_a_training_that_a_rule_stops_stays_stopped_and_is_measured_by_what_was_evaluated_up_to_its_end(
    tmp_path: Path, made: list[Tries]
) -> None:
    """A real model: a rule stops its training; killed in its last evaluation it is evaluated, and trained no more."""
    model = TinyModel(hidden_size=16, layers=1, warm_start_steps=20).model_dump()
    fields = {"backend": "local", "model": model, "epochs": 2, "learning_rate": 0.01, "steps": 400}
    for turn in range(3):
        tries = tries_evaluated(made, tmp_path / str(turn), 16, **fields)
        tries.order = tries.order.model_copy(update={"watchdog": Watchdog(kl=1e-12, patience=6)})
        stopped_and_killed(tries)
        if beginning(tries.run, tries.folder).why != LOST:  # the rule came as one was just being written
            break

    order = tries.launch()
    outcome = tries.outcome(2)
    assert (outcome.status, outcome.stopped_by) == ("finished", "kl_blow_up"), outcome.reason
    unsaid = outcome.model_copy(update={"stopped_by": ""})
    evidence = collect(tries.folder(2), order, tmp_path / "study", said=unsaid)
    conditions = evidence.conditions
    assert conditions.stopped_by == "kl_blow_up", "whatever the attempt says"
    steps = evidence.snapshot["steps"]
    assert conditions.steps == steps == outcome.resumed_at, "no step was added"
    assert 6 <= steps < 400
    assert conditions.checkpoint == "last"
    assert [(alarm.code, alarm.effect) for alarm in evidence.alarms][:1] == [("kl_blow_up", "abort")]
    assert {len(found) for found in (conditions.initial_policy or "", conditions.template or "")} == {64}
    assert conditions.optimiser_steps == 2 * steps
    stored = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())
    assert [part["policy_version"] for part in stored["during"]] == list(range(2, steps, 2))
    assert stored["final"]["policy_version"] == steps
    assert "hidden/area" in {measured.key for measured in evidence.measurements}
    with pytest.raises(CollectError) as refused:
        collect(tries.folder(2), order.model_copy(update={"watchdog": None}), tmp_path / "other", said=outcome)
    assert refused.value.code == "steps_missing", "no rule, no early end"


@pytest.mark.timeout(SEVERAL_LIVES_S)
def test_an_attempt_that_goes_on_keeps_the_evaluations_before_its_step_and_plays_the_others_again(
    tmp_path: Path, made: list[Tries]
) -> None:
    """Evaluations that were lost are seen, ones that were changed are refused, and whole ones are gone on with."""
    tries = tries_evaluated(made, tmp_path, 24, checkpoint_every=4)
    assert tries.order.evaluate_after == (3, 6, 9, 12, 15, 18, 21)
    tries.launch()
    first = tries.trial(1)
    eventually(lambda: "event=step step=8/" in tries.log(1) and first.at("train", step=8), "step 8 is noted")
    tries.kill(1, "research.attempts.attempt")
    tries.over(1)
    tries.ended("lost")
    assert beginning(tries.run, tries.folder).resumes == 1
    begun_without_its_evaluations(tries)
    changed_and_gone_on_with(tries, tmp_path / "changed")
    before = read_during(tries.folder(1).evaluation("during"))
    assert [each.policy_version for each in before][:2] == [3, 6]

    order = tries.launch()
    assert order.during_sha256
    outcome = tries.outcome(2)
    assert outcome.status == "finished", outcome.reason
    assert outcome.resumed_at is not None
    assert outcome.resumed_at >= 8
    evidence = collect(tries.folder(2), order, tmp_path / "study", said=outcome)
    stored = json.loads((tmp_path / "study" / evidence.evaluation["path"]).read_text())
    assert [part["policy_version"] for part in stored["during"]] == list(order.evaluate_after)
    for part, kept in zip(stored["during"], before, strict=False):
        if kept.policy_version < outcome.resumed_at:
            assert part == kept.model_dump(mode="json", exclude_defaults=True)


def begun_without_its_evaluations(tries: Tries) -> None:
    """Assert that a run begins anew whose evaluations were lost, as where a container that made them was killed."""
    path = tries.folder(1).evaluation("during")
    whole = path.read_bytes()
    path.unlink()
    begins = beginning(tries.run, tries.folder)
    assert (begins.resumes, begins.why) == (None, "its evaluations during training were lost with what made them")
    path.write_text('{"evaluations": [3]}')
    assert beginning(tries.run, tries.folder).resumes is None
    path.write_bytes(whole)
    assert beginning(tries.run, tries.folder).during_sha256


def changed_and_gone_on_with(tries: Tries, path: Path) -> None:
    """Assert that an attempt does not go on with a copy of what the first one left, in which evaluations differ."""
    trial, order = tries.copied(path)
    trial.folder.kept.write_text(trial.folder.kept.read_text().replace("true", "false"))
    outcome = asyncio.run(untracked(trial, order).run())
    assert (outcome.status, outcome.code) == ("failed", "evaluation_unreadable"), outcome.reason
    assert "evaluations during training" in outcome.reason


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
