"""Tests of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.controller.progress import progress_lines
from research.scheduler.required_runs import find_failure
from research.scheduler.steps import END_SCREEN, NO_MORE_CANDIDATES, SHRINK_RULE
from studies import EventType, StudyState
from studies.log.entries import BUDGET_EXHAUSTED, AttemptState, AttemptStatus, RunState
from studies.log.fold import fold
from studies.records.design import Design, Metric, RunSpec
from studies.records.procedure import Amendment, Replication, Rung, Screen, ScreenField
from studies.records.runs import EXCLUDED_CODES, GENERATED_CODE_FAILED, INVALID_CODES, WITHIN_REACH_OF_CODE, WORST_CODES
from studies.statistics.power import plan_analyses
from tests.research.bench import Bench, Cut
from tests.research.designs import design, rate, screened

SPEC = RunSpec(
    study="s1", design_hash="d" * 64, arm="a", seed=1, environment="guess", job={},
    metric=Metric(meaning="share of hidden tasks solved", episodes=64),
)  # fmt: skip
CODED = SPEC.model_copy(update={"code": "def reward(): ..."})


def run(*codes: str, spec: RunSpec = SPEC, status: AttemptStatus = "failed", **collected: Any) -> RunState:
    attempts = tuple(AttemptState(n, f"a{n}", "", status, code, "why") for n, code in enumerate(codes, 1))
    return RunState(spec.run_id, spec, attempts, collected=collected or None)


@given(st.lists(st.sampled_from(EXCLUDED_CODES), min_size=1, max_size=5), st.integers(1, 5))
def test_a_failed_machine_is_tried_again_as_often_as_the_lock_says(codes: list[str], most: int) -> None:
    found = find_failure(run(*codes), most)
    assert (found is None) == (len(codes) < most)
    assert found is None or found.code == codes[-1]


@pytest.mark.parametrize("code", [*WORST_CODES, "evidence_changed", "evidence_missing", "not_measurable"])
def test_what_another_try_could_only_improve_is_not_tried_again(code: str) -> None:
    assert find_failure(run(code), 3).code == code
    assert code not in EXCLUDED_CODES


@pytest.mark.parametrize("code", sorted(WITHIN_REACH_OF_CODE))
def test_an_end_that_generated_code_can_bring_about_is_in_no_class(code: str) -> None:
    for before in ((), ("lost", "lost")):  # the last try is no way out either
        found = find_failure(run(*before, code, spec=CODED), 3)
        assert (found.code, code in found.reason) == (GENERATED_CODE_FAILED, True)
    assert found.code in {*INVALID_CODES} - {*EXCLUDED_CODES, *WORST_CODES}  # so that its verdict is invalid
    assert find_failure(run(code), 3) is None  # without generated code it is a machine's failure


NOTE = {"code": "entropy_collapse", "step": 3, "sentence": "low", "effect": "note"}
NAN = {"code": "training_nan", "step": 5, "sentence": "no number", "effect": "worst"}


@pytest.mark.parametrize(("ended", "failure"), [
    (run("stopped", status="stopped"), None), (run("ok", status="finished"), None),
    (run("ok", status="finished", alarms=[NOTE]), None),
    (run("ok", status="finished", snapshot={}, evaluation={}), None),  # a log from before alarms
    (run("ok", status="finished", alarms=[NOTE, NAN]), ("training_nan", "no number")),
])  # fmt: skip
def test_a_run_falls_by_an_alarm_that_leaves_nothing_to_measure_and_by_no_stop(ended: RunState, failure: Any) -> None:
    assert find_failure(ended, 1) == failure


def wide() -> Design:
    knobs = (ScreenField(field="group_size", values=(4, 8, 16, 32)), ScreenField(field="epochs", values=(1, 2, 3, 4)))
    rungs = (Rung(steps=3, keep=1),)
    return screened(screen=Screen(knobs=knobs, sampler="grid", candidates=12, initial=1, rungs=rungs, seed=7))


def slow(path: Path, chosen: Design, *, budget_s: float = 400, seconds: float = 60, most: int | None = None) -> Bench:
    bench = Bench(path, design=chosen, budget_s=budget_s, max_runs=most)
    bench.slow(seconds, tick_s=seconds / 6)
    return bench


def shrunk(state: StudyState) -> list[str]:
    return [decision.action for decision in state.decisions if decision.rule == SHRINK_RULE]


def test_a_screen_of_slow_runs_leaves_the_confirmation_its_time_and_says_once_what_is_given_up(fast_path: Path) -> None:
    bench = slow(fast_path, wide())
    state = bench.drive(bench.loop())
    assert state.status == "concluded"
    assert state.verdicts  # the confirmation has its verdict
    assert [len(state.values(arm.name)) for arm in state.design.arms] == [4, 4] if state.design else False
    assert 2 <= len(state.candidates) < 12
    assert state.worked_s <= 400
    assert shrunk(state) == ["shorten the screen", NO_MORE_CANDIDATES]
    assert (state.design_hash, state.locked_design) == (wide().hash(), wide())  # the lock and its price stay
    assert f"of {len(state.candidates)} candidates" in state.selection.reason
    events = bench.events()
    first_end = next(at for at, event in enumerate(events) if event.type is EventType.ATTEMPT_ENDED)
    decided = next(at for at, event in enumerate(events) if event.type is EventType.DECISION_TAKEN)
    between = {event.type for event in events[first_end:decided]}
    assert between <= {EventType.ATTEMPT_ENDED, EventType.RUN_COLLECTED, EventType.MEASUREMENT_RECORDED}
    reason = next(decision.reason for decision in state.decisions if decision.rule == SHRINK_RULE)
    assert ("about 60 s" in reason, "lock 10 s" in reason) == (True, True)
    lines = [line for _, line in progress_lines(state) if SHRINK_RULE in line or "shorten" in line]
    assert (len(lines), reason in lines[0]) == (2, True)


def test_what_an_older_version_gave_up_of_its_screen_is_not_ranked(fast_path: Path) -> None:
    bench = Bench(fast_path, design=wide())
    with pytest.raises(Cut):
        bench.drive(bench.loop(33))
    bench.append(EventType.DECISION_TAKEN, rule=SHRINK_RULE, action=END_SCREEN, reason="no time")
    left = [run for run in fold(bench.events()).runs_in("screen") if not run.measurements]
    for given_up in left:
        bench.append(EventType.RUN_INVALIDATED, run_id=given_up.run_id, code=BUDGET_EXHAUSTED, reason="no time")
    state = bench.drive(bench.loop())
    assert left
    assert state.selection.scores.keys() == state.candidates.keys() - {run.spec.arm for run in left}


def test_what_is_given_up_follows_from_times_and_never_from_results(fast_path: Path) -> None:
    taken = []
    for number, values in enumerate((rate, lambda spec: 1 - rate(spec))):
        bench = slow(fast_path / str(number), wide())
        bench.sandbox.rate = values
        state = bench.drive(bench.loop())
        taken.append((list(state.candidates), [(d.action, d.reason) for d in state.decisions if d.rule == SHRINK_RULE]))
    assert taken[0] == taken[1]


@pytest.mark.slow
def test_the_confirmation_is_kept_wherever_a_controller_is_killed(fast_path: Path) -> None:
    for at in (11, 40, 73):
        bench = slow(fast_path / str(at), wide())
        with pytest.raises(Cut):
            bench.drive(bench.loop(at, written=at % 2 == 1))
        state = bench.drive(bench.loop())
        assert state.status == "concluded"
        assert [(v.n_control, v.n_treatment) for v in state.verdicts] == [(4, 4)]
        assert len(state.candidates) < 12
        assert len(set(shrunk(state))) == len(shrunk(state))  # what is given up is said once


def test_a_replication_that_is_not_affordable_is_not_begun_and_made_with_more_budget(fast_path: Path) -> None:
    """Eight runs confirm and four replicate; at 30 s each, two at once, 120 s and 60 s of the 150 s that there are."""
    repeated = design(16, replication=Replication(environment="arith", seeds=(201, 202)))
    bench = slow(fast_path, repeated, budget_s=150, seconds=30)
    state = bench.drive(bench.loop())
    assert [(v.verdict, v.look) for v in state.verdicts] == [("supported", 3)]
    assert shrunk(state) == ["skip the replication"]
    assert not any(run.attempts for run in state.runs_in("replicate"))
    assert state.status == "stopped"
    assert "replication takes about" in str(state.stopped_reason)
    bench.append(EventType.DESIGN_AMENDED, amendment={"kind": "budget", "value": 900.0, "reason": "slower than priced"})
    bench.append(EventType.STUDY_RESUMED, command=[])
    state = bench.drive(bench.loop())
    assert (state.status, len(state.replications)) == ("concluded", 1)


def ending(
    path: Path, budget_s: float, *, amended_at: int = 99, value: float = 1.0, most: int | None = None
) -> StudyState:
    """Return where a study of three looks at 4, 6 and 8 seeds ends; `amended_at` results a person sets its budget."""
    own = {"test": "welch", "seeds": tuple(range(101, 109)), "looks": plan_analyses(8, 3), "noise": None}
    bench = slow(path, design(16, spending="reached", **own), budget_s=budget_s, most=most)
    bench.sandbox.rate = lambda spec: (13 + spec.seed * 7 % 5 + 2 * (spec.arm != "group_size=8")) / 32
    loop = bench.loop()
    bench.until(lambda state: state.stopped_reason or len(state.values("group_size=16")) == amended_at, loop)
    if amended_at < 99:
        amendment = Amendment(kind="budget", value=value, reason="enough", lowers=value < budget_s)
        bench.append(EventType.DESIGN_AMENDED, amendment=amendment.model_dump(mode="json"))
    return bench.drive(loop)


@pytest.mark.parametrize(("budget_s", "amended", "looks"), [
    (250, {}, [(1, 4, None), (2, 4, "budget")]), (310, {}, [(1, 4, None), (2, 5, "budget")]),
    (370, {}, [(1, 4, None), (2, 6, None), (3, 6, "budget")]), (190, {}, [(1, 3, "budget")]),
    (2000, {"most": 10}, [(1, 4, None), (2, 5, "budget")]),
    (2000, {"amended_at": 5}, [(1, 4, None), (2, 5, "hand")]), (2000, {"amended_at": 3}, [(1, 3, "hand")]),
    (300, {"amended_at": 3, "value": 400}, [(1, 4, None), (2, 6, None)]),
])  # fmt: skip
def test_where_the_budget_ends_all_that_is_there_has_a_last_look_and_what_a_hand_ended_none_at_the_same_runs(
    fast_path: Path, budget_s: float, amended: dict[str, Any], looks: list[tuple[int, int, str | None]]
) -> None:
    state = ending(fast_path, budget_s, **amended)
    found = (*state.interim, *state.verdicts)
    assert [(v.look, v.n_treatment, v.last and v.last.ended) for v in found] == looks
    assert (state.status, any(v.exploratory for v in found)) == ("stopped", False)
    if looks[-1][2] == "budget":
        assert found[-1].level < 0.957
    elif looks[-1][2] == "hand":
        assert found[-1].level > 0.99
