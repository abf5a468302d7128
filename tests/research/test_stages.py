"""A study's stages: A/A runs, screen, looks, replication; and what a budget, a veto or a spoilt file does in each."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from research.controller import interventions
from research.errors import BadInput
from research.runs.files import AttemptSpec
from research.scheduler.steps import VETO_CODE
from studies import EventType, StudyLog, StudyState, fold
from studies.records.design import Design
from studies.records.procedure import InterimAnalysis, Phase
from tests.research.bench import STUDY, Bench, scratch
from tests.research.designs import design, every_stage, noise_plan, screened


def finished(bench: Bench) -> StudyState:
    return bench.drive(bench.loop()).state


def counts(state: StudyState) -> dict[Phase, int]:
    return dict(Counter(run.spec.phase for run in state.runs.values()))


@pytest.fixture(scope="module")
def whole() -> StudyState:
    with scratch() as folder:
        bench = Bench(folder, design=every_stage(), noise=noise_plan())
        state = finished(bench)
        assert hashlib.sha256((bench.home.study(STUDY) / "design.lock").read_bytes()).hexdigest() == state.design_hash
        return state


def test_a_study_goes_through_every_stage(whole: StudyState) -> None:
    assert whole.status == "concluded"
    assert counts(whole) == {"noise": 2, "screen": 5, "confirm": 8, "replicate": 4}
    assert sorted(whole.candidates) == ["group_size=16", "group_size=32", "group_size=4"]
    assert whole.selection.kept == ("group_size=16",)
    assert [(v.look, v.final) for v in (*whole.interim, *whole.verdicts)] == [(1, False), (2, False), (3, True)]
    assert [(v.hypothesis, v.phase, v.verdict) for v in whole.replications] == [("s1", "replicate", "supported")]
    assert [d.action for d in whole.decisions] == ["continue", "continue", "replicate", "conclude"]
    assert set(whole.prepared) == {"noise", "confirm", "replicate"}


def test_runs_carry_the_lock_and_settings_of_their_stage_and_what_a_screen_saw_feeds_no_claim(
    whole: StudyState,
) -> None:
    for run in whole.runs.values():
        assert run.spec.design_hash == (whole.noise_hash if run.spec.phase == "noise" else whole.design_hash)
    screening = whole.runs_in("screen")
    assert {run.spec.job["steps"] for run in screening} == {1, 2}
    found = {(run.spec.seed, run.spec.metric.split, run.spec.metric.key) for run in screening}
    assert found == {(7, "search", "search/success")}
    assert {run.spec.environment for run in whole.runs_in("replicate")} == {"arith"}
    assert {run.spec.seed for run in whole.runs_in("confirm")} == {101, 102, 103, 104}
    (verdict,) = whole.verdicts
    claim = (verdict.hypothesis, verdict.look, verdict.verdict, verdict.n_control, verdict.n_treatment)
    assert claim == ("s1", 3, "supported", 4, 4)
    assert set(whole.values("group_size=16")) == {run.run_id for run in whole.runs_of("group_size=16")}
    assert len(whole.values("group_size=16", phase="screen")) == 2


def test_a_screen_of_which_nothing_could_be_measured_ends_without_a_claim(fast_path: Path) -> None:
    bench = Bench(fast_path, lambda order: "died" if order.spec.phase == "screen" else "ok", design=screened())
    state = finished(bench)
    assert (state.status, state.selection, state.verdicts) == ("concluded", None, ())
    assert ("no candidate" in str(state.concluded_reason), counts(state)) == (True, {"screen": 3})


def spend_in(phase: Phase, path: Path, chosen: Design, after: int) -> tuple[Bench, StudyState]:
    """Use up the budget when so many runs of a phase were collected; the rest of its attempts never end."""
    ended: set[str] = set()

    def script(order: AttemptSpec) -> str:
        if order.spec.phase == phase and order.run_id not in ended:
            if len(ended) >= after:
                return "never"
            ended.add(order.run_id)
        return "ok"

    bench = Bench(path, script, design=chosen, noise=noise_plan())
    loop = bench.loop()
    bench.until(lambda state: len(ended) >= after and any(run.active for run in state.runs_in(phase)), loop)
    bench.clock.advance(600)
    return bench, bench.drive(loop).state


@pytest.mark.parametrize(("phase", "after"), [("noise", 1), ("screen", 2)])
def test_a_stage_that_the_budget_cuts_short_ends_without_claims(fast_path: Path, phase: Phase, after: int) -> None:
    bench, state = spend_in(phase, fast_path, every_stage(), after)
    assert (state.status, "budget" in str(state.stopped_reason)) == ("stopped", True)
    assert (state.verdicts, [run for run in state.runs.values() if run.active]) == ((), [])
    if phase == "screen":
        assert state.report is not None
        bench.append(EventType.STUDY_RESUMED, command=[])
        resumed = finished(bench)
        assert "screen was decided" in str(resumed.concluded_reason)


def amended(bench: Bench, seconds: float) -> StudyState:
    interventions.change_budget(StudyLog(bench.log, STUDY), seconds, "slower than priced")
    bench.append(EventType.STUDY_RESUMED, command=[])
    bench.sandbox.script = lambda order: "ok"
    return finished(bench)


def test_a_look_that_the_budget_cuts_short_is_judged_on_what_is_there_and_the_next_with_more_budget_on_all_runs(
    fast_path: Path,
) -> None:
    bench, state = spend_in("confirm", fast_path, design(16, spending="planned"), 5)
    assert (state.status, state.report is not None) == ("stopped", True)
    assert [v.look for v in (*state.interim, *state.verdicts)] == [1, 2]
    assert [run for run in state.runs.values() if run.invalid] == []  # more budget may carry them
    with pytest.raises(BadInput, match="has used"):
        interventions.change_budget(StudyLog(bench.log, STUDY), state.worked_s - 1, "enough seen")
    begun = {run.run_id for run in state.runs.values() if run.attempts}
    state = amended(bench, 5000.0)  # the look that was cut short has spent its level
    assert (state.status, state.amendments[0].after_data) == ("concluded", True)
    assert [(v.look, v.n_control, v.n_treatment, v.exploratory) for v in state.verdicts] == [(3, 4, 4, False)]
    assert [run for run in state.runs.values() if run.invalid] == []
    assert max(len(state.runs[run].attempts) for run in begun) == 2


def test_the_last_look_once_cut_short_is_judged_again_on_all_runs_as_exploratory(fast_path: Path) -> None:
    bench, state = spend_in("confirm", fast_path, design(32, looks=(), decision_table=()), 5)
    assert [(v.verdict, state.is_settled(v.hypothesis)) for v in state.verdicts] == [("inconclusive", False)]
    state = amended(bench, 5000.0)
    assert [(v.n_control, v.n_treatment, v.exploratory) for v in state.verdicts] == [(4, 4, True)]


def test_a_budget_that_is_lowered_after_results_makes_verdicts_exploratory(fast_path: Path) -> None:
    looks = (InterimAnalysis(seeds=2, alpha=0.0001), InterimAnalysis(seeds=4, alpha=0.04))
    cut = lambda order: "never" if order.spec.seed == 104 else "ok"  # noqa: E731
    lowered = Bench(fast_path, cut, design=design(16, looks=looks, spending="planned"))
    loop = lowered.loop()
    lowered.until(lambda state: len(state.values("group_size=16")) == 3, loop)
    interventions.change_budget(StudyLog(lowered.log, STUDY), loop.state().worked_s, "enough seen")
    state = lowered.drive(loop).state
    assert [v.exploratory for v in state.verdicts] == [True]


def test_no_run_begins_that_by_its_price_would_end_after_the_budget(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16), budget_s=25.0)
    bench.slow(10, tick_s=1)
    state = finished(bench)
    assert state.status == "stopped"
    assert "run takes about 10 s" in str(state.stopped_reason)
    for at, event in enumerate(bench.events()):
        if event.type is EventType.ATTEMPT_LAUNCHED:
            assert fold(bench.events()[: at + 1]).worked_s <= 15.0
    assert state.report is not None


@pytest.mark.parametrize("most", [1, 4, 9, 12, 17])
def test_runs_of_every_phase_count_against_the_number_of_runs(fast_path: Path, most: int) -> None:
    state = finished(Bench(fast_path, design=every_stage(), noise=noise_plan(), max_runs=most))
    assert (len(state.runs), state.status) == (most, "stopped")
    assert f"all {most} runs are" in str(state.stopped_reason)
    assert {run.status for run in state.runs.values()} <= {"collected", "invalid"}


def test_a_vetoed_hypothesis_gets_no_more_runs_and_is_judged_on_what_is_there(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16, 32))
    loop = bench.loop()
    bench.until(lambda state: bool(state.interim or state.verdicts), loop)
    bench.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="hacked")
    state = bench.drive(loop).state
    found = [(v.hypothesis, v.look, v.verdict) for v in state.verdicts]
    assert (state.status, found) == ("concluded", [("h1", 1, "inconclusive"), ("h2", 3, "inconclusive")])
    assert len(state.values("group_size=16")) <= 3  # two, and what had finished by then
    assert len(state.values("group_size=32")) == 4
    assert {run.status for run in state.runs.values()} <= {"collected", "invalid"}


@pytest.mark.parametrize("harm", ["lock", "evidence"])
def test_an_invalid_verdict_that_no_seed_can_heal_gets_no_more_seeds(fast_path: Path, harm: str) -> None:
    bench = Bench(fast_path, design=design(16))
    loop = bench.loop()
    state = bench.until(lambda state: any(run.collected for run in state.runs_of("group_size=16")), loop)
    collected = next(run.collected for run in state.runs_of("group_size=16") if run.collected is not None)
    path = bench.home.study(STUDY) / ("design.lock" if harm == "lock" else collected["evaluation"]["path"])
    path.write_text(path.read_text() + " ")
    state = bench.drive(loop).state
    assert [(v.look, v.verdict) for v in state.verdicts] == [(1, "invalid")]
    assert [(d.action, d.look) for d in state.decisions if d.hypothesis] == [("settle", 1)]
    assert (state.status, counts(state)) == ("concluded", {"confirm": 4})  # the first look's, and none after it


def test_an_amendment_between_two_looks_ends_no_run_of_the_next(fast_path: Path) -> None:
    def script(order: AttemptSpec) -> str:
        late = order.spec.seed == 103
        return "never" if late else "failed" if order.spec.job["group_size"] == 16 and order.spec.seed == 101 else "ok"

    bench = Bench(fast_path, script, design=design(16, exclusions=(), decision_table=()))
    loop = bench.loop()
    before = bench.until(lambda state: [r for r in state.runs.values() if r.active and r.spec.seed == 103], loop)
    assert [(v.verdict, v.final) for v in before.verdicts] == [("invalid", False)]
    code = next(run.invalid[0] for run in before.runs.values() if run.invalid)
    interventions.accept_violation(StudyLog(bench.log, STUDY), code, "looked at, and harmless")
    after = loop.tick().state
    assert len(after.superseded) == 1
    assert VETO_CODE not in {run.invalid[0] for run in after.runs.values() if run.invalid}
    assert {run.status for run in after.runs.values() if run.spec.seed == 103} == {"running"}
