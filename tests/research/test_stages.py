"""A study's stages: what comes before its lock, screen, pilot, looks, replication; and what a budget, a veto or a
spoilt file does in each.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from research.controller import interventions
from research.errors import BadInput
from research.runs.files import AttemptSpec
from studies import EventType, StudyLog, StudyState, fold
from studies.log.event import compose_event, row_of
from studies.proof import verify
from studies.records.design import Design
from studies.records.procedure import InterimAnalysis, Phase, PowerTarget
from studies.records.runs import VETOED
from studies.report.claims import describe_sizing
from studies.verdicts.judge import verdict_follows
from tests.research.bench import STUDY, Bench, scratch, unapproved
from tests.research.designs import design, every_stage, noise_plan, piloted, screened

NOW = datetime(2031, 3, 4, 12, tzinfo=UTC)


def finished(bench: Bench) -> StudyState:
    return bench.drive(bench.loop())


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
    assert counts(whole) == {"noise": 2, "screen": 3, "confirm": 8, "replicate": 4}
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
    assert {run.spec.job["steps"] for run in screening} == {1}
    found = {(run.spec.seed, run.spec.metric.split, run.spec.metric.key) for run in screening}
    assert found == {(7, "search", "search/success")}
    assert {run.spec.environment for run in whole.runs_in("replicate")} == {"arith"}
    assert {run.spec.seed for run in whole.runs_in("confirm")} == {101, 102, 103, 104}
    (verdict,) = whole.verdicts
    claim = (verdict.hypothesis, verdict.look, verdict.verdict, verdict.n_control, verdict.n_treatment)
    assert claim == ("s1", 3, "supported", 4, 4)
    assert set(whole.values("group_size=16")) == {run.run_id for run in whole.runs_of("group_size=16")}
    assert len(whole.values("group_size=16", phase="screen")) == 1


def test_a_screen_of_which_nothing_could_be_measured_ends_without_a_claim(fast_path: Path) -> None:
    bench = Bench(fast_path, lambda order: "died" if order.spec.phase == "screen" else "ok", design=screened())
    state = finished(bench)
    assert (state.status, state.selection, state.verdicts) == ("concluded", None, ())
    assert ("no candidate" in str(state.concluded_reason), counts(state)) == (True, {"screen": 3})


def test_a_pilot_sizes_the_design_and_the_proof_computes_its_size_again(fast_path: Path) -> None:
    bench = Bench(fast_path, design=piloted(16, promise=PowerTarget(power=0.8, effect=0.2)))
    state = finished(bench)
    kinds = [event.type for event in bench.events()]
    at = kinds.index(EventType.DESIGN_SIZED)
    assert (kinds[:at].count(EventType.RUN_PLANNED), kinds[:at].count(EventType.VERDICT_COMPUTED)) == (6, 0)
    sized, runs = state.sizing, kinds.count(EventType.RUN_PLANNED)
    assert (sized.df, sized.runs, sized.affordable) == (4, 6, 7)
    assert (len(state.design.seeds), state.locked_design.seeds[: sized.seeds]) == (sized.seeds, state.design.seeds)
    assert 6 <= runs <= 2 * sized.seeds
    assert state.verdicts[0].look <= len(sized.looks)
    folder = bench.home.study(STUDY)
    rows = [row_of(event) for event in bench.events() if event.type is not EventType.REPORT_BUILT]
    assert "sizing" in verify(STUDY, rows, folder).held
    said = fold(bench.events()[: at + 1])
    told = describe_sizing(said)
    assert "less what an effect of 0.200 adds to it" in told
    assert "arms were not told apart" in told
    before, sizing = bench.events()[:at], bench.events()[at].payload
    for name, false in (("sd", 0.5), ("affordable", 8)):
        forged = compose_event(
            STUDY, EventType.DESIGN_SIZED, {**sizing, name: false}, after=before[-1], actor="system", at=NOW
        )
        drifts = verify(STUDY, [row_of(event) for event in (*before, forged)], folder).drifts
        assert [f"{name} is {false} in the log" in drift.difference for drift in drifts if "sizing" in drift.place] == [
            True
        ]


@pytest.mark.parametrize(("limits", "affordable"), [({"max_runs": 8}, 4), ({"budget_s": 45.0}, 4), ({}, 7)])
def test_a_pilot_leads_to_no_more_seeds_than_time_and_runs_carry(
    fast_path: Path, limits: dict[str, float], affordable: int
) -> None:
    bench = Bench(fast_path, design=piloted(16), **limits)
    bench.slow(10.0, 1.0)
    state = bench.until(lambda state: state.sizing is not None)
    assert state.sizing.affordable == affordable
    assert state.sizing.seeds <= affordable < (state.sizing.needed or 8)
    assert ("The budget carries" in describe_sizing(state)) == bool(limits)


def test_who_amends_the_budget_after_the_pilot_began_does_not_choose_the_size(fast_path: Path) -> None:
    bench = Bench(fast_path, design=piloted(16, promise=PowerTarget(power=0.8, effect=0.02)))
    bench.slow(60.0, 10.0)
    loop = bench.loop()
    bench.until(lambda state: len(state.values("group_size=16")) == 2, loop)
    interventions.change_budget(StudyLog(bench.log, STUDY), loop.state().worked_s + 130, "enough seen")
    state = bench.until(lambda state: state.sizing is not None, loop)
    assert (state.sizing.affordable, state.sizing.seeds) == (7, 7)
    at = [event.type for event in bench.events()].index(EventType.DESIGN_SIZED)
    before, false = bench.events()[:at], {**bench.events()[at].payload, "affordable": 4}
    forged = compose_event(STUDY, EventType.DESIGN_SIZED, false, after=before[-1], actor="system", at=NOW)
    drifts = verify(STUDY, [row_of(event) for event in (*before, forged)], bench.home.study(STUDY)).drifts
    assert "affordable is 4 in the log, 7 computed" in str(drifts)


def test_a_claim_that_had_its_pilot_when_the_budget_ended_stands_as_it_was_judged(fast_path: Path) -> None:
    bench, state = spend_in("confirm", fast_path, piloted(16, 32), 8)
    assert [(v.verdict, v.n_treatment) for v in state.verdicts] == [("supported", 3), ("inconclusive", 2)]
    judged = state.verdicts[0]
    state = amended(bench, 5000.0)
    assert (judged in state.verdicts, state.sizing is not None, len(state.design.looks) > 1) == (True, True, True)
    assert all(verdict_follows(state, verdict) for verdict in state.verdicts)


def test_a_claim_that_is_vetoed_in_its_pilot_is_judged_at_the_level_of_an_early_look(fast_path: Path) -> None:
    bench = Bench(fast_path, design=piloted(16))
    bench.until(lambda state: sum(bool(run.measurements) for run in state.runs.values()) >= 4)
    bench.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="seen enough")
    state = finished(bench)
    (verdict,) = state.verdicts
    assert (state.status, verdict.look, state.sizing.seeds) == ("concluded", 1, 7)
    assert 1 - verdict.level < 0.005
    assert len([run for run in state.runs.values() if run.attempts]) <= 6


@pytest.mark.parametrize(("mode", "stages"), [("plan", ["design", "sized"]), ("stages", ["pilot", "look 2", "look 3"])])
def test_whoever_approves_is_asked_again_once_the_pilot_says_how_many_runs_follow(
    fast_path: Path, mode: str, stages: list[str]
) -> None:
    fine = piloted(32, promise=PowerTarget(power=0.8, effect=0.05))
    bench = Bench(fast_path, design=fine, approve=mode)
    bench.approves = True
    state = finished(bench)
    assert [asked.question.stage for asked in state.questions][: len(stages)] == stages
    first, then = (asked.question for asked in state.questions[:2])
    assert ("say how many" in first.would, then.runs > 0, "seeds each" in then.would) == (True, True, True)
    unapproved(bench.events())


def test_a_pilot_of_which_every_run_fails_is_the_whole_study(fast_path: Path) -> None:
    state = finished(Bench(fast_path, lambda order: "died", design=piloted(16)))
    assert (state.status, state.sizing.seeds, len(state.design.looks)) == ("concluded", 3, 1)
    assert [verdict.verdict for verdict in state.verdicts] == ["invalid"]


def test_a_budget_that_ends_within_the_pilot_judges_what_is_there_and_more_of_it_goes_on(fast_path: Path) -> None:
    bench, state = spend_in("confirm", fast_path, piloted(16), 5)
    assert (state.status, state.sizing, state.report is not None) == ("stopped", None, True)
    assert [(v.look, v.n_control + v.n_treatment) for v in state.verdicts] == [(1, 5)]
    state = amended(bench, 5000.0)
    assert (state.status, state.sizing is None) == ("concluded", False)
    assert state.verdicts[0].n_control >= 3


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
    return bench, bench.drive(loop)


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
    state = lowered.drive(loop)
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


@pytest.mark.parametrize("most", [1, 4, 9, 12, 15])
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
    state = bench.drive(loop)
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
    state = bench.drive(loop)
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
    after = loop.tick()
    assert len(after.superseded) == 1
    assert VETOED not in {run.invalid[0] for run in after.runs.values() if run.invalid}
    assert {run.status for run in after.runs.values() if run.spec.seed == 103} == {"running"}
