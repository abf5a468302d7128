"""A study whose variable is the model: judged by what each run gains, told so first, and the same when verified."""

from __future__ import annotations

import pytest

from research.installation.base_job import model_folder
from research.proposals.arms import ComparedModels
from studies import StudyState
from studies.records.design import GAIN, MODEL, SUCCESS, Arm, Design, Metric, RunSpec
from studies.records.statements import statement
from studies.report import build_report
from tests.research.bench import Bench
from tests.research.designs import EPISODES, base_job, claim, design
from tests.research.model_folders import model_at


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


def rate(spec: RunSpec) -> float:
    """Return where a model ends: the large one gains four episodes, the small one twelve, and both up to three more."""
    return begins(spec) + ((4 if is_large(spec) else 12) + spec.seed % 4) / EPISODES


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, models: ComparedModels) -> tuple[Bench, StudyState]:
    bench = Bench(tmp_path_factory.mktemp("home"), design=compared(models))
    bench.sandbox.rate, bench.sandbox.begins = rate, begins
    bench.build_report = build_report
    return bench, bench.drive(bench.loop()).state


@pytest.mark.slow
def test_each_run_is_judged_by_its_success_after_less_that_before(studied: tuple[Bench, StudyState]) -> None:
    _, state = studied
    for run in state.runs.values():
        found = {key: entry.value for key, entry in run.measurements.items()}
        assert found.keys() == {SUCCESS + "/initial", SUCCESS, GAIN}
        assert found[GAIN] == pytest.approx(found[SUCCESS] - found[SUCCESS + "/initial"])
    (verdict,) = state.verdicts
    assert verdict.verdict == "refuted"  # by success after training alone it would be supported
    assert verdict.estimate == pytest.approx(-8 / EPISODES, abs=3 / EPISODES)
    assert all("model brings that" in line for line in verdict.violations)


def test_the_report_says_first_that_gains_are_compared_and_where_both_began(studied: tuple[Bench, StudyState]) -> None:
    bench, state = studied
    page = (bench.home.study(state.id) / "report.md").read_text()
    head = page[: page.index("## ")]
    assert "hidden success by 0.1 or more, compared" in head
    assert "mean gain in hidden success was" in head
    assert "model=small has 0.125, model=large has 0.500 as its success before training" in head
