from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from studies import RunState, StudyState, fold
from studies.checks.conditions import extract_conditions
from studies.metrics import Asked, Results, kind_named, kind_of
from studies.proof import export, read_export, verify
from studies.proof.evidence import Findings, check_files
from studies.proof.verify import events_of
from studies.records.design import Metric, RunSpec, Schedule
from studies.records.procedure import CollapseRule
from studies.records.runs import Measurement, add_evaluation_steps
from tests.studies.measured import MeasuredStudy, measured_design, metric
from tests.studies.proof.conftest import Kept
from tests.studies.proof.forging import rehashed

STEPS, PER_STEP, EPISODES, PLAYS = 8, 16, 20, 5
AREA = kind_named("area").define(
    Asked("it is solved", EPISODES, STEPS * PER_STEP, schedule=Schedule(every=2 * PER_STEP, episodes=PLAYS))
)
ELSEWHERE = kind_named("transfer").define(Asked("it is solved", EPISODES, STEPS * PER_STEP, of="arith"))


def part(version: int, episodes: int, solved: int, environment: str = "guess") -> dict[str, Any]:
    plays = [
        {"task_id": f"t{n}", "sample": 0, "success": n < solved, "reward": float(n < solved)} for n in range(episodes)
    ]
    return {"environment": environment, "split": "hidden", "policy_version": version, "episodes": plays}


def found(metric: Metric, folder: Path, change: Callable[[Any], object], steps: int = STEPS) -> str:
    """Return what is found of a run of so many steps whose stored evaluation was changed, hash and number with it."""
    job = add_evaluation_steps({"episodes_per_step": PER_STEP, "steps": STEPS}, metric)
    about = {"study": "s", "design_hash": "d", "arm": "a", "environment": "guess", "phase": "noise"}
    spec = RunSpec(**about, seed=7, job=job, metric=metric)
    evaluation = {
        "study": "s", "run_id": spec.run_id, "attempt": 1, "initial": part(0, EPISODES, 4),
        "final": part(steps, EPISODES, 12),
        "during": [part(step, PLAYS, 2) for step in job.get("evaluate_after", ()) if step < steps],
        **({"other": part(steps, EPISODES, 3, metric.of)} if metric.of else {}),
    }  # fmt: skip
    change(evaluation)
    history = [{"step": n, "metrics": {"batch/episodes": float(PER_STEP)}} for n in range(1, steps + 1)]
    snapshot = {
        "study": "s", "run_id": spec.run_id, "attempt": 1, "design_hash": "d", "history": history,
        "wandb": {"group": "s", "config": {"seed": 7}},
    }  # fmt: skip
    collected: dict[str, Any] = {"attempt": 1}
    for name, value in (("snapshot", snapshot), ("evaluation", evaluation)):
        data = json.dumps(value).encode()
        (folder / f"{name}.json").write_bytes(data)
        collected[name] = {"path": f"{name}.json", "sha256": hashlib.sha256(data).hexdigest()}
    stored = Results(evaluation["initial"], evaluation["final"], evaluation["during"], history, evaluation.get("other"))
    bound = {"run_id": spec.run_id, "sha256": collected["evaluation"]["sha256"]}
    measured = {
        key: Measurement(**bound, key=key, value=each.value, n=each.n)
        for key, each in kind_of(metric).measure(metric, stored).items()
    }
    run = replace(RunState(spec.run_id, spec), collected=collected, measurements=measured)
    findings = Findings()
    check_files(cast(StudyState, SimpleNamespace(all_runs={run.run_id: run}, locked_design=None)), folder, findings)
    return "\n".join(map(str, findings.drifts))


@pytest.mark.parametrize("metric", [AREA, ELSEWHERE], ids=["area", "transfer"])
@pytest.mark.parametrize("steps", [STEPS, 5, 4, 1])
def test_what_is_whole_holds_however_far_the_training_came(metric: Metric, steps: int, tmp_path: Path) -> None:
    assert found(metric, tmp_path, lambda value: None, steps) == ""


@pytest.mark.parametrize(
    ("metric", "change", "difference"),
    [
        (AREA, lambda v: v["during"].pop(1), "evaluated after is [2, 6], expected [2, 4, 6]"),
        (AREA, lambda v: v["during"].insert(1, part(3, PLAYS, 5)), "evaluated after is [2, 3, 4, 6]"),
        (AREA, lambda v: v["during"][1]["episodes"].pop(), "after step 4: episodes is 4, expected 5"),
        (AREA, lambda v: v["during"][1]["episodes"][0].update(task_id="t1"), "different plays is 4, expected 5"),
        (AREA, lambda v: v["during"][2].update(split="search"), "after step 6: split is 'search'"),
        (AREA, lambda v: v["during"][0].update(environment="arith"), "after step 2: environment is 'arith'"),
        (AREA, lambda v: v.update(other=part(STEPS, EPISODES, 3)), "on another environment is True, expected False"),
        (ELSEWHERE, lambda v: v["during"].append(part(2, PLAYS, 3)), "evaluated after is [2], expected []"),
        (ELSEWHERE, lambda v: v["other"].update(environment="guess"), "other: environment is 'guess'"),
        (ELSEWHERE, lambda v: v["other"].update(policy_version=4), "other: version is 4, expected 8"),
        (ELSEWHERE, lambda v: v["other"]["episodes"].pop(), "other: episodes is 19, expected 20"),
    ],
)  # fmt: skip
def test_what_the_metric_does_not_ask_for_is_named(
    metric: Metric, change: Callable[[Any], object], difference: str, tmp_path: Path
) -> None:
    assert difference in found(metric, tmp_path, change)


Conditions = dict[str, Any]


@pytest.fixture
def state(kept: Kept) -> StudyState:
    """The study as if it had locked a rule of collapse, which it is older than."""
    found = fold(events_of(kept.study, kept.rows, Findings()))
    return replace(found, locked_design=found.locked_design.model_copy(update={"collapse": CollapseRule()}))


def with_courses(kept: Kept, state: StudyState, change: Callable[[Conditions], Conditions]) -> list[str]:
    runs = {}
    for run_id, run in state.runs.items():
        snapshot, evaluation = (
            json.loads((kept.folder / run.collected[kind]["path"]).read_text()) for kind in ("snapshot", "evaluation")
        )
        known = extract_conditions(snapshot["history"], evaluation["initial"], evaluation["final"])
        conditions = change({**(run.collected.get("conditions") or {}), **known})
        runs[run_id] = replace(run, collected={**run.collected, "conditions": conditions})
    return drifts(kept, replace(state, runs=runs))


def drifts(kept: Kept, state: StudyState) -> list[str]:
    findings = Findings()
    check_files(state, kept.folder, findings)
    return [str(drift) for drift in findings.drifts]


@pytest.mark.slow
def test_recorded_courses_hold(kept: Kept, state: StudyState) -> None:
    assert with_courses(kept, state, lambda known: known) == []


FORGED: dict[str, tuple[Callable[[Conditions], Conditions], str]] = {
    "no course": (lambda known: known | {"course": None}, "holds no course"),
    "another end": (lambda known: known | {"course": known["course"] | {"end": -1.0}}, "course is"),
    "broken down after all its steps": (
        lambda known: known | {"stopped_by": "kl_blow_up"}, "stopped_by is 'kl_blow_up'"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_run_without_its_course_or_with_another_is_named(kept: Kept, state: StudyState, name: str) -> None:
    change, said = FORGED[name]
    found = with_courses(kept, state, change)
    assert len(found) == len(state.runs)
    assert all(said in line for line in found)
    if name == "no course":
        assert drifts(kept, state) == found
        without = state.locked_design.model_copy(update={"collapse": None})
        assert drifts(kept, replace(state, locked_design=without)) == []


def held(folder: Path) -> list[Any]:
    study, rows, broken = read_export(folder)
    return list(verify(study, rows, folder, known=broken).drifts)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "threshold"), [("seconds", 0.7), ("area", None)])
def test_an_export_holds_and_one_play_that_was_turned_is_named_by_its_file_or_by_the_number_that_follows(
    tmp_path: Path, kind: str, threshold: float | None
) -> None:
    made, folder = MeasuredStudy(tmp_path / "home"), tmp_path / "sent"
    asked = metric(kind, threshold)
    made.whole(measured_design(asked, scope_reached=asked.cut_at is not None))
    made.report()
    export(made.study, made.log.read_unverified(made.study), made.folder, folder)
    assert held(folder) == []
    path = min((folder / "runs").rglob("*evaluation*"))
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    value = json.loads(path.read_text())
    play = value["during"][1]["episodes"][0]  # of the second evaluation during the training
    play["success"] = not play["success"]
    path.write_text(json.dumps(value))
    assert path.relative_to(folder).as_posix() in [drift.place for drift in held(folder)]
    study, rows, _ = read_export(folder)
    after = hashlib.sha256(path.read_bytes()).hexdigest()
    forged = rehashed([{**row, "payload": row["payload"].replace(before, after)} for row in rows])
    said = [str(drift) for drift in verify(study, forged, folder).drifts]
    assert any(value["run_id"] in line and asked.key in line for line in said), said
