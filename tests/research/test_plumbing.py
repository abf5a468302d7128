"""The training that must not learn: it comes before all others, and a study ends there where it changes anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from research.attempts.attempt import Attempt
from research.attempts.processes import ManagedProcess, ProcessGroup
from research.files import write_json
from research.noise.bank import NoiseBank, model_key, shipped_bank
from research.results.attempt_files import AttemptFolder, AttemptSpec
from research.results.wandb_reader import read_tracking
from research.study.progress_lines import progress_lines
from studies import EventLog, StudyState
from studies.checks.plumbing import plumbing_run
from studies.records.noise_plan import NoisePlan
from studies.records.run_specs import PLUMBING_ARM, noise_hash
from studies.report import build_report
from swarm.job import Job, TinyModel
from tests.research import fakes
from tests.research.bench import STUDY, Bench, scratch
from tests.research.designs import base_job, design, noise_plan

ROOT = Path(__file__).parents[2]
KEPT = {"before": "a" * 64, "after": "a" * 64, "probs_tolerance": 1e-3}
MOVED = {**KEPT, "after": "b" * 64}
SAYS_NOTHING = {"before": None, "after": None, "probs_tolerance": None}


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with scratch() as folder:
        yield folder


def plan(**changes: Any) -> NoisePlan:
    return noise_plan().model_copy(update={"plumbing": 77, **changes})


def seeing(monkeypatch: pytest.MonkeyPatch, stillness: dict[str, Any] | None, diff: float = 1e-6) -> None:
    """Let attempts with a learning rate of 0 see this."""
    write = fakes.write_results

    def written(folder: AttemptFolder, order: AttemptSpec, *told: Any) -> None:
        write(folder, order, *told)
        if order.spec.arm != PLUMBING_ARM:
            return
        outcome = json.loads(folder.outcome.read_text())
        folder.outcome.write_text(json.dumps({**outcome, "seen": {"stillness": stillness}}))
        tracked = json.loads((folder.path / "tracked.json").read_text())
        for metrics in tracked["history"].values():
            metrics["training/rollout_probs_diff_max"] = diff
        (folder.path / "tracked.json").write_text(json.dumps(tracked))

    monkeypatch.setattr(fakes, "write_results", written)


def trained(state: StudyState) -> list[str]:
    """Arms of all runs, in the order in which they were begun."""
    begun = [run for run in state.runs.values() if run.attempts]
    return [run.spec.arm for run in sorted(begun, key=lambda run: run.attempts[0].launched)]


def driven(bench: Bench) -> StudyState:
    return bench.drive(bench.loop()).state


def test_nothing_is_trained_before_a_learning_rate_of_0_was_seen_to_change_nothing(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing(monkeypatch, KEPT)
    bench = Bench(fast_path, design=design(16), noise=plan())
    state = driven(bench)
    assert trained(state)[:3] == [PLUMBING_ARM, "aa", "aa"]
    still = plumbing_run(state)
    assert still is not None
    assert (still.spec.job["learning_rate"], still.spec.job["steps"]) == (0.0, 3)
    first = {run.spec.arm: run.attempts[0] for run in state.runs.values() if run.spec.phase == "noise"}
    assert first[PLUMBING_ARM].launched < first["aa"].launched
    assert state.verdicts


@pytest.mark.parametrize(
    ("stillness", "diff", "says"),
    [
        (MOVED, 1e-6, "changed the weights"),
        (KEPT, 0.02, "differ by 0.02 on the probability of a sampled token"),
    ],
)
def test_a_study_whose_machinery_is_broken_ends_with_the_reason_and_a_report_and_trains_nothing_more(
    stillness: dict[str, Any], diff: float, says: str, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing(monkeypatch, stillness, diff)
    bench = Bench(fast_path, design=design(16), noise=plan())
    bench.build_report = build_report
    state = driven(bench)
    assert trained(state) == [PLUMBING_ARM]
    assert state.status == "concluded"
    assert state.concluded_reason is not None
    assert state.concluded_reason.startswith("invalid(plumbing): ")
    assert says in state.concluded_reason
    report = (bench.home.study(STUDY) / "report.md").read_text()
    assert "invalid(plumbing)" in report
    assert says in report


def test_a_backend_that_cannot_say_is_not_held_to_it_and_that_is_told(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing(monkeypatch, SAYS_NOTHING)
    bench = Bench(fast_path, design=design(16), noise=plan())
    bench.build_report = build_report
    state = driven(bench)
    assert state.verdicts
    assert "cannot say whether the weights stayed as they were" in (bench.home.study(STUDY) / "report.md").read_text()


def test_what_comes_first_and_what_it_came_to_is_told_on_the_terminal(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing(monkeypatch, KEPT)
    told = dict(progress_lines(driven(Bench(fast_path, design=design(16), noise=plan()))))
    assert told["noise"] == (
        "A/A runs first: 2 seeds of one job, to learn what seeds alone do; before them a training with a learning rate "
        "of 0, to see that it changes nothing"
    )
    assert any("3 steps with a learning rate of 0 left the weights bit-equal" in line for line in told.values())


def test_a_run_without_a_learning_signal_is_told_so_where_its_end_is(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = fakes.write_results

    def written(folder: AttemptFolder, order: AttemptSpec, *told: Any) -> None:
        write(folder, order, *told)
        tracked = json.loads((folder.path / "tracked.json").read_text())
        for metrics in tracked["history"].values():
            metrics |= {"batch/groups": 16.0, "batch/constant_groups": 16.0}
        (folder.path / "tracked.json").write_text(json.dumps(tracked))

    monkeypatch.setattr(fakes, "write_results", written)
    ends = [line for key, line in progress_lines(driven(Bench(fast_path))) if key.endswith("-done")]
    assert ends
    assert all("it had nothing to learn from: in no step did rewards differ within a group" in line for line in ends)


def test_where_the_noise_is_known_the_one_training_is_enough(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(monkeypatch, KEPT)
    state = driven(Bench(fast_path, design=design(16), noise=plan(seeds=())))
    assert [run.spec.arm for run in state.runs_in("noise")] == [PLUMBING_ARM]
    assert state.verdicts


def test_what_passed_is_known_to_later_studies_and_says_nothing_of_noise(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing(monkeypatch, KEPT)
    bench = Bench(fast_path, design=design(16), noise=plan())
    state = driven(bench)
    with closing(EventLog(bench.home.database)) as log:
        bank = NoiseBank.of(log)
    job = Job.model_validate(base_job())
    assert not bank.unchecked(job)
    assert bank.unchecked(job.model_copy(update={"model": TinyModel(hidden_size=32)}))
    still = plumbing_run(state)
    assert still is not None
    assert still.run_id not in {seen.run for seen in bank.observations}


def test_of_a_run_whose_server_nobody_asked_later_studies_know_nothing(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing(monkeypatch, None)
    state = driven(Bench(fast_path, design=design(16), noise=plan(seeds=())))
    assert state.runs_in("noise")[0].status == "collected"
    assert NoiseBank.of_study(state).unchecked(Job.model_validate(base_job()))


def test_the_default_jobs_of_the_built_in_environments_were_seen_to_change_nothing() -> None:
    shipped = shipped_bank()
    assert shipped.checked == {(name, model_key(Job(environment=name))) for name in ("guess", "arith")}
    assert shipped.unchecked(Job(backend="fake"))


def test_a_bank_that_says_nothing_of_machinery_asks_for_nothing() -> None:
    assert not NoiseBank().unchecked(Job())


def test_old_plans_hash_as_before() -> None:
    assert "plumbing" not in noise_plan().model_dump(mode="json")
    assert noise_hash(noise_plan()) != noise_hash(plan())


def test_a_learner_that_moves_weights_at_a_learning_rate_of_0_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ProcessGroup.start

    async def started(
        processes: ProcessGroup, name: str, module: str, *arguments: str, log: Path, **environment: str
    ) -> ManagedProcess:
        if module == "swarm.server":
            environment |= {"PYTHONPATH": str(ROOT)}
            module = "tests.research.moving_server"
        return await start(processes, name, module, *arguments, log=log, **environment)

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
    state = driven(bench)
    assert trained(state) == [PLUMBING_ARM]
    assert state.concluded_reason is not None
    assert "invalid(plumbing): 3 training steps with a learning rate of 0 changed the weights" in state.concluded_reason
