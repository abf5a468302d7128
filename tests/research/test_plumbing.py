"""The training that must not learn: it comes before all others, and a study ends there where it changes anything.

And a study whose variable is the model: judged by what each run gains, told so first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from research.controller.progress import progress_lines
from research.design.noise_bank import NoiseBank
from research.files import write_json
from research.installation.base_job import model_folder
from research.proposals.arms import ComparedModels
from research.runs.attempt import Attempt
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.wandb_log import read_tracking
from research.runs.workers import ManagedProcess, ProcessGroup
from studies import RunState, StudyState
from studies.checks.conditions import find_zero_lr_run
from studies.log.event import row_of
from studies.proof import verify
from studies.records.design import GAIN, MODEL, SUCCESS, Arm, Design, Metric, NoisePlan, RunSpec, task_seed_of
from studies.records.runs import EVIDENCE_CHANGED, PLUMBING_ARM
from studies.records.statements import statement
from studies.report import build_report
from swarm.job import Job, TinyModel
from tests.golden import assert_golden
from tests.research import fakes
from tests.research.bench import STUDY, Bench, scratch
from tests.research.designs import EPISODES, base_job, claim, design, noise_plan
from tests.research.factories import edit
from tests.research.model_folders import model_at
from tests.studies.proof.forging import payload_of, rehashed, with_payload

ROOT = Path(__file__).parents[2]
KEPT = {"before": "a" * 64, "after": "a" * 64, "probs_tolerance": 1e-3}
MOVED = {**KEPT, "after": "b" * 64}
TASKS = task_seed_of(STUDY, "guess")
Driven = tuple[Bench, StudyState]


def plan(**changes: Any) -> NoisePlan:
    return noise_plan().model_copy(update={"plumbing": 77, **changes})


Change = Callable[[AttemptSpec, dict[str, Any], dict[str, Any]], None]
"""What attempts' results are changed by: the order, its outcome, and what is tracked."""


@contextmanager
def written(change: Change) -> Iterator[None]:
    write = fakes.write_results

    def changed(folder: AttemptFolder, order: AttemptSpec, *told: Any) -> None:
        write(folder, order, *told)
        files = (folder.outcome, folder.path / "tracked.json")
        outcome, tracked = (json.loads(file.read_text()) for file in files)
        change(order, outcome, tracked)
        for file, value in zip(files, (outcome, tracked), strict=True):
            file.write_text(json.dumps(value))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fakes, "write_results", changed)
        yield


def driven(path: Path, stillness: dict[str, Any] | None, diff: float = 1e-6, **changes: Any) -> Driven:
    def see(order: AttemptSpec, outcome: dict[str, Any], tracked: dict[str, Any]) -> None:
        if order.spec.arm == PLUMBING_ARM:
            outcome["seen"] = {"stillness": stillness}
            for metrics in tracked["history"].values():
                metrics["training/rollout_probs_diff_max"] = diff

    bench = Bench(path, design=design(16), noise=plan(**changes))
    bench.build_report = build_report
    with written(see):
        return bench, bench.drive(bench.loop())


def report(bench: Bench) -> str:
    return (bench.home.study(STUDY) / "report.md").read_text()


def trained(state: StudyState) -> list[str]:
    begun = [run for run in state.runs.values() if run.attempts]
    return [run.spec.arm for run in sorted(begun, key=lambda run: run.attempts[0].launched)]


def test_nothing_is_trained_before_a_learning_rate_of_0_was_seen_to_change_nothing() -> None:
    with scratch() as folder:
        bench, state = driven(folder, KEPT)
        bank, job = NoiseBank.of(bench.log), Job.model_validate(base_job())
    assert not bank.needs_zero_lr_check(job)  # later studies know what passed, and nothing of noise by it
    assert bank.needs_zero_lr_check(job.model_copy(update={"model": TinyModel(hidden_size=32)}))
    assert find_zero_lr_run(state).run_id not in {seen.run for seen in bank.observations}
    assert trained(state)[:3] == [PLUMBING_ARM, "aa", "aa"]
    still = find_zero_lr_run(state)
    assert (still.spec.job["learning_rate"], still.spec.job["steps"]) == (0.0, 3)
    first = {run.spec.arm: run.attempts[0] for run in state.runs.values() if run.spec.phase == "noise"}
    assert first[PLUMBING_ARM].launched < first["aa"].launched
    assert state.verdicts
    told = dict(progress_lines(state))
    assert_golden(told["noise"])
    assert any("weights bit-equal" in line for line in told.values())


@pytest.mark.parametrize(
    ("stillness", "diff", "says"), [(MOVED, 1e-6, "changed the weights"), (KEPT, 0.02, "differ by 0.02")]
)
def test_a_study_whose_machinery_is_broken_ends_with_the_reason_and_a_report_and_trains_nothing_more(
    stillness: dict[str, Any], diff: float, says: str, fast_path: Path
) -> None:
    bench, state = driven(fast_path, stillness, diff)
    assert trained(state) == [PLUMBING_ARM]
    assert state.status == "concluded"
    assert state.concluded_reason.startswith("invalid(plumbing): ")
    for text in (state.concluded_reason, report(bench)):
        assert [part for part in ("invalid(plumbing)", says) if part not in text] == []


@pytest.mark.parametrize("stillness", [KEPT, None])
def test_where_the_noise_is_known_the_one_training_is_enough_and_unasked_it_tells_later_studies_nothing(
    fast_path: Path, stillness: dict[str, Any] | None
) -> None:
    _, state = driven(fast_path, stillness, seeds=())
    (still,) = state.runs_in("noise")
    assert (still.spec.arm, still.status) == (PLUMBING_ARM, "collected")
    assert state.verdicts
    assert NoiseBank.of_study(state).needs_zero_lr_check(Job.model_validate(base_job())) == (stillness is None)


def test_old_plans_hash_as_before() -> None:
    assert "plumbing" not in noise_plan().model_dump(mode="json")
    assert noise_plan().hash() != plan().hash()


@pytest.mark.slow
def test_a_learner_that_moves_weights_at_rate_0_ends_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = ProcessGroup.start

    async def started(
        processes: ProcessGroup, module: str, *arguments: str, log: Path, **environment: str
    ) -> ManagedProcess:
        if module == "swarm.server":
            environment |= {"PYTHONPATH": str(ROOT)}
            module = "tests.research.moving_server"
        return await start(processes, module, *arguments, log=log, **environment)

    def attempted(folder: AttemptFolder, order: AttemptSpec, *told: Any) -> None:
        outcome = asyncio.run(Attempt(folder, order).run())
        write_json(folder.outcome, outcome.model_dump(mode="json"))

    monkeypatch.setattr(ProcessGroup, "start", started)
    monkeypatch.setattr(fakes, "write_results", attempted)
    job = Job(
        model=TinyModel(hidden_size=16, layers=1, warm_start_steps=20), episodes_per_step=16, group_size=4, device="cpu"
    )
    first = plan(job=job.model_dump(mode="json", exclude={"seed", "tracking"}), seeds=())
    bench = Bench(tmp_path, design=design(16), noise=first)
    bench.read_tracking = read_tracking
    state = bench.drive(bench.loop())
    assert trained(state) == [PLUMBING_ARM]
    assert "changed the weights" in state.concluded_reason


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ComparedModels:
    path = tmp_path_factory.mktemp("models")
    folders = [model_at(path / "small"), model_at(path / "large", b"v")]
    return ComparedModels.load(map(str, folders), lambda said: model_folder(said))


def compared(models: ComparedModels) -> Design:
    small, large = (models.value(name) for name in ("small", "large"))
    return design(
        arms=(Arm(name="model=small", overrides={MODEL: small}), Arm(name="model=large", overrides={MODEL: large})),
        hypotheses=(claim(variable=MODEL, control=small, treatment=large,
                          statement=statement(MODEL, small, large, "increase")),),
        control_arm="model=small", base_job={**base_job(), "model": small},
        metric=Metric(key=GAIN, meaning="what a run gains", episodes=EPISODES, worst=-1.0),
    )  # fmt: skip


def is_large(spec: RunSpec) -> bool:
    return bool(spec.job["model"]["path"].endswith("large"))


def begins(spec: RunSpec) -> float:
    """Return where a model begins: the large one so high that it solves more in the end, whatever it gains."""
    return (16 if is_large(spec) else 4) / EPISODES


def ends(spec: RunSpec) -> float:
    """Return where a model ends: the large one gains four episodes, the small one twelve, and both up to three more."""
    return begins(spec) + ((4 if is_large(spec) else 12) + spec.seed % 4) / EPISODES


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, models: ComparedModels) -> Driven:
    bench = Bench(tmp_path_factory.mktemp("home"), design=compared(models))
    bench.sandbox.rate, bench.sandbox.begins = ends, begins
    bench.build_report = build_report
    return bench, bench.drive(bench.loop())


@pytest.mark.slow
def test_each_run_is_judged_by_its_success_after_less_that_before(studied: Driven) -> None:
    _, state = studied
    for run in state.runs.values():
        found = {key: entry.value for key, entry in run.measurements.items()}
        assert found.keys() == {SUCCESS + "/initial", SUCCESS, GAIN}
        assert found[GAIN] == pytest.approx(found[SUCCESS] - found[SUCCESS + "/initial"])
    (verdict,) = state.verdicts
    assert verdict.verdict == "refuted"  # by success after training alone it would be supported
    assert verdict.estimate == pytest.approx(-8 / EPISODES, abs=3 / EPISODES)
    assert all("model brings that" in line for line in verdict.violations)


def test_the_report_says_first_that_gains_are_compared_and_where_both_began(studied: Driven) -> None:
    bench, _ = studied
    head = report(bench).partition("## ")[0]
    assert "hidden success, compared" in head
    assert "mean gain in hidden success was" in head
    assert "model=small has 0.125, model=large has 0.500 as its success before training" in head


def shared_plan(**changes: Any) -> NoisePlan:
    judged = Metric(meaning="share of hidden episodes solved", episodes=EPISODES, task_seed=TASKS)
    return plan(metric=judged, **changes)


def shared_design(*treatments: int, **changes: Any) -> Design:
    planned = design(*treatments, **changes)
    return planned.model_copy(update={"metric": planned.metric.model_copy(update={"task_seed": TASKS})})


def initial_of(bench: Bench, run: RunState) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bench.home.study(STUDY) / run.collected["evaluation"]["path"]).read_text())
    return found["initial"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    """A study of which one arm samples colder, and so begins with another policy than the control."""
    arms = (
        *design(16).arms, Arm(name="temperature=0.7", overrides={"temperature": 0.7}),
    )  # fmt: skip
    claims = (claim(), claim(name="h2", variable="temperature", control=1.0, treatment=0.7))
    planned = shared_design(16, arms=arms, hypotheses=claims)
    bench = Bench(tmp_path_factory.mktemp("home"), design=planned, noise=shared_plan(seeds=()))
    bench.sandbox.begins = lambda spec: 0.25 if spec.arm == PLUMBING_ARM else 0.5
    bench.build_report = build_report
    return bench, bench.drive(bench.loop())


def test_the_untrained_policy_is_evaluated_once_for_all_runs_that_provably_begin_with_it(sharing: Driven) -> None:
    bench, state = sharing
    still = find_zero_lr_run(state)
    assert still is not None
    assert {key: (found.value, found.n) for key, found in still.measurements.items()} == {
        SUCCESS + "/initial": (0.25, EPISODES), SUCCESS: (0.25, EPISODES)
    }  # fmt: skip
    assert still.collected["evaluation"]["episodes"] == EPISODES
    once = initial_of(bench, still)
    for run in state.runs_in("confirm"):
        shares = run.spec.arm != "temperature=0.7"
        begins = run.measurements[SUCCESS + "/initial"].value
        assert (run.untrained, begins) == ((still.run_id, 0.25) if shares else ("", 0.5))
        assert (initial_of(bench, run) == once) == shares
        assert run.conditions.untrained == (still.run_id if shares else None)
        assert run.conditions.course.start == begins
        assert run.collected["evaluation"]["episodes"] == (1 if shares else 2) * EPISODES
    assert len({run.conditions.evaluation_tasks for run in state.runs_in("confirm")}) == 1
    assert {run.conditions.evaluation_tasks for run in state.runs.values()} == {still.conditions.drawn_tasks}
    assert verify(STUDY, [row_of(event) for event in bench.events()], bench.home.study(STUDY)).drifts == ()
    text = report(bench)
    assert f"evaluated once, by run {still.run_id}: hidden success 0.250 on 32 episodes" in text
    assert "the same tasks in every run" in text


def test_another_evaluation_in_the_place_of_the_shared_one_is_found(sharing: Driven, tmp_path: Path) -> None:
    bench, state = sharing
    folder = tmp_path / "study"
    shutil.copytree(bench.home.study(STUDY), folder)
    run = next(run for run in state.runs_in("confirm") if run.untrained)
    path = folder / run.collected["evaluation"]["path"]
    stored = json.loads(path.read_text())
    solved = next(play for play in stored["initial"]["episodes"] if play["success"])
    other = next(play for play in stored["initial"]["episodes"] if not play["success"])
    for play in (solved, other):  # as many are solved
        play["success"] = not play["success"]
    path.write_text(json.dumps(stored))
    before, after = run.collected["evaluation"]["sha256"], hashlib.sha256(path.read_bytes()).hexdigest()
    rows = [row_of(event) for event in bench.events()]
    rows = rehashed([{**row, "payload": row["payload"].replace(before, after)} for row in rows])
    told = "\n".join(map(str, verify(STUDY, rows, folder).drifts))
    assert f"initial: it is not the evaluation before training of {run.untrained}" in told


@pytest.mark.parametrize(("change", "said"), [
    (lambda payload: payload.update(play_variance=0.5), "play_variance is 0.5"),
    (lambda payload: payload["conditions"].update(untrained=None), "untrained is None"),
])  # fmt: skip
def test_what_is_said_of_a_shared_evaluation_or_of_plays_is_held_to_the_files(
    sharing: Driven, change: Callable[[Any], object], said: str
) -> None:
    bench, state = sharing
    run = next(run for run in state.runs_in("confirm") if run.untrained)
    rows = [row_of(event) for event in bench.events()]
    for number, row in enumerate(rows):
        payload = payload_of(row)
        if row["type"] == "run.collected" and payload["run_id"] == run.run_id:
            change(payload)
            rows[number] = with_payload(row, payload)
    assert said in "\n".join(map(str, verify(STUDY, rehashed(rows), bench.home.study(STUDY)).drifts))


def test_a_copy_that_is_changed_while_its_run_trains_is_found_and_the_run_given_up(fast_path: Path) -> None:
    bench = Bench(fast_path, design=shared_design(16), noise=shared_plan(seeds=()))

    def script(order: AttemptSpec) -> str:
        if order.initial_of and order.attempt == 1:
            folder = AttemptFolder(bench.home.attempt(STUDY, order.run_id, 1))
            edit(folder.evaluation("initial"), lambda value: value["episodes"][0].update(success=True))
        return "ok"

    bench.sandbox.script = script
    state = bench.drive(bench.loop())
    runs = state.runs_in("confirm")
    assert {run.attempts[0].code for run in runs} == {EVIDENCE_CHANGED}
    assert {run.invalid[0] for run in runs if run.invalid is not None} == {EVIDENCE_CHANGED}
