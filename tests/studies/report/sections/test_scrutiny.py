from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from studies import EventType, ReportError, StudyState
from studies.checks.job_fields import confounded, off_design
from studies.records.design_parts import Replication
from studies.report import build_report
from studies.report.parts.evidence import Evidence, gather
from studies.report.sections.accounting import run_table
from studies.report.sections.scrutiny import checks, threats
from studies.verdicts.judge import judge_hypothesis
from studies.verdicts.recompute import verdict_follows
from tests.studies.synthetic import Synthetic, design, hypothesis


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


def said(state: StudyState, evidence: Evidence) -> str:
    return "\n".join(
        f"{remark.level}: {remark.text}" for remark in (*checks(state, evidence), *threats(state, evidence))
    )


def with_job(state: StudyState, arm: str, **changes: object) -> StudyState:
    """Return a state whose runs of `arm` were made with other job fields than the design declares."""
    runs = {
        run_id: replace(run, spec=run.spec.model_copy(update={"job": {**run.spec.job, **changes}}))
        if run.spec.arm == arm
        else run
        for run_id, run in state.runs.items()
    }
    return replace(state, runs=runs)


def test_a_clean_study_passes_every_check(study: Synthetic) -> None:
    state = study.whole()
    levels = {remark.level for remark in checks(state, gather(state, study.folder))}
    assert levels == {"passed", "note"}
    assert confounded(state) == {}
    assert off_design(state) == {}


def test_a_confound_between_the_arms_is_found_and_named(study: Synthetic) -> None:
    clean = study.whole()
    state = with_job(clean, "group_size=16", learning_rate=3e-3)
    assert confounded(state) == {"h1": ("learning_rate",)}
    text = said(state, gather(clean, study.folder))
    assert "failed: The arms of h1 differ in more than its variable: learning_rate." in text
    assert "in nothing else" not in text


def test_both_arms_off_the_design_alike_are_found_though_they_do_not_differ(study: Synthetic) -> None:
    clean = study.whole()
    state = with_job(with_job(clean, "group_size=16", steps=39), "group_size=4", steps=39)
    assert confounded(state) == {}
    assert off_design(state) == {"group_size=4": ("steps",), "group_size=16": ("steps",)}
    assert "failed: Runs of group_size=4 differ from the locked design in steps." in said(
        state, gather(clean, study.folder)
    )


def test_a_verdict_that_does_not_follow_from_its_runs_refuses_the_report(study: Synthetic) -> None:
    state = study.whole()
    assert verdict_follows(state, state.verdicts[0])
    for change in ({"estimate": 0.5}, {"verdict": "refuted"}, {"inputs_sha256": "0" * 64}, {"low": None}):
        forged = replace(state, verdicts=(state.verdicts[0].model_copy(update=change),))
        with pytest.raises(ReportError, match="does not follow from the runs"):
            build_report(forged, study.folder)


def test_unequal_training_and_retries_and_a_small_sample_are_threats(study: Synthetic) -> None:
    study.create()
    study.lock(design(seeds=2))
    specs = study.plan()
    study.launch(specs[0])
    study.end(specs[0], 1, "lost", "LOST", "vanished")
    study.run(specs[0], 2)
    for spec in specs[1:]:
        study.launch(spec)
        study.end(spec)
        study.collect(spec, steps=30 if spec.arm == "group_size=16" else 40)
    study.judge()
    state = study.state()
    text = said(state, gather(state, study.folder))
    assert f"1 run needed more than one attempt ({specs[0].run_id}: 2)" in text
    assert "different numbers of training steps (group_size=4: 40; group_size=16: 30)" in text
    assert "Few runs per arm (2 with group_size=4, 2 with group_size=16)" in text


def test_a_run_that_went_on_is_told_with_its_step_and_its_attempts(study: Synthetic) -> None:
    study.create()
    study.lock(design(seeds=2))
    resumed, *others = study.plan()
    study.launch(resumed)
    study.end(resumed, 1, "lost", "lost", "vanished")
    study.launch(resumed, 2, begins={"resumes": 1, "initial_sha256": "0" * 64, "why": "it was killed"})
    study.end(resumed, 2, resumed_at=17)
    study.collect(resumed, 2)
    for spec in others:
        study.run(spec)
    state = study.state()
    text = said(state, gather(state, study.folder))
    assert f"1 run went on where an earlier attempt had ended ({resumed.run_id}: 2 attempts, after step 17)" in text
    assert "On a CPU the weights are then bit-equal" in text
    assert "starts from nothing" not in text
    table = run_table(state)
    assert table is not None
    assert "2 (went on from attempt 1 after step 17) finished" in [cell.text for row in table.rows for cell in row][4]


def test_invalid_runs_are_counted_by_arm_and_code(study: Synthetic) -> None:
    study.create()
    study.lock(design(seeds=2))
    for spec in study.plan():
        code = "nan" if spec.arm == "group_size=16" else "lost"
        study.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code=code, reason="")
    text = said(study.state(), gather(study.state(), study.folder))
    assert "(2 runs of group_size=4 by lost, 2 runs of group_size=16 by nan)" in text


def test_a_large_study_at_the_ceiling_says_so_and_not_that_it_is_small(study: Synthetic) -> None:
    study.means, study.sd = {"group_size=4": 0.9, "group_size=16": 0.98}, 0.005
    state = study.whole(design((hypothesis(),), seeds=10))
    text = said(state, gather(state, study.folder))
    assert "group_size=16 solves nearly all hidden tasks" in text
    assert "Few runs" not in text


def test_a_verdict_on_a_replication_that_does_not_follow_refuses_the_report_too(study: Synthetic) -> None:
    setting = Replication(environment="arith", seeds=(71, 72))
    state = study.whole(design(replication=setting))
    forged = judge_hypothesis(state, "h1", look=1, phase="replicate").model_copy(update={"verdict": "supported"})
    with pytest.raises(ReportError, match="the replication of h1 does not follow from the runs"):
        build_report(replace(state, replications=(forged,)), study.folder)


def test_pages_at_wandb_are_linked_and_a_copy_that_differs_is_a_threat(study: Synthetic) -> None:
    state = study.whole()
    assert "Weights" not in build_report(state, study.folder).html.read_text()
    first, second, third = list(state.runs)[:3]
    page = "https://wandb.example/lab/ajet/runs/"
    for run_id, url, more in (
        (first, f"{page}{first}-a1", {"standing": "same"}),
        (second, f"{page}{second}-a1", {"standing": "differs", "reason": "step 3: loss is 1 at W&B, 2 in the log"}),
        (third, "javascript:alert(1)", {"standing": "lacking", "reason": "W&B has 2 of 3 steps"}),
    ):
        study.append(EventType.ATTEMPT_COPIED, run_id=run_id, attempt=1, url=url, **more)
    text = said(study.state(), gather(study.state(), study.folder))
    assert f"threat: W&B's copy of run {second}, attempt 1 differs from its log (step 3: loss is 1 at W&B" in text
    assert f"note: W&B's copy of run {third}, attempt 1 was not whole when last looked at: W&B has 2 of 3" in text
    report = build_report(study.state(), study.folder)
    html = report.html.read_text()
    assert f'<a href="{page}{first}-a1">' in html
    assert 'href="javascript' not in html
    assert "as logged" in report.markdown.read_text()
