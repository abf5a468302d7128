"""What a finished attempt left becomes hashed evidence, or is refused with a code."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.runs.collect import NOTHING_SAID, ReadTracking, collect, measure
from research.runs.files import AttemptFolder, AttemptSpec, EpisodeOutcome, Evaluation, EvaluationName, RunEvaluation
from research.runs.provenance import build_conditions, count_neighbours
from research.runs.wandb_log import TrackedRun, parse, read_log
from studies.checks.conditions import CollectError
from studies.log.entries import AttemptState
from studies.records.procedure import Watchdog
from studies.records.runs import Conditions
from swarm.environments.play import rounds
from swarm.environments.registry import environments
from tests.research.factories import edit, make_order, with_schedule
from tests.research.fakes import evaluation, read_fake_tracking, write_results

STEPS = 3
EPISODES = 64
ORDER = make_order()
SCHEDULED = with_schedule(make_order(steps=8), every=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptFolder:
    monkeypatch.setattr("research.runs.collect.read_tracking", read_fake_tracking)
    folder = AttemptFolder(tmp_path / "attempt")
    write_results(folder, ORDER, 0.5)
    return folder


@contextmanager
def refused(code: str, **facts: Any) -> Iterator[pytest.ExceptionInfo[CollectError]]:
    with pytest.raises(CollectError) as caught:
        yield caught
    assert {name: getattr(caught.value, name) for name in ("code", *facts)} == {"code": code, **facts}


def refuse(folder: AttemptFolder, order: AttemptSpec, code: str) -> str:
    study = folder.path.parent / "study"
    with refused(code) as caught:
        collect(folder, order, study)
    assert not study.exists()  # what is refused leaves nothing in the study
    return caught.value.reason


def test_measurements_are_counted_from_outcomes_and_bound_to_their_file(folder: AttemptFolder, tmp_path: Path) -> None:
    evidence = collect(folder, ORDER, tmp_path)
    by_key = {measurement.key: measurement for measurement in evidence.measurements}
    assert by_key["hidden/success"].value == 0.5
    assert by_key["hidden/success/initial"].value == round(0.2 * EPISODES) / EPISODES
    assert {measurement.n for measurement in evidence.measurements} == {EPISODES}
    data = (tmp_path / evidence.payload["evaluation"]["path"]).read_bytes()
    assert {m.sha256 for m in evidence.measurements} == {hashlib.sha256(data).hexdigest()}
    assert evidence.payload["evaluation"]["episodes"] == 2 * EPISODES
    assert {name: json.loads(data)[name] for name in ("study", "run_id")} == {"study": "s1", "run_id": ORDER.run_id}
    assert collect(folder, ORDER, tmp_path) == evidence  # the same bytes when it is done twice
    assert measure(tmp_path, evidence.payload, ORDER.run.metric) == evidence.measurements
    edit(tmp_path / evidence.payload["evaluation"]["path"], lambda value: value["final"]["episodes"].reverse())
    with refused("evidence_changed"):
        measure(tmp_path, evidence.payload, ORDER.run.metric)


def test_plays_that_the_agent_failed_are_not_solved_and_noted(folder: AttemptFolder, tmp_path: Path) -> None:
    def fail(evaluation: dict[str, Any]) -> None:
        for play in evaluation["episodes"][:8]:
            play.update(success=False, failed="KeyError: \x1b[2Jwhatever a container says")

    edit(folder.evaluation("final"), fail)
    evidence = collect(folder, ORDER, tmp_path)
    (alarm,) = [alarm for alarm in evidence.payload["alarms"] if alarm["code"] == "failed_plays"]
    assert (alarm["effect"], "\x1b" in alarm["sentence"]) == ("note", False)
    assert all(part in alarm["sentence"] for part in (f"8 of {EPISODES}", "most by KeyError:"))
    assert {m.key: m.value for m in evidence.measurements}["hidden/success"] == 0.5 - 8 / EPISODES


@pytest.mark.parametrize("name", ["study", "design_hash", "arm", "seed", "run_id", "attempt", "job_digest"])
def test_a_log_that_names_another_origin_is_foreign(folder: AttemptFolder, name: str) -> None:
    edit(folder.path / "tracked.json", lambda value: value["config"].update({name: "another"}))
    assert "'another'" in refuse(folder, ORDER, "foreign_results")


def blown(order: AttemptSpec, *numbers: int, ended: bool = True) -> ReadTracking:
    row = {"critic/rewards/mean": 0.1, "actor/ppo_kl": 5.0, "batch/episodes": order.job.episodes_per_step}
    history = {step: dict(row) for step in numbers}
    run = TrackedRun("ajet", "s1", order.tracking_id, order.names(), history, ended=ended)
    return lambda directory, run_id: run


@pytest.mark.parametrize(
    ("numbers", "ended", "late"), [((1, 3), True, False), ((2,), True, False), ((1,), False, True)]
)
def test_a_training_that_a_rule_stopped_needs_each_of_its_steps_and_the_end_of_its_log(
    folder: AttemptFolder, tmp_path: Path, numbers: tuple[int, ...], ended: bool, late: bool
) -> None:
    order = ORDER.model_copy(update={"watchdog": Watchdog(kl=1.0, patience=1)})
    edit(folder.evaluation("final"), lambda value: value.update(policy_version=len(numbers)))
    with refused("steps_missing", late=late):
        collect(folder, order, tmp_path / "study", blown(order, *numbers, ended=ended))
    whole = blown(order, *range(1, len(numbers) + 1))
    assert collect(folder, order, tmp_path / "study", whole).payload["conditions"]["stopped_by"] == "kl_blow_up"


def test_a_training_that_a_rule_stopped_is_measured_by_what_was_evaluated_up_to_its_end(
    folder: AttemptFolder, tmp_path: Path
) -> None:
    order = SCHEDULED.model_copy(update={"watchdog": Watchdog(kl=1.0, patience=1)})
    write_results(folder, order, 0.5)
    edit(folder.evaluation("final"), lambda value: value.update(policy_version=6))
    evidence = collect(folder, order, tmp_path, blown(order, *range(1, 7)))
    stored = json.loads((tmp_path / evidence.payload["evaluation"]["path"]).read_text())
    assert [part["policy_version"] for part in (*stored["during"], stored["final"])] == [2, 4, 6]
    area = {measured.key: measured.n for measured in evidence.measurements}["hidden/area"]
    assert area == 2 * EPISODES + 2 * 16  # what is measured after training is no further evaluation
    assert measure(tmp_path, evidence.payload, order.run.metric) == evidence.measurements
    conditions, alarm = evidence.payload["conditions"], evidence.payload["alarms"][0]
    assert (conditions["steps"], conditions["checkpoint"]) == (6, "last")
    assert (alarm["code"], alarm["effect"]) == ("kl_blow_up", "abort")
    with refused("steps_missing"):  # no rule, no early end
        collect(folder, SCHEDULED, tmp_path / "other", blown(order, *range(1, 7)))


def played(at: int, version: int, success: float, seed: int) -> Callable[[Any], None]:
    return lambda value: value["evaluations"].__setitem__(
        at, evaluation(SCHEDULED.spec, version, success, 16, SCHEDULED.spec.seed + seed)
    )


FINAL: list[tuple[Callable[[Any], None], str]] = [
    (lambda v: v.update(environment="arith"), "foreign_results"),
    (lambda v: v.update(split="train"), "foreign_results"),
    (lambda v: v.update(policy_version=STEPS - 1), "foreign_results"),
    (lambda v: v["episodes"][0].update(task_id="no such task"), "foreign_results"),
    (lambda v: v["episodes"][0].update(task_id=environments()["guess"].tasks("train")[0].id), "foreign_results"),
    (lambda v: v["episodes"].pop(), "evaluation_incomplete"),
    (lambda v: v["episodes"].__setitem__(1, v["episodes"][0]), "evaluation_incomplete"),
    (lambda v: v.pop("episodes"), "evaluation_unreadable"),
    (lambda v: v["episodes"][0].update(success="yes"), "evaluation_unreadable"),
]
DURING: list[tuple[Callable[[Any], None], str]] = [
    (lambda v: v["evaluations"].pop(1), "evaluation_incomplete"),
    (lambda v: v["evaluations"].clear(), "evaluation_incomplete"),
    (lambda v: v["evaluations"][1].update(policy_version=5), "evaluation_incomplete"),
    (lambda v: v["evaluations"].reverse(), "evaluation_unreadable"),
    (lambda v: v["evaluations"][1].update(split="search"), "foreign_results"),
    (lambda v: v["evaluations"][1].update(environment="arith"), "foreign_results"),
    (lambda v: v["evaluations"][1]["episodes"].pop(), "evaluation_incomplete"),
    (lambda v: v["evaluations"][1]["episodes"][0].update(success=1), "evaluation_unreadable"),
    (played(1, 4, 0.5, 5), "foreign_results"),
]


@pytest.mark.parametrize(
    ("which", "change", "code"), [*(("final", *row) for row in FINAL), *(("during", *row) for row in DURING)]
)
def test_evaluations_that_are_not_the_runs_whole_own_ones_are_refused(
    folder: AttemptFolder, which: EvaluationName, change: Callable[[Any], None], code: str
) -> None:
    order = ORDER if which == "final" else SCHEDULED
    write_results(folder, order, 0.5)
    edit(folder.evaluation(which), change)
    refuse(folder, order, code)


def test_evaluations_that_were_kept_must_be_those_that_count(folder: AttemptFolder, tmp_path: Path) -> None:
    write_results(folder, SCHEDULED, 0.5)
    whole = folder.evaluation("during").read_text()
    folder.kept.write_text(whole)
    initial, kept = (
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder.evaluation("initial"), folder.kept)
    )
    resumed = SCHEDULED.model_copy(update={"resumes": 1, "initial_sha256": initial, "during_sha256": kept})
    said = NOTHING_SAID.model_copy(update={"resumed_at": 5})

    def changed(file: str) -> None:
        with refused("evidence_changed") as caught:
            collect(folder, resumed, tmp_path, said=said)
        assert caught.value.reason.startswith(file)

    collect(folder, resumed, tmp_path, said=said)
    edit(folder.evaluation("during"), played(2, 6, 1.0, 6))
    collect(folder, resumed, tmp_path, said=said)  # it was played again
    edit(folder.evaluation("during"), played(1, 4, 1.0, 4))
    changed("evaluation-during.json")
    folder.evaluation("during").write_text(whole)
    folder.kept.write_text(whole + " ")
    changed("evaluation-kept.json")
    folder.kept.write_text(whole)
    edit(folder.evaluation("initial"), lambda value: value["episodes"][0].update(reward=0.5))
    changed("evaluation-initial.json")


def test_a_config_changed_during_the_run_counts_as_changed() -> None:
    run = parse([
        '{"type":"run","run":{"project":"p","run_id":"r","config":{"update":{"seed":1,"_wandb":{}}}}}',
        '{"type":"config","config":{"update":{"seed":2}}}',
    ])  # fmt: skip
    assert run.config == {"seed": 2}


def test_the_reader_of_logs_does_not_get_the_terminals_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = tmp_path / "reader"
    reader.write_text(f"#!{sys.executable}\nimport os, sys\nsys.exit(os.getsid(0) != os.getpid())\n")
    reader.chmod(0o700)
    monkeypatch.setattr("research.runs.wandb_log.sys.executable", str(reader))
    assert read_log(tmp_path / "run.wandb").history == {}


def evaluated(*plays: tuple[str, int]) -> dict[str, Any]:
    played = [EpisodeOutcome(task_id=task, sample=sample, success=True, reward=1.0) for task, sample in plays]
    initial, final = (
        Evaluation(environment="guess", split="hidden", policy_version=number, episodes=played) for number in (0, STEPS)
    )
    return RunEvaluation(run_id="r", attempt=1, initial=initial, final=final).model_dump(mode="json")


def conditions(order: AttemptSpec, *plays: tuple[str, int]) -> Conditions:
    rows = [{"step": n, "metrics": {}} for n in range(1, STEPS + 1)]
    return build_conditions(order, rows, evaluated(*plays), Conditions(), 0, None)


def over(begin: int, end: int | None) -> dict[str, Any]:
    return {} if end is None else {"status": "finished", "seconds": float(end - begin)}


def after(seconds: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("spans", "others", "count"),
    [
        ([(0, None)], [], 0), ([(0, None), (10, 20), (20, 30)], [], 1), ([(0, None), (10, 25), (20, 30)], [], 2),
        ([(0, None), (10, None)], [], 1), ([(50, None), (0, 50)], [], 0),
        ([(10, 30)], [(0, 20), (15, 90)], 2), ([(10, 30)], [(0, 20)], 1),  # of other studies
        ([(0, None), (5, 5)], [], 0),  # it never ran
    ],
)  # fmt: skip
def test_neighbours_are_those_at_one_moment_not_those_that_came_one_after_the_other(
    spans: list[tuple[int, int | None]], others: list[tuple[int, int]], count: int
) -> None:
    attempts = [
        AttemptState(1, f"a{n}", after(begin).isoformat(), **over(begin, end)) for n, (begin, end) in enumerate(spans)
    ]
    found = count_neighbours(attempts, attempts[0], after(100), [(after(a), after(b)) for a, b in others])
    assert found == count


@given(st.integers(0, 9), st.sampled_from((64, 216, 512)))
def test_the_tasks_that_the_evaluator_plays_for_a_seed_are_those_the_harness_expects(seed: int, count: int) -> None:
    order = make_order(episodes=count, seed=seed)
    chosen = rounds(environments()["guess"].tasks("hidden"), count, seed)
    found = conditions(order, *((task.id, sample) for sample, part in enumerate(chosen) for task in part))
    assert found.evaluation_tasks == found.drawn_tasks
    assert conditions(order, ("a", 0)).drawn_tasks == found.drawn_tasks
