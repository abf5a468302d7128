"""Runs are made longer once, for all arms alike, where a pilot's still rise together; no error rate is bent by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.controller import interventions
from studies import EventType, StudyLog, StudyState, fold
from studies.errors import LogCorrupt
from studies.log.event import compose_event, row_of
from studies.proof import verify
from studies.records.base import JsonValue
from studies.records.design import Design, Metric, RunSpec
from studies.records.procedure import Extension
from studies.report.claims import describe_length
from studies.statistics.comparison import welch
from studies.statistics.power import decide_steps
from studies.verdicts.judge import decide_length, verdict_follows
from tests.research.bench import STUDY, Bench, check_whole
from tests.research.designs import LONG, RISE_OF, SHORT, base_job, extending, rate

NOW = datetime(2031, 3, 4, 12, tzinfo=UTC)


def opposed(spec: RunSpec) -> float:
    """Return the success of a run: the treatment gains in long ones what it loses in short ones."""
    base = rate(spec.model_copy(update={"job": {**spec.job, "group_size": 8}}))
    return base + (0.0 if spec.job["group_size"] == 8 else 0.3 if spec.job["steps"] == LONG else -0.3)


def lengths(state: StudyState) -> Counter[JsonValue]:
    return Counter(run.spec.job["steps"] for run in state.runs.values())


def test_runs_that_rise_are_all_made_longer_and_the_verdict_reads_the_longer_alone(fast_path: Path) -> None:
    bench = Bench(fast_path, design=extending())
    bench.sandbox.rate = opposed
    state = bench.drive(bench.loop())
    kinds = [event.type for event in bench.events()]
    at, sized = kinds.index(EventType.LENGTH_DECIDED), kinds.index(EventType.DESIGN_SIZED)
    assert (kinds[:at].count(EventType.RUN_PLANNED), kinds[:sized].count(EventType.VERDICT_COMPUTED)) == (6, 0)
    assert (state.length.steps, state.length.rise, state.length.of) == (LONG, pytest.approx(0.1), 6)
    assert (kinds.count(EventType.LENGTH_DECIDED), lengths(state)[SHORT]) == (1, 6)
    assert {run.spec.job["steps"] for run in state.runs_in("confirm")} == {LONG}
    short = {(run.spec.arm, run.spec.seed) for run in state.runs.values() if not state.counts(run.spec)}
    assert short <= {(run.spec.arm, run.spec.seed) for run in state.runs_in("confirm")}, "anew, by the same seeds"
    (verdict,) = state.verdicts
    assert (verdict.verdict, verdict.estimate) == ("supported", pytest.approx(0.3, abs=0.02))
    assert verdict_follows(state, verdict)
    told = describe_length(state)
    assert ("so that all train 3: the first anew from their seeds" in told, "0.100" in told, "0.050" in told) == (
        True, True, True,
    )  # fmt: skip
    assert "where training success rises" in describe_length(fold(bench.events()[:at]))
    rows = [row_of(event) for event in bench.events() if event.type is not EventType.REPORT_BUILT]
    proof = verify(STUDY, rows, bench.home.study(STUDY))
    assert "length of runs" in proof.held
    assert {drift.place for drift in proof.drifts} == {"report.md", "report.html"}, "which was left out"
    before, payload = bench.events()[:at], bench.events()[at].payload
    for name, false in (("rise", 0.02), ("steps", SHORT), ("runs", 5)):
        event = compose_event(
            STUDY, EventType.LENGTH_DECIDED, {**payload, name: false}, after=before[-1], actor="system", at=NOW
        )
        drifts = verify(STUDY, [row_of(event) for event in (*before, event)], bench.home.study(STUDY)).drifts
        assert f"{name} is {false} in the log" in str(drifts)


@pytest.mark.parametrize(
    ("rise", "limits", "carried"),
    [(0.5, {}, True), (0.05, {"max_runs": 11}, False), (0.05, {"budget_s": 55.0}, False)],
)
def test_runs_stay_as_they_are_where_they_rise_less_or_longer_ones_are_not_carried(
    fast_path: Path, rise: float, limits: dict[str, Any], carried: bool
) -> None:
    bench = Bench(fast_path, design=extending(rise=rise), **limits)
    bench.slow(10.0, 1.0)
    state = bench.until(lambda state: state.sizing is not None)
    assert (state.length.steps, state.length.carried, set(lengths(state))) == (SHORT, carried, {SHORT})
    assert len(state.runs_in("confirm")) == 6, "the pilot counts"
    assert ("not carried" in describe_length(state)) == (not carried)


def test_who_amends_the_budget_after_the_pilot_began_does_not_choose_the_length(fast_path: Path) -> None:
    bench = Bench(fast_path, design=extending())
    bench.slow(10.0, 1.0)
    loop = bench.loop()
    bench.until(lambda state: len(state.values("group_size=16")) == 2, loop)
    interventions.change_budget(StudyLog(bench.log, STUDY), loop.state().worked_s + 25, "enough seen")
    assert bench.until(lambda state: state.length is not None, loop).length.carried


def test_a_verdict_on_shorter_runs_leaves_them_so_when_more_budget_comes(fast_path: Path) -> None:
    bench = Bench(fast_path, design=extending(), max_runs=5)
    state = bench.drive(bench.loop())
    assert (state.length, len(state.verdicts)) == (None, 1)
    assert not state.awaits_length


@pytest.mark.parametrize(("vetoed", "steps"), [(("h2",), LONG), (("h1", "h2"), None)])
def test_a_claim_that_is_vetoed_in_the_pilot_is_made_no_longer(
    fast_path: Path, vetoed: tuple[str, ...], steps: int | None
) -> None:
    bench = Bench(fast_path, design=extending(16, 32))
    loop = bench.loop()
    bench.until(lambda state: len(state.values("group_size=32")) == 1, loop)
    for name in vetoed:
        bench.append(EventType.HYPOTHESIS_VETOED, hypothesis=name, reason="no")
    state = bench.drive(loop)
    assert (state.status, state.length and state.length.steps) == ("concluded", steps)
    longer = {run.spec.arm for run in state.runs.values() if run.spec.job["steps"] == LONG}
    assert longer == ({"group_size=8", "group_size=16"} if steps else set())
    assert all(verdict_follows(state, verdict) for verdict in state.verdicts)


@pytest.mark.parametrize("written", [True, False])
def test_killed_between_any_two_events_it_comes_to_the_same(fast_path: Path, written: bool) -> None:
    whole, killed = (Bench(fast_path / name, design=extending(), approve="stages") for name in ("whole", "killed"))
    for bench in (whole, killed):
        bench.approves = True
    whole.sandbox.clock = whole.clock
    expected = whole.drive(whole.loop())
    state, _ = killed.drive_by_single_events(written=written)
    assert check_whole(killed).length == expected.length
    assert (state.verdicts, lengths(state)) == (expected.verdicts, lengths(expected))
    stages = [asked.question.stage for asked in state.questions]
    assert stages[:2] == ["pilot", "longer pilot"], "what is longer is asked for anew"


def test_a_log_with_another_length_or_a_size_before_it_is_refused(fast_path: Path) -> None:
    bench = Bench(fast_path, design=extending())
    bench.drive(bench.loop())
    events = bench.events()
    kinds = [event.type for event in events]
    at, sized = kinds.index(EventType.LENGTH_DECIDED), kinds.index(EventType.DESIGN_SIZED)
    forged: tuple[tuple[EventType, dict[str, Any], int, str], ...] = (
        (EventType.LENGTH_DECIDED, {**events[at].payload, "steps": 9}, at, "expected runs of 2 or 3 steps; found 9"),
        (EventType.DESIGN_SIZED, dict(events[sized].payload), at, "said how long runs are"),
        (EventType.LENGTH_DECIDED, dict(events[at].payload), at + 1, "no pilot that says how long runs are now"),
    )
    for kind, payload, place, told in forged:
        event = compose_event(STUDY, kind, payload, after=events[place - 1], actor="system", at=NOW)
        with pytest.raises(LogCorrupt, match=told):
            fold([*events[:place], event])


@pytest.mark.parametrize(
    "changes",
    [{"pilot": None, "looks": (), "seeds": (1, 2)}, {"metric": Metric(meaning="-", episodes=1)},
     {"base_job": {**base_job(), "steps": LONG}}],
)  # fmt: skip
def test_a_lock_extends_by_a_pilot_that_is_measured_and_to_more_steps(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a pilot without a screen says how long runs are"):
        Design(**{**dict(extending()), **changes})


@pytest.fixture(scope="module")
def piloted_state(tmp_path_factory: pytest.TempPathFactory) -> StudyState:
    bench = Bench(tmp_path_factory.mktemp("piloted"), design=extending(16, 32))
    bench.until(lambda state: state.length is not None)
    at = [event.type for event in bench.events()].index(EventType.LENGTH_DECIDED)
    return fold(bench.events()[:at])


@given(values=st.lists(st.floats(0, 1), min_size=9, max_size=9), order=st.permutations(range(9)))
def test_which_arm_has_which_runs_never_changes_the_decision(
    piloted_state: StudyState, values: Sequence[float], order: Sequence[int]
) -> None:
    keys = [piloted_state.design.metric.beside[name].key for name in RISE_OF]

    def decided(values: Sequence[float]) -> Any:
        runs = {}
        for (name, run), value in zip(piloted_state.runs.items(), values, strict=True):
            before, last = (run.measurements[key] for key in keys)
            changed = {
                keys[0]: before.model_copy(update={"value": 0.4}),
                keys[1]: last.model_copy(update={"value": value}),
            }
            runs[name] = replace(run, measurements={**run.measurements, **changed})
        return decide_length(replace(piloted_state, runs=runs), True)

    assert decided(values) == decided([values[at] for at in order])


def test_a_run_that_its_own_code_ended_is_not_forgotten_for_longer_ones(piloted_state: StudyState) -> None:
    whole, ended = decide_length(piloted_state, True), replace(piloted_state, crashed="r1")
    assert (whole.steps, decide_length(ended, True).steps) == (LONG, SHORT)


Decide = Callable[[list[list[float]], list[list[list[float]]]], bool]
RULE = Extension(steps=40, before="b", last="l", rise=0.02)


def pooled(rises: list[list[float]], values: list[list[list[float]]]) -> bool:
    pairs = [(0.0, rise) for arm in rises for rise in arm]
    return decide_steps(RULE, 20, pairs, len(pairs), True).steps == RULE.steps


def by_result(rises: list[list[float]], values: list[list[list[float]]]) -> bool:
    return welch(*values[0]).p > 0.05


def count_false_claims(
    decide: Decide, spreads: tuple[float, float], worlds: int = 3000, mean: float = RULE.rise
) -> float:
    """Return the share of claims where nothing is to be found, of arms of 6 seeds and a pilot of 4: how a run rises is
    tied to where it ends (0.9), and where a longer one ends half to that."""
    draw, claims = random.Random(5), 0
    for _ in range(worlds):
        values: list[list[list[float]]] = [[], []]
        rises = []
        for spread in spreads:
            ends = [draw.gauss(0, 1) for _ in range(6)]
            rises.append([mean + spread * (0.9 * end + 0.436 * draw.gauss(0, 1)) for end in ends[:4]])
            values[0].append([spread * end for end in ends])
            values[1].append([spread * (0.5 * end + 0.866 * draw.gauss(0, 1)) for end in ends])
        claims += welch(*values[decide(rises, values)]).p <= 0.05
    return claims / worlds


def test_false_claims_stay_within_the_level_where_the_pooled_rule_extends_and_not_where_results_do() -> None:
    error = 3 * (0.05 * 0.95 / 3000) ** 0.5
    assert count_false_claims(pooled, (0.05, 0.05)) <= 0.05 + error
    assert count_false_claims(pooled, (0.02, 0.1)) <= 0.05 + error, "nor where one arm is five times as loud"
    assert count_false_claims(by_result, (0.05, 0.05)) > 0.07, "who looks at the difference first bends it"
