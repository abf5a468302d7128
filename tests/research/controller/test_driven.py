"""Progress counts what a study may come to, not what it has written down so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from research.controller.progress import StudyProgress, progress_of
from studies.records.design import Arm, Design, Hypothesis, Metric
from studies.records.procedure import InterimAnalysis
from studies.records.runs import EXCLUDED_CODES, WORST_CODES
from studies.report import build_report
from studies.report.summary import headline
from tests.research import designs
from tests.research.bench import MOST_TICKS, Bench
from tests.research.designs import design, every_stage, noise_plan
from tests.studies.measured import measured_design, metric
from tests.studies.synthetic import base_job


def watched(bench: Bench) -> Iterator[StudyProgress]:
    loop = bench.loop()
    for _ in range(MOST_TICKS):
        result = loop.tick()
        yield progress_of(result.state)
        if result.done:
            return
        bench.clock.advance(1)


def test_runs_of_looks_that_are_not_planned_yet_are_to_come(tmp_path: Path) -> None:
    seen = list(watched(Bench(tmp_path, design=design(16))))
    assert (seen[0].done, seen[0].most) == (0, 8)  # three looks of at most four seeds, of which two are planned
    assert [now.done for now in seen if now.percent == 100.0] == [seen[-1].done]
    assert str(seen[0]) == "0 of at most 8 runs done"
    assert seen[-1].concluded


@pytest.mark.slow
@pytest.mark.parametrize("staged", [False, True])
def test_nothing_is_whole_before_the_study_is(tmp_path: Path, staged: bool) -> None:
    bench = Bench(tmp_path, design=every_stage(), noise=noise_plan()) if staged else Bench(tmp_path)
    for now in watched(bench):
        assert now.done <= (now.most or 0)
        assert (now.percent == 100.0) == now.concluded


def bench(path: Path, asked: Metric) -> Bench:
    locked = measured_design(
        asked, seeds=3, base_job=base_job(backend="fake"), exclusions=EXCLUDED_CODES, counted_as_worst=WORST_CODES,
        scope_reached=asked.cut_at is not None,
    )  # fmt: skip
    made = Bench(path, design=locked)
    made.build_report = build_report
    return made


def test_runs_that_do_not_say_what_they_are_judged_by_are_given_up_at_once(tmp_path: Path) -> None:
    made = bench(tmp_path, metric("fact", of="turns"))
    state = made.drive(made.loop()).state
    assert [(run.invalid or ("",))[0] for run in state.runs.values()] == ["not_measurable"] * 6
    assert {len(run.attempts) for run in state.runs.values()} == {1}
    (run, *_) = state.runs.values()
    assert "hidden episode; found 256 of 256 without it" in run.invalid[1]
    assert state.verdicts[0].verdict == "invalid"


@pytest.mark.slow
def test_a_threshold_that_nobody_reaches_ends_with_shares_and_one_that_most_reach(tmp_path: Path) -> None:
    made = bench(tmp_path, metric("episodes", 0.99))
    state = made.drive(made.loop()).state
    head = headline(state)
    assert head.answers[0].sentence.startswith("Not reached by")
    assert "0.99" in head.answers[0].sentence
    assert head.next.why.startswith("which is faster")
    assert "--metric episodes:0." in head.next.command
    assert state.verdicts[0].estimate is None


A, B = "group_size", "learning_rate"


def crossed() -> Hypothesis:
    return designs.claim(
        variable="configuration", control={A: 8, B: 1e-3}, treatment={A: 16, B: 3e-3}, moderator=B
    )  # fmt: skip


def locked(claim: Hypothesis, **changes: Any) -> Design:
    arms = [
        Arm(name=f"arm-{n}", overrides=dict(value) if isinstance(value, dict) else {claim.variable: value})
        for n, value in enumerate(claim.settings)
    ]
    plain = designs.design(16).model_dump()
    given = {
        "hypotheses": [claim], "arms": arms, "control_arm": "arm-0", "shared_seeds": False, "noise": None,
        "test": "welch" if claim.kind == "difference" else "contrast", "equivalence_margin": 0.1,
        "looks": [InterimAnalysis(seeds=3, alpha=0.03), InterimAnalysis(seeds=4, alpha=0.04)], **changes,
    }  # fmt: skip
    return Design.model_validate({**plain, **given})
