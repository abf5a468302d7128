"""The training that must not learn: it comes before all others, and a study ends there where it changes anything.

And a study whose variable is the model: judged by what each run gains, told so first.
"""

from __future__ import annotations

import asyncio
import json
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
from studies import StudyState
from studies.checks.training import find_zero_lr_run
from studies.records.design import GAIN, MODEL, SUCCESS, Arm, Design, Metric, NoisePlan, RunSpec
from studies.records.runs import PLUMBING_ARM
from studies.records.statements import statement
from studies.report import build_report
from swarm.job import Job, TinyModel
from tests.golden import assert_golden
from tests.research import fakes
from tests.research.bench import STUDY, Bench, scratch
from tests.research.designs import EPISODES, base_job, claim, design, noise_plan
from tests.research.model_folders import model_at

ROOT = Path(__file__).parents[2]
KEPT = {"before": "a" * 64, "after": "a" * 64, "probs_tolerance": 1e-3}
MOVED = {**KEPT, "after": "b" * 64}
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
        return bench, bench.drive(bench.loop()).state


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
    state = bench.drive(bench.loop()).state
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
    return bench, bench.drive(bench.loop()).state


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
