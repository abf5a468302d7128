"""Collecting: evidence is read back from W&B and counted again; what is not the run's whole, own result is refused."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.results.attempt_files import AttemptFolder, AttemptSpec
from research.results.collect import NOTHING_SAID, CollectError, ReadTracking, collect, measure
from research.results.wandb_reader import TrackedRun, TrackingUnreadable, parse, read_log, read_tracking
from studies.metrics import Asked, kind_named
from studies.records.base import canonical
from studies.records.design import Metric, RunSpec, Schedule
from studies.records.design_parts import Watchdog
from studies.records.run_specs import evaluated
from swarm.environments.registry import environments
from swarm.job import Job
from swarm.server.training.tracking import WandbTracker
from tests.research.fakes import evaluation, read_fake_tracking, write_results

STEPS = 3
EPISODES = 64


def make_order(attempt: int = 1, steps: int = STEPS) -> AttemptSpec:
    job = Job(steps=steps, backend="fake", seed=7).model_dump(mode="json", exclude={"tracking"})
    spec = RunSpec(
        study="s1",
        design_hash="d" * 64,
        arm="group_size=8",
        seed=7,
        environment="guess",
        job=job,
        metric=Metric(meaning="share of hidden tasks solved", episodes=EPISODES),
    )
    return AttemptSpec(study="s1", run_id=spec.run_id, attempt=attempt, spec=spec, models="models")


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    return AttemptFolder(tmp_path / "attempt")


@pytest.fixture
def fake_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.results.collect.read_tracking", read_fake_tracking)


def refuse(folder: AttemptFolder, order: AttemptSpec, code: str) -> str:
    study = folder.path.parent / "study"
    with pytest.raises(CollectError) as refused:
        collect(folder, order, study)
    assert refused.value.code == code
    assert not study.exists(), "what is refused leaves nothing in the study"
    return refused.value.reason


def edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_results_are_read_back_from_a_real_wandb_log(
    folder: AttemptFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    order = make_order()
    write_results(folder, order, 0.5)
    job = order.tracked_job(folder)
    assert job.tracking is not None
    tracker = WandbTracker(job, job.tracking)
    for step in range(1, STEPS + 1):
        tracker.log(step, {"critic/rewards/mean": step / 10, "actor/ppo_kl": float("nan")})
    tracker.finish()
    evidence = collect(folder, order, tmp_path / "study")
    snapshot = (tmp_path / "study" / evidence.snapshot["path"]).read_bytes()
    assert hashlib.sha256(snapshot).hexdigest() == evidence.snapshot["sha256"]
    value = json.loads(snapshot)
    assert canonical(value).encode() == snapshot
    assert [row["step"] for row in value["history"]] == [1, 2, 3]
    assert [row["metrics"]["critic/rewards/mean"] for row in value["history"]] == [0.1, 0.2, 0.3]
    assert value["design_hash"] == "d" * 64
    assert value["wandb"]["id"] == f"{order.run_id}-a1"
    assert value["wandb"]["group"] == "s1"
    assert value["wandb"]["config"]["job_digest"] == job.digest()


def test_a_wandb_log_that_is_missing_or_damaged_is_refused(folder: AttemptFolder) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    assert "found 0" in refuse(folder, order, "tracking_unreadable")
    run = folder.path / "wandb" / f"offline-run-20260101_000000-{order.tracking_id}"
    run.mkdir(parents=True)
    (run / f"run-{order.tracking_id}.wandb").write_bytes(os.urandom(2000))
    assert "W&B's reader ended with code 1" in refuse(folder, order, "tracking_unreadable")


@pytest.mark.usefixtures("fake_tracking")
def test_measurements_are_counted_from_outcomes_and_bound_to_their_file(folder: AttemptFolder, tmp_path: Path) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    evidence = collect(folder, order, tmp_path)
    by_key = {measurement.key: measurement for measurement in evidence.measurements}
    assert by_key["hidden/success"].value == 0.5
    assert by_key["hidden/success/initial"].value == round(0.2 * EPISODES) / EPISODES
    assert {measurement.n for measurement in evidence.measurements} == {EPISODES}
    data = (tmp_path / evidence.evaluation["path"]).read_bytes()
    assert {m.sha256 for m in evidence.measurements} == {hashlib.sha256(data).hexdigest()}
    assert evidence.evaluation["episodes"] == 2 * EPISODES
    assert {name: json.loads(data)[name] for name in ("study", "run_id")} == {"study": "s1", "run_id": order.run_id}


@pytest.mark.usefixtures("fake_tracking")
def test_collecting_twice_gives_the_same_bytes_and_measuring_later_the_same_numbers(
    folder: AttemptFolder, tmp_path: Path
) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    evidence = collect(folder, order, tmp_path)
    assert collect(folder, order, tmp_path) == evidence
    collected = {"evaluation": evidence.evaluation, "snapshot": evidence.snapshot}
    assert measure(tmp_path, collected, order.run.metric) == evidence.measurements


@pytest.mark.parametrize("said", [{}, {"calls": float("nan")}], ids=["missing", "NaN"])
@pytest.mark.usefixtures("fake_tracking")
def test_a_fact_that_some_plays_do_not_say_is_refused_with_their_number(
    folder: AttemptFolder, said: dict[str, float]
) -> None:
    asked = Asked("it is solved", EPISODES, STEPS * 128, of="calls", facts={"calls": (3.0, 0.0)})
    order = make_order()
    spec = order.spec.model_copy(update={"metric": kind_named("fact").define(asked)})
    order = order.model_copy(update={"spec": spec, "run_id": spec.run_id})
    write_results(folder, order, 0.5)
    for stage in ("initial", "final"):
        edit(folder.evaluation(stage), lambda v: [play.update(facts={"calls": 1.0}) for play in v["episodes"]])
    edit(folder.evaluation("final"), lambda v: [play.update(facts=said) for play in v["episodes"][:3]])
    reason = refuse(folder, order, "not_measurable" if not said else "evaluation_unreadable")
    assert said or "expected calls of every hidden episode; found 3 of 64 without it" in reason


@pytest.mark.usefixtures("fake_tracking")
def test_an_evaluation_that_was_changed_after_it_was_collected_is_refused(
    folder: AttemptFolder, tmp_path: Path
) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    evidence = collect(folder, order, tmp_path)
    path = tmp_path / evidence.evaluation["path"]
    edit(path, lambda value: value["final"]["episodes"][-1].update(success=True))
    with pytest.raises(CollectError) as refused:
        measure(tmp_path, {"evaluation": evidence.evaluation, "snapshot": evidence.snapshot}, order.run.metric)
    assert refused.value.code == "evidence_changed"


@pytest.mark.usefixtures("fake_tracking")
@pytest.mark.parametrize("name", ["study", "design_hash", "arm", "seed", "run_id", "attempt", "job_digest"])
def test_a_log_that_names_another_origin_is_foreign(folder: AttemptFolder, name: str) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    edit(folder.path / "tracked.json", lambda value: value["config"].update({name: "another"}))
    assert "'another'" in refuse(folder, order, "foreign_results")


@pytest.mark.usefixtures("fake_tracking")
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_log_that_lacks_a_step_is_refused(folder: AttemptFolder, step: int) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    edit(folder.path / "tracked.json", lambda value: value["history"].pop(str(step)))
    assert "found 2 rows" in refuse(folder, order, "steps_missing")


def blown(order: AttemptSpec, *numbers: int, ended: bool = True) -> ReadTracking:
    """Return the log of a training whose every step breaks a limit, as far as it is there."""
    row = {"critic/rewards/mean": 0.1, "actor/ppo_kl": 5.0}
    history = {step: dict(row) for step in numbers}
    run = TrackedRun("ajet", "s1", order.tracking_id, order.names(), history, ended=ended)
    return lambda directory, run_id: run


@pytest.mark.parametrize(
    ("numbers", "ended", "late"), [((1, 3), True, False), ((2,), True, False), ((1,), False, True)]
)
def test_a_training_that_a_rule_stopped_needs_each_of_its_steps_and_the_end_of_its_log(
    folder: AttemptFolder, tmp_path: Path, numbers: tuple[int, ...], ended: bool, late: bool
) -> None:
    order = make_order().model_copy(update={"watchdog": Watchdog(kl=1.0, patience=1)})
    write_results(folder, order, 0.5)
    edit(folder.evaluation("final"), lambda value: value.update(policy_version=len(numbers)))
    with pytest.raises(CollectError) as refused:
        collect(folder, order, tmp_path / "study", blown(order, *numbers, ended=ended))
    assert (refused.value.code, refused.value.late) == ("steps_missing", late)
    whole = blown(order, *range(1, len(numbers) + 1))
    assert collect(folder, order, tmp_path / "study", whole).conditions.stopped_by == "kl_blow_up"


def spoil(change: Callable[[dict[str, Any]], object]) -> Callable[[Any], None]:
    def apply(value: Any) -> None:
        change(value)

    return apply


@pytest.mark.usefixtures("fake_tracking")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (spoil(lambda v: v.update(environment="arith")), "foreign_results"),
        (spoil(lambda v: v.update(split="train")), "foreign_results"),
        (spoil(lambda v: v.update(policy_version=STEPS - 1)), "foreign_results"),
        (spoil(lambda v: v["episodes"][0].update(task_id="no such task")), "foreign_results"),
        (spoil(lambda v: v["episodes"].pop()), "evaluation_incomplete"),
        (spoil(lambda v: v["episodes"].__setitem__(1, v["episodes"][0])), "evaluation_incomplete"),
        (spoil(lambda v: v.pop("episodes")), "evaluation_unreadable"),
        (spoil(lambda v: v["episodes"][0].update(success="yes")), "evaluation_unreadable"),
    ],
)
def test_an_evaluation_that_is_not_the_runs_whole_own_one_is_refused(
    folder: AttemptFolder, change: Callable[[Any], None], code: str
) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    edit(folder.evaluation("final"), change)
    refuse(folder, order, code)


@pytest.mark.usefixtures("fake_tracking")
def test_an_evaluation_on_training_tasks_is_refused(folder: AttemptFolder) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    trained = environments()["guess"].tasks("train")[0].id
    edit(folder.evaluation("final"), spoil(lambda value: value["episodes"][0].update(task_id=trained)))
    refuse(folder, order, "foreign_results")


@pytest.mark.usefixtures("fake_tracking")
@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_an_evaluation_cut_short_is_refused(folder: AttemptFolder, content: str) -> None:
    order = make_order()
    write_results(folder, order, 0.5)
    folder.evaluation("initial").write_text(content)
    refuse(folder, order, "evaluation_unreadable")
    folder.evaluation("initial").unlink()
    refuse(folder, order, "evaluation_unreadable")


def make_scheduled(steps: int = 8) -> AttemptSpec:
    """Return an order whose policy is evaluated after steps 2, 4 and 6."""
    order = make_order(steps=steps)
    job, per_step = order.spec.job, order.spec.job["episodes_per_step"]
    asked = Asked("it is found", EPISODES, steps * per_step, schedule=Schedule(every=2 * per_step, episodes=16))
    metric = kind_named("area").define(asked)
    spec = order.spec.model_copy(update={"metric": metric, "job": evaluated(job, metric)})
    return order.model_copy(update={"spec": spec, "run_id": spec.run_id})


@pytest.mark.usefixtures("fake_tracking")
def test_evaluations_during_training_are_stored_and_measured_by(folder: AttemptFolder, tmp_path: Path) -> None:
    order = make_scheduled()
    write_results(folder, order, 0.5, before=0.25)
    evidence = collect(folder, order, tmp_path)
    stored = json.loads((tmp_path / evidence.evaluation["path"]).read_text())
    assert [part["policy_version"] for part in stored["during"]] == [2, 4, 6]
    by_key = {measurement.key: measurement for measurement in evidence.measurements}
    assert by_key["hidden/area"].value == pytest.approx(0.375)
    collected = {"evaluation": evidence.evaluation, "snapshot": evidence.snapshot}
    assert measure(tmp_path, collected, order.run.metric) == evidence.measurements


def played_by(seed: int) -> Callable[[Any], None]:
    def replace(value: Any) -> None:
        order = make_scheduled()
        value["evaluations"][1] = evaluation(order.spec, 4, 0.5, 16, seed)

    return replace


@pytest.mark.usefixtures("fake_tracking")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (spoil(lambda v: v["evaluations"].pop(1)), "evaluation_incomplete"),
        (spoil(lambda v: v["evaluations"].clear()), "evaluation_incomplete"),
        (spoil(lambda v: v["evaluations"][1].update(policy_version=5)), "evaluation_incomplete"),
        (spoil(lambda v: v["evaluations"].reverse()), "evaluation_unreadable"),
        (spoil(lambda v: v["evaluations"][1].update(split="search")), "foreign_results"),
        (spoil(lambda v: v["evaluations"][1].update(environment="arith")), "foreign_results"),
        (spoil(lambda v: v["evaluations"][1]["episodes"].pop()), "evaluation_incomplete"),
        (spoil(lambda v: v["evaluations"][1]["episodes"][0].update(success=1)), "evaluation_unreadable"),
        (played_by(7 + 5), "foreign_results"),
    ],
)
def test_evaluations_during_training_that_are_not_whole_or_not_the_drawn_ones_are_refused(
    folder: AttemptFolder, change: Callable[[Any], None], code: str
) -> None:
    order = make_scheduled()
    write_results(folder, order, 0.5)
    edit(folder.evaluation("during"), change)
    refuse(folder, order, code)


@pytest.mark.usefixtures("fake_tracking")
def test_evaluations_that_were_kept_must_be_those_that_count(folder: AttemptFolder, tmp_path: Path) -> None:
    order = make_scheduled()
    write_results(folder, order, 0.5)
    whole = folder.evaluation("during").read_text()
    folder.kept.write_text(whole)
    initial, kept = (
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder.evaluation("initial"), folder.kept)
    )
    resumed = order.model_copy(update={"resumes": 1, "initial_sha256": initial, "during_sha256": kept})
    said = NOTHING_SAID.model_copy(update={"resumed_at": 5})
    collect(folder, resumed, tmp_path, said=said)
    edit(folder.evaluation("during"), lambda v: v["evaluations"].__setitem__(2, evaluation(order.spec, 6, 1.0, 16, 13)))
    collect(folder, resumed, tmp_path, said=said)  # it was played again
    edit(folder.evaluation("during"), lambda v: v["evaluations"].__setitem__(1, evaluation(order.spec, 4, 1.0, 16, 11)))
    with pytest.raises(CollectError, match="another evaluation than the one that was kept"):
        collect(folder, resumed, tmp_path, said=said)
    folder.evaluation("during").write_text(whole)
    folder.kept.write_text(whole + " ")
    with pytest.raises(CollectError, match=r"evaluation-kept\.json was changed"):
        collect(folder, resumed, tmp_path, said=said)


def test_a_record_that_is_none_is_refused() -> None:
    with pytest.raises(TrackingUnreadable, match="expected W&B records"):
        parse(["no record"])


def test_a_config_changed_during_the_run_counts_as_changed() -> None:
    run = parse(
        [
            '{"type":"run","run":{"project":"p","run_id":"r","config":{"update":{"seed":1,"_wandb":{}}}}}',
            '{"type":"config","config":{"update":{"seed":2}}}',
        ]
    )
    assert run.config == {"seed": 2}


def test_two_logs_of_one_name_are_refused(tmp_path: Path) -> None:
    for stamp in ("1", "2"):
        run = tmp_path / "wandb" / f"offline-run-{stamp}-x-a1"
        run.mkdir(parents=True)
        (run / "run-x-a1.wandb").touch()
    with pytest.raises(TrackingUnreadable, match="found 2"):
        read_tracking(tmp_path, "x-a1")


def test_the_fakes_write_what_an_evaluator_writes() -> None:
    spec = make_order().spec
    value = evaluation(spec, 0, 0.25)
    assert sum(episode["success"] for episode in value["episodes"]) == EPISODES / 4


def test_the_reader_of_logs_does_not_get_the_terminals_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = tmp_path / "reader"
    reader.write_text(f"#!{sys.executable}\nimport os, sys\nsys.exit(os.getsid(0) != os.getpid())\n")
    reader.chmod(0o700)
    monkeypatch.setattr("research.results.wandb_reader.sys.executable", str(reader))
    assert read_log(tmp_path / "run.wandb").history == {}


@pytest.mark.usefixtures("fake_tracking")
def test_evaluated_episodes_are_counted_by_kind_of_task(folder: AttemptFolder, tmp_path: Path) -> None:
    order = make_order()
    metric = order.spec.metric.model_copy(update={"episodes": 216})
    order = order.model_copy(update={"spec": order.spec.model_copy(update={"metric": metric})})
    write_results(folder, order, 0.5)
    evidence = collect(folder, order, tmp_path)
    assert set(evidence.kinds) == {"narrow windows", "wide windows"}
    assert sum(solved for solved, _ in evidence.kinds.values()) == 108
    assert sum(played for _, played in evidence.kinds.values()) == 216
    assert evidence.payload()["kinds"] == {kind: list(counts) for kind, counts in evidence.kinds.items()}
