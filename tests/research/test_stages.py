"""A study's stages: A/A runs, screen, looks, replication; and what a budget, a veto or a spoilt file does in each."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.controller import interventions
from research.errors import BadInput
from research.runs.files import AttemptSpec
from research.scheduler.next_step import next_step
from research.scheduler.steps import BUDGET_CODE, VETO_CODE, Launch
from studies import EventType, StudyLog, StudyState, fold
from studies.records.design import Design
from studies.records.procedure import InterimAnalysis, Phase, Replication, Rule
from tests.research.bench import STUDY, Bench, scratch
from tests.research.designs import claim, design, every_stage, noise_plan, screened


def finished(bench: Bench) -> StudyState:
    return bench.drive(bench.loop()).state


def counts(state: StudyState) -> dict[Phase, int]:
    return dict(Counter(run.spec.phase for run in state.runs.values()))


def verdicts(state: StudyState) -> list[tuple[str, int, str]]:
    return [(v.hypothesis, v.look, v.verdict) for v in state.verdicts]


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
    assert verdicts(whole) == [("s1", 3, "supported")]
    assert [(v.hypothesis, v.phase, v.verdict) for v in whole.replications] == [("s1", "replicate", "supported")]
    assert [d.action for d in whole.decisions] == ["continue", "continue", "replicate", "conclude"]
    assert set(whole.prepared) == {"noise", "confirm", "replicate"}


def test_runs_carry_the_lock_of_their_stage_and_the_settings_of_their_phase(whole: StudyState) -> None:
    for run in whole.runs.values():
        assert run.spec.design_hash == (whole.noise_hash if run.spec.phase == "noise" else whole.design_hash)
    screening = whole.runs_in("screen")
    assert {run.spec.job["steps"] for run in screening} == {1, 2}
    assert {(run.spec.seed, run.spec.metric.split, run.spec.metric.key) for run in screening} == {
        (7, "search", "search/success")
    }
    assert {run.spec.environment for run in whole.runs_in("replicate")} == {"arith"}
    assert {run.spec.seed for run in whole.runs_in("confirm")} == {101, 102, 103, 104}


def test_what_a_screen_saw_feeds_no_claim(whole: StudyState) -> None:
    (verdict,) = whole.verdicts
    assert (verdict.n_control, verdict.n_treatment) == (4, 4)
    assert set(whole.values("group_size=16")) == {run.run_id for run in whole.runs_of("group_size=16")}
    assert len(whole.values("group_size=16", phase="screen")) == 2


def test_an_arm_that_is_settled_gets_no_more_runs_while_the_control_goes_on(fast_path: Path) -> None:
    looks = tuple(look.model_copy(update={"alpha": 0.02}) for look in design(16).looks)
    bench = Bench(fast_path, design=design(16, 32, looks=looks))
    state = finished(bench)
    assert verdicts(state) == [("h1", 1, "supported"), ("h2", 3, "inconclusive")]
    assert [len(state.runs_of(f"group_size={size}")) for size in (8, 16, 32)] == [4, 2, 4]


DOUBTFUL = claim(kill_if="verdict in ('inconclusive', 'invalid') and looks_left > 0")
SURE = Rule(name="sure", when="verdict == 'supported'", then="continue")


@pytest.mark.parametrize(
    ("changes", "rule"), [({"hypotheses": (DOUBTFUL,)}, "kill-condition"), ({"decision_table": (SURE,)}, "no-rule")]
)
def test_a_kill_condition_or_the_lack_of_a_rule_settles(fast_path: Path, changes: dict[str, Any], rule: str) -> None:
    state = finished(Bench(fast_path, design=design(16, **changes)))
    (decision,) = [d for d in state.decisions if d.hypothesis]
    assert (decision.rule, decision.action) == (rule, "settle")
    assert decision.reason.startswith("no rule of") == (rule == "no-rule")
    assert verdicts(state) == [("h1", 1, "inconclusive")]
    assert (state.status, counts(state)) == ("concluded", {"confirm": 4})


def test_a_design_without_looks_and_rules_decides_nothing_and_is_judged_once(fast_path: Path) -> None:
    plain = design(16, looks=(), decision_table=(), test="welch")
    state = finished(Bench(fast_path, design=plain))
    assert [d.action for d in state.decisions] == ["conclude"]
    assert [(v.look, v.final) for v in state.verdicts] == [(1, True)]
    assert counts(state) == {"confirm": 8}


def fails(*sizes: int, phase: Phase) -> Any:
    def script(order: AttemptSpec) -> str:
        return "died" if order.spec.phase == phase and order.spec.job["group_size"] in sizes else "ok"

    return script


def test_a_candidate_that_cannot_be_measured_is_not_kept(fast_path: Path) -> None:
    state = finished(Bench(fast_path, fails(16, phase="screen"), design=screened()))
    assert state.selection.kept == ("group_size=32",)
    (lost,) = state.runs_of("group_size=16", "screen")
    assert lost.status == "invalid"


def test_a_screen_of_which_nothing_could_be_measured_ends_without_a_claim(fast_path: Path) -> None:
    state = finished(Bench(fast_path, fails(4, 16, 32, phase="screen"), design=screened()))
    assert (state.status, state.selection, state.verdicts) == ("concluded", None, ())
    assert "no candidate" in str(state.concluded_reason)
    assert counts(state) == {"screen": 3}


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
    assert state.status == "stopped"
    assert "budget" in str(state.stopped_reason)
    assert (state.verdicts, [run for run in state.runs.values() if run.active]) == ((), [])
    if phase == "screen":
        assert state.report is not None
        bench.append(EventType.STUDY_RESUMED, command=[])
        resumed = finished(bench)
        assert "screen was decided" in str(resumed.concluded_reason)


def test_a_look_that_the_budget_cuts_short_is_judged_on_what_is_there(fast_path: Path) -> None:
    _, state = spend_in("confirm", fast_path, design(16), 5)
    assert state.status == "stopped"
    assert [v.look for v in (*state.interim, *state.verdicts)] == [1, 2]
    assert [run for run in state.runs.values() if run.invalid] == [], "more budget may carry them"
    assert state.report is not None


def amended(bench: Bench, seconds: float) -> StudyState:
    interventions.change_budget(StudyLog(bench.log, STUDY), seconds, "slower than priced")
    bench.append(EventType.STUDY_RESUMED, command=[])
    bench.sandbox.script = lambda order: "ok"
    return finished(bench)


def test_more_budget_after_it_was_used_up_makes_every_run(fast_path: Path) -> None:
    """The look that was cut short has spent its level: the next one is judged, on all runs."""
    bench, state = spend_in("confirm", fast_path, design(16), 5)
    begun = {run.run_id for run in state.runs.values() if run.attempts}
    state = amended(bench, 5000.0)
    assert state.status == "concluded"
    assert [(v.look, v.n_control, v.n_treatment, v.exploratory) for v in state.verdicts] == [(3, 4, 4, False)]
    assert [run for run in state.runs.values() if run.invalid] == []
    assert max(len(state.runs[run].attempts) for run in begun) == 2
    assert state.amendments[0].after_data


def test_the_last_look_once_cut_short_is_judged_again_on_all_runs_as_exploratory(fast_path: Path) -> None:
    bench, state = spend_in("confirm", fast_path, design(32, looks=(), decision_table=()), 5)
    assert [(v.verdict, state.is_settled(v.hypothesis)) for v in state.verdicts] == [("inconclusive", False)]
    state = amended(bench, 5000.0)
    assert [(v.n_control, v.n_treatment, v.exploratory) for v in state.verdicts] == [(4, 4, True)]


def test_what_a_claim_came_to_on_all_its_runs_stands_when_the_runs_of_another_are_made(fast_path: Path) -> None:
    bench, before = spend_in("confirm", fast_path, design(16, 64, looks=(), decision_table=()), 11)
    first = before.verdict_on("h1")
    assert (first.verdict, first.n_control, first.n_treatment) == ("supported", 4, 4)
    state = amended(bench, 5000.0)
    assert state.verdict_on("h1") == first
    assert [(v.n_treatment, v.exploratory) for v in state.verdicts] == [(4, False), (4, True)]


def test_a_study_that_goes_on_without_more_budget_concludes_on_what_there_is(fast_path: Path) -> None:
    bench, before = spend_in("confirm", fast_path, design(16), 5)
    bench.append(EventType.STUDY_RESUMED, command=[])
    state = finished(bench)
    assert (state.status, state.verdicts) == ("concluded", before.verdicts)
    assert {run.invalid[0] for run in state.runs.values() if run.invalid} == {BUDGET_CODE}


def test_a_budget_below_what_is_used_is_refused_and_a_lower_one_is_exploratory(fast_path: Path) -> None:
    bench, state = spend_in("confirm", fast_path, design(16), 5)
    with pytest.raises(BadInput, match="has used"):
        interventions.change_budget(StudyLog(bench.log, STUDY), state.worked_s - 1, "enough seen")
    amended(bench, 5000.0)
    looks = (InterimAnalysis(seeds=2, alpha=0.0001), InterimAnalysis(seeds=4, alpha=0.04))
    cut = lambda order: "never" if order.spec.seed == 104 else "ok"  # noqa: E731
    lowered = Bench(fast_path / "lowered", cut, design=design(16, looks=looks))
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
    assert len(state.runs) == most
    assert state.status == "stopped"
    assert f"all {most} runs are used up" in str(state.stopped_reason)
    assert all(run.status in ("collected", "invalid") for run in state.runs.values())


def test_a_vetoed_hypothesis_gets_no_more_runs_and_is_judged_on_what_is_there(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16, 32))
    loop = bench.loop()
    bench.until(lambda state: bool(state.interim or state.verdicts), loop)
    bench.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="known to be hacked")
    state = bench.drive(loop).state
    assert state.status == "concluded"
    assert verdicts(state) == [("h1", 1, "inconclusive"), ("h2", 3, "inconclusive")]
    assert len(state.values("group_size=16")) <= 3, "two, and what had finished by then"
    assert len(state.values("group_size=32")) == 4
    assert all(run.status in ("collected", "invalid") for run in state.runs.values())


def test_a_veto_ends_the_attempts_of_its_arm_alone(fast_path: Path) -> None:
    bench = Bench(fast_path, lambda order: "never", design=design(16, 32), parallel=3)
    loop = bench.loop()
    loop.tick()
    bench.append(EventType.HYPOTHESIS_VETOED, hypothesis="h2", reason="x")
    state = loop.tick().state
    assert {run.spec.arm: run.status for run in state.runs.values() if run.attempts} == {
        "group_size=8": "running", "group_size=16": "running", "group_size=32": "invalid",
    }  # fmt: skip
    assert {run.invalid[0] for run in state.runs.values() if run.invalid} == {VETO_CODE}


def test_a_study_whose_hypotheses_are_all_vetoed_ends(fast_path: Path) -> None:
    bench = Bench(fast_path, lambda order: "never", design=design(16))
    loop = bench.loop()
    loop.tick()
    bench.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="x")
    state = bench.drive(loop).state
    assert (state.status, verdicts(state)) == ("concluded", [("h1", 1, "invalid")])
    assert all(handle.ended is not None for handle in bench.sandbox.handles.values())


@pytest.mark.parametrize("harm", ["lock", "evidence"])
def test_an_invalid_verdict_that_no_seed_can_heal_gets_no_more_seeds(fast_path: Path, harm: str) -> None:
    bench = Bench(fast_path, design=design(16))
    loop = bench.loop()
    spoil(bench, loop, harm)
    state = bench.drive(loop).state
    assert [(v.look, v.verdict) for v in state.verdicts] == [(1, "invalid")]
    assert [(d.action, d.look) for d in state.decisions if d.hypothesis] == [("settle", 1)]
    assert counts(state) == {"confirm": 4}, "the first look's, and none after it"
    assert state.status == "concluded"


def spoil(bench: Bench, loop: Any, harm: str) -> None:
    state = bench.until(lambda state: any(run.collected for run in state.runs_of("group_size=16")), loop)
    collected = next(run.collected for run in state.runs_of("group_size=16") if run.collected is not None)
    name = "design.lock" if harm == "lock" else collected["evaluation"]["path"]
    path = bench.home.study(STUDY) / name
    path.write_text(path.read_text() + " ")


def test_an_amendment_that_accepts_spoilt_evidence_lets_the_looks_go_on(fast_path: Path) -> None:
    bench = Bench(fast_path, design=design(16, 32))
    loop = bench.loop()
    spoil(bench, loop, "evidence")
    bench.until(lambda state: any(d.action == "settle" for d in state.decisions), loop)
    before = loop.state()
    assert before.concluded_reason is None
    accept(bench, "evidence_changed")
    state = bench.drive(loop).state
    assert min(v.look for v in state.verdicts) > 1
    assert "invalid" not in {v.verdict for v in state.verdicts}


def test_an_invalid_verdict_that_more_seeds_may_heal_still_gets_them(fast_path: Path) -> None:
    def script(order: AttemptSpec) -> str:
        return "died" if order.spec.seed == 101 else "ok"

    state = finished(Bench(fast_path, script, design=design(16)))
    assert [(v.look, v.verdict) for v in state.interim][:1] == [(1, "invalid")]
    assert [v.look for v in state.verdicts] == [3]
    assert state.verdicts[0].verdict != "invalid"


def test_a_study_whose_budget_ended_during_its_aa_runs_goes_on_with_more(fast_path: Path) -> None:
    bench, state = spend_in("noise", fast_path, design(16), 1)
    assert (state.status, state.design) == ("stopped", None)
    bench.append(EventType.STUDY_RESUMED, command=[])
    assert bench.drive(bench.loop()).state.status == "stopped", "without more budget it stops again"
    state = amended(bench, 5000.0)
    assert (state.status, len(state.verdicts)) == ("concluded", 1)
    assert [run.status for run in state.runs_in("noise")] == ["collected", "collected"]


def test_a_replication_that_nothing_asked_for_has_no_runs(fast_path: Path) -> None:
    weak = design(32, replication=Replication(environment="arith", seeds=(201, 202)))
    state = finished(Bench(fast_path, design=weak))
    assert "replicate" not in counts(state)
    assert state.replications == ()


@given(seconds=st.floats(0, 100), parallel=st.integers(0, 3))
def test_the_next_step_follows_from_the_state_alone(whole: StudyState, seconds: float, parallel: int) -> None:
    assert next_step(whole, seconds, parallel) == next_step(whole, seconds, parallel)
    running = replace(whole, concluded_reason=None, report=None)
    assert not isinstance(next_step(running, seconds, parallel), Launch)


def accept(bench: Bench, target: str) -> None:
    amendment = {"kind": "accept", "target": target, "value": None, "reason": "looked at, and harmless"}
    bench.append(EventType.DESIGN_AMENDED, amendment=amendment)


def test_an_amendment_between_two_looks_ends_no_run_of_the_next(fast_path: Path) -> None:
    def script(order: AttemptSpec) -> str:
        late = order.spec.seed == 103
        return "never" if late else "failed" if order.spec.job["group_size"] == 16 and order.spec.seed == 101 else "ok"

    bench = Bench(fast_path, script, design=design(16, exclusions=(), decision_table=()))
    loop = bench.loop()
    before = bench.until(lambda state: [r for r in state.runs.values() if r.active and r.spec.seed == 103], loop)
    assert [(v.verdict, v.final) for v in before.verdicts] == [("invalid", False)]
    code = next(run.invalid[0] for run in before.runs.values() if run.invalid)
    accept(bench, code)
    after = loop.tick().state
    assert len(after.superseded) == 1
    assert VETO_CODE not in {run.invalid[0] for run in after.runs.values() if run.invalid}
    assert {run.status for run in after.runs.values() if run.spec.seed == 103} == {"running"}


def test_an_amendment_about_one_claim_ends_no_replication_of_another(fast_path: Path) -> None:
    def script(order: AttemptSpec) -> str:
        repeated = order.spec.phase == "replicate"
        return "never" if repeated else "failed" if order.spec.job["group_size"] == 32 else "ok"

    setting = Replication(environment="arith", seeds=(201, 202))
    bench = Bench(fast_path, script, design=design(16, 32, exclusions=(), replication=setting))
    loop = bench.loop()
    before = bench.until(lambda state: any(run.active for run in state.runs_in("replicate")), loop)
    assert {v.hypothesis: v.verdict for v in before.verdicts} == {"h1": "supported", "h2": "invalid"}
    accept(bench, "server_died")
    after = loop.tick().state
    assert [v.hypothesis for v in after.superseded] == ["h2"]
    assert {run.status for run in after.runs_in("replicate")} <= {"running", "planned"}
