from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies import StudyState
from studies.checks.conditions import (
    collapse_rate,
    count_without_signal,
    detect_collapse,
    had_no_signal,
    has_started,
    play_variance,
    plays_of_both,
    training_curve,
    unequal_drops,
)
from studies.checks.confounders import VIOLATION_CODES, Violation, lint_conditions, lint_jobs
from studies.records.design import Arm, Design, Metric
from studies.records.procedure import CollapseRule, StartRule
from studies.records.runs import Conditions, TrainingCurve
from studies.report.evidence import gather
from studies.report.summary import headline
from studies.report.validity import remarks
from tests.golden import assert_golden
from tests.lazily import lazy
from tests.studies import synthetic
from tests.studies.synthetic import studies

BASE = {"steps": 40, "episodes_per_step": 128, "group_size": 8, "epochs": 1, "model": {"kind": "tiny", "seed": 0}}
KNOWN = Conditions(
    steps=40, episodes=5120, tokens=30_000, optimiser_steps=40, wall_s=20.0,
    initial_policy="a" * 64, initial_success=0.2,
    evaluation_tasks="b" * 64, evaluation_episodes=512, decoding="temperature 1", template="c" * 64, checkpoint="last",
    overlap=0, image="process", hardware="2 cpus", neighbours=1, judge_errors=0,
)  # fmt: skip


@cache
def design(
    variable: str = "group_size", control: Any = 8, treatment: Any = 16, *, key: str = "hidden/success", **base: Any
) -> Design:
    arms = (Arm(name="control", overrides={variable: control}), Arm(name="treatment", overrides={variable: treatment}))
    metric = Metric(key=key, meaning="share of hidden tasks solved", episodes=512)
    claim = synthetic.hypothesis(variable=variable, control=control, treatment=treatment)
    return synthetic.design((claim,), base_job={**BASE, **base}, arms=arms, control_arm="control", metric=metric)


def arm(prefix: str, entry: Conditions = KNOWN, runs: int = 3, **changed: Any) -> dict[str, Conditions]:
    return {f"{prefix}{i}": entry.model_copy(update=changed) for i in range(runs)}


def lint(planned: Design | None = None, **changed: Any) -> tuple[Violation, ...]:
    """Lint arms of which every run of the treatment is `changed`."""
    return lint_conditions(planned or design(), "h1", arm("c"), arm("t", **changed))


CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "unequal_steps": ({"steps": 50}, True), "unequal_episodes": ({"episodes": 5000}, True),
    "unequal_updates": ({"optimiser_steps": 160}, True), "unequal_tokens": ({"tokens": 60_000}, True),
    "unequal_wall": ({"wall_s": 40.0}, False), "warm_start": ({"initial_policy": "d" * 64}, True),
    "warm_start (by what it could do)": ({"initial_success": 0.3}, True),
    "evaluation_tasks": ({"evaluation_tasks": "b" * 64, "drawn_tasks": "d" * 64}, True),
    "evaluation_size": ({"evaluation_episodes": 256}, True), "decoding": ({"decoding": "temperature 0"}, True),
    "template": ({"template": "d" * 64}, True), "checkpoint": ({"checkpoint": "best"}, True),
    "overlap": ({"overlap": 3}, True), "image": ({"image": "sha256:1"}, True),
    "hardware": ({"hardware": "64 cpus"}, True), "co_tenancy": ({"neighbours": 7}, False),
    "judge_errors": ({"judge_errors": 1000}, True), "stopped_early": ({"stopped_by": "kl_blow_up"}, False),
}  # fmt: skip


@pytest.mark.parametrize("code", CHANGES)
def test_each_changed_condition_is_named_by_its_code_alone(code: str) -> None:
    changed, blocks = CHANGES[code]
    (found,) = lint(**changed)
    assert (found.code, found.blocks) == (code.split(" ")[0], blocks)
    assert found.code in VIOLATION_CODES, "nobody could accept it"
    assert "control" in found.sentence
    assert "treatment" in found.sentence
    assert not found.sentence.endswith(".")


def test_the_table_above_changes_every_condition() -> None:
    # what training came to, and where its beginning was measured: no conditions of it
    results = {"course", "signal_steps", "probs_diff", "stillness", "untrained"}
    assert {name for changed, _ in CHANGES.values() for name in changed} == set(Conditions.model_fields) - results


conditions = st.builds(
    Conditions, steps=st.none() | st.integers(1, 100), episodes=st.none() | st.integers(1, 10_000),
    tokens=st.none() | st.integers(0, 10**6), wall_s=st.none() | st.floats(0, 1e4),
    initial_success=st.none() | st.floats(0, 1), evaluation_episodes=st.none() | st.just(512),
    evaluation_tasks=st.none() | st.text(max_size=3), decoding=st.none() | st.text(max_size=3),
    checkpoint=st.none() | st.just("last"), overlap=st.none() | st.just(0), image=st.none() | st.text(max_size=3),
    neighbours=st.none() | st.integers(0, 9), judge_errors=st.none() | st.just(0),
)  # fmt: skip


@given(conditions, st.integers(1, 5), st.integers(1, 5))
def test_arms_of_identical_runs_have_no_violation(entry: Conditions, left: int, right: int) -> None:
    assert lint_conditions(design(), "h1", arm("c", entry, left), arm("t", entry, right)) == ()


@given(conditions, conditions)
def test_who_is_the_control_decides_no_code(left: Conditions, right: Conditions) -> None:
    one = lint_conditions(design(), "h1", arm("c", left), arm("t", right))
    other = lint_conditions(design(), "h1", arm("c", right), arm("t", left))
    assert [(v.code, v.blocks) for v in one] == [(v.code, v.blocks) for v in other]


@pytest.mark.parametrize(("kind", "blocks"), [("success-at-tokens", False), ("success-at-seconds", True)])
def test_where_success_is_read_at_equal_amounts_no_amount_of_training_is_a_confound(kind: str, blocks: bool) -> None:
    matched = design().model_copy(update={"metric": design().metric.model_copy(update={"kind": kind})})
    assert lint(matched, steps=50, episodes=5000, optimiser_steps=160, tokens=90_000, checkpoint="last") == ()
    (shared,) = lint(matched, neighbours=7)
    assert (shared.code, shared.blocks) == ("co_tenancy", blocks)
    assert [found.blocks for found in lint(matched, wall_s=90.0)] == [False]


def test_a_run_that_the_watchdog_stopped_may_have_less_training_but_is_told() -> None:
    shorter = {"steps": 12, "episodes": 1536, "tokens": 9000, "optimiser_steps": 12, "wall_s": 6.0}
    (found,) = lint(**shorter, stopped_by="kl_blow_up")
    assert (found.code, found.blocks) == ("stopped_early", False)
    assert "3 by kl_blow_up" in found.sentence
    assert [v.code for v in lint(**shorter) if v.blocks] == [
        "unequal_steps", "unequal_episodes", "unequal_updates", "unequal_tokens",
    ]  # fmt: skip


LONGER = {"steps": 80, "episodes": 10_240, "tokens": 60_000, "optimiser_steps": 80, "wall_s": 40.0}
UNTIMED = design().model_copy(update={"base_job": {"group_size": 8}})
TIMED = design().model_copy(update={"metric": design().metric.model_copy(update={"unit": "seconds"})})
UPDATES, OTHER_UPDATES = {"optimiser_steps": 160}, {"t2": KNOWN.model_copy(update={"optimiser_steps": 120})}
EXPLAINED: dict[str, tuple[Callable[[], tuple[Violation, ...]], list[tuple[str, bool]]]] = {
    "its variable brings it about": (lambda: lint(design("epochs", 1, 4), **UPDATES), [("unequal_updates", False)]),
    "its variable brings it about, but not within an arm": (
        lambda: lint_conditions(design("epochs", 1, 4), "h1", arm("c"), arm("t", **UPDATES) | OTHER_UPDATES),
        [("unequal_updates", True)]),
    "steps are the variable": (lambda: lint(design("steps", 40, 80), **LONGER), []),
    "time is the budget": (lambda: lint(UNTIMED, neighbours=2), [("co_tenancy", True)]),
    "time is the budget, longer": (lambda: lint(UNTIMED, wall_s=40.0), [("unequal_wall", True)]),
    "time is the metric": (lambda: lint(design(key="timing_s/step"), neighbours=2), [("co_tenancy", True)]),
    "time is the metric, longer": (lambda: lint(design(key="timing_s/step"), wall_s=40.0), [("unequal_wall", True)]),
    "time is neither": (lambda: lint(neighbours=2), [("co_tenancy", False)]),
    "seconds are judged": (lambda: lint(TIMED, wall_s=40.0), [("unequal_wall", False)]),
    "seconds are judged on a shared machine": (lambda: lint(TIMED, neighbours=2), [("co_tenancy", True)]),
    **{f"evaluations of one policy at {at}": (partial(lint, initial_success=at), []) for at in (0.2, 0.24, 0.16)},
    "its variable changes how the first policy is sampled": (
        lambda: lint(design("temperature", 1.0, 0.7), initial_success=0.4), []),
    "judge errors of both arms": (
        lambda: lint_conditions(design(), "h1", arm("c", judge_errors=1000), arm("t", judge_errors=1000)),
        [("judge_errors", False)]),
    "a place of a few runs": (
        lambda: lint_conditions(design(), "h1", arm("c"), arm("t") | arm("o", runs=1, image="sha256:1")),
        [("image", False)]),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_difference_blocks_or_is_a_threat_by_what_explains_it(name: str) -> None:
    found, expected = EXPLAINED[name]
    assert [(violation.code, violation.blocks) for violation in found()] == expected


def test_tasks_are_held_to_what_the_runs_own_seeds_draw() -> None:
    def drawn(played: str, asked: str) -> Conditions:
        return KNOWN.model_copy(update={"evaluation_tasks": played, "drawn_tasks": asked})

    control, treatment = ({f"{p}{i}": drawn(f"{p}{i}", f"{p}{i}") for i in range(3)} for p in ("c", "t"))
    assert lint_conditions(design(), "h1", control, treatment) == ()
    (found,) = lint_conditions(design(), "h1", control, treatment | {"t1": drawn("easy", "t1")})
    assert (found.code, found.blocks) == ("evaluation_tasks", True)
    assert "0 of 3" in found.sentence
    assert "1 of 3" in found.sentence


def test_an_evaluation_that_an_arms_runs_share_counts_once_where_the_other_arm_makes_its_own() -> None:
    left, right = arm("c", initial_success=0.2), arm("t", initial_success=0.28)
    assert [found.code for found in lint_conditions(design(), "h1", left, right)] == ["warm_start"]
    shared = arm("c", initial_success=0.2, untrained="z")
    assert lint_conditions(design(), "h1", shared, right) == ()


@pytest.mark.parametrize(("solved", "expected"), [
    ([2, 1, 0] * 6, 1 / 6), ([2, 0] * 9, 0.0), ([1] * 18, 0.5),  # of 18 tasks, each played twice
    ([2, 1, 0] * 5, 0.25),  # too few of them
])  # fmt: skip
def test_plays_of_one_task_vary_by_what_they_differ_within_tasks(solved: list[int], expected: float) -> None:
    plays = [
        {"task_id": f"t{task}", "success": sample < count} for task, count in enumerate(solved) for sample in (0, 1)
    ]
    assert play_variance({"episodes": plays}) == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=60))
def test_the_variance_of_plays_is_that_of_a_rate_at_the_most(tasks: list[tuple[int, int]]) -> None:
    plays = [
        {"task_id": str(task), "success": sample < solved}
        for task, (count, solved) in enumerate(tasks) for sample in range(count)
    ]  # fmt: skip
    assert 0 <= play_variance({"episodes": plays}) <= 0.5


@pytest.mark.parametrize(("before", "after", "plays"), [(512, 512, 512), (64, 512, 113), (1, 1, 1)])
def test_an_error_between_evaluations_of_unlike_size_goes_by_their_harmonic_mean(
    before: int, after: int, plays: int
) -> None:
    parts = ({"episodes": range(count)} for count in (before, after))
    assert plays_of_both(*parts) == plays


def test_both_arms_evaluated_by_another_rule_than_the_locks_is_found() -> None:
    sides = (arm("c", checkpoint="best", evaluation_episodes=64), arm("t", checkpoint="best", evaluation_episodes=64))
    found = lint_conditions(design(), "h1", *sides)
    assert {v.code for v in found if v.blocks} == {"evaluation_size", "checkpoint"}
    assert all("lock says" in v.sentence for v in found)


def test_arms_that_differ_in_an_undeclared_field_are_named_with_it_also_without_any_run() -> None:
    planned = design()
    arms = (planned.arms[0], Arm(name="treatment", overrides={"group_size": 16, "model": {"kind": "tiny", "seed": 1}}))
    claimed = planned.model_copy(update={"arms": arms})
    found = lint_jobs(claimed, "h1", [{**BASE, "seed": 1}], [{**BASE, "group_size": 16, "seed": 2, "epochs": 4}])
    assert [(v.code, v.blocks) for v in found] == [("undeclared_field", True)]
    assert "epochs 1" in found[0].sentence
    planned = design()
    sneaky = planned.arms[1].model_copy(update={"overrides": {"group_size": 16, "epochs": 4}})
    claimed = planned.model_copy(update={"arms": (planned.arms[0], sneaky)})
    with pytest.raises(KeyError):
        lint_conditions(claimed, "h2", {}, {})
    (found,) = lint_conditions(claimed, "h1", {}, {})
    assert found.code == "undeclared_field"
    assert "epochs" in found.sentence


stats = lazy("scipy.stats")
BATCH = 128
RULE = CollapseRule()


def rows(shares: Sequence[float], batch: float = BATCH) -> list[dict[str, Any]]:
    return [
        {"step": at, "metrics": {"critic/success/mean": share, "batch/episodes": batch}}
        for at, share in enumerate(shares, start=1)
    ]


def judged(shares: Sequence[float], start: float, end: float, **changes: Any) -> str | None:
    return detect_collapse(Conditions(course=training_curve(rows(shares), start, end, 512), **changes), RULE)


def risen(source: random.Random, gain: float, fall: float, steps: int = 40, begun: float = 0.2) -> list[float]:
    """Return a noisy curve that rises by `gain`, and loses the share `fall` of it in its last third."""
    shares = []
    for step in range(steps):
        level = begun + gain * (1 - math.exp(-6 * step / steps))
        lost = fall * gain * max(0.0, min(1.0, (step - 0.65 * steps) / (0.1 * steps)))
        chance = level - lost
        shares.append(sum(source.random() < chance for _ in range(BATCH)) / BATCH)
    return shares


@pytest.mark.parametrize(("gain", "fall", "least", "most"), [
    (0.45, 0.0, 0, 0), (0.1, 0.0, 0, 0.01), (0.0, 0.0, 0, 0.01), (0.45, 0.3, 0, 0.075), (0.45, 0.7, 0.95, 1),
    (0.45, 0.95, 1, 1),
])  # fmt: skip
@studies(20, 200)
def test_trainings_that_lose_most_of_their_gain_are_found_and_those_that_hold_it_are_not(
    gain: float, fall: float, least: float, most: float, studies: int
) -> None:
    source, end = random.Random(f"{gain} {fall}"), 0.2 + gain * (1 - fall)
    found = sum(judged(risen(source, gain, fall), 0.2, end) is not None for _ in range(studies))
    assert least * studies <= found <= most * studies


def test_a_training_collapsed_that_ends_below_its_beginning_or_broke_down_and_none_of_which_nothing_is_known() -> None:
    assert_golden(judged([0.4, 0.1], 0.4, 0.05))
    assert judged([0.4, 0.4], 0.4, 0.35) is None  # within their noise
    assert "kl_blow_up" in str(judged([0.4] * 20, 0.4, 0.4, stopped_by="kl_blow_up"))
    assert judged([0.4] * 20, 0.4, 0.4, stopped_by="server_silent") is None
    assert detect_collapse(Conditions(), RULE) is None
    assert judged([], 0.5, 0.5) is None
    assert training_curve([{"step": 1, "metrics": {}}], 0.5, 0.5, 512) == TrainingCurve(start=0.5, end=0.5, plays=512)


@pytest.mark.parametrize(
    ("shares", "end", "started"),
    [
        ([0.4] * 20, 0.42, False), ([0.4] * 20, 0.6, True), ([*[0.4] * 10, *[0.6] * 10], 0.42, True),
        ([], 0.42, False), ([], 0.6, True),
    ],
)  # fmt: skip
def test_a_training_started_that_ended_above_its_beginning_by_either_of_its_curves(
    shares: list[float], end: float, started: bool
) -> None:
    assert has_started(Conditions(course=training_curve(rows(shares), 0.4, end, 512)), StartRule()) is started
    assert has_started(Conditions(), StartRule())  # nobody can say


@given(st.integers(0, 12), st.integers(0, 12))
def test_the_limits_of_a_rate_are_the_exact_ones(count: int, more: int) -> None:
    of = count + more
    found = collapse_rate("a", count, of)
    if of:
        theirs = stats.binomtest(count, of).proportion_ci(0.95, method="exact")
        assert (found.low, found.high) == (pytest.approx(theirs.low, abs=1e-9), pytest.approx(theirs.high, abs=1e-9))
        one_sided = stats.binomtest(count, of, alternative="less").proportion_ci(0.95, method="exact")
        assert found.upper == pytest.approx(one_sided.high, abs=1e-9)
    else:
        assert (found.low, found.high, found.upper) == (0.0, 1.0, 1.0)


CONTROL, TREATMENT = "group_size=4", "group_size=16"


@pytest.fixture
def state(finished: tuple[StudyState, Path]) -> StudyState:
    return finished[0]


def with_conditions(state: StudyState, arm: str, **seen: Any) -> StudyState:
    runs = {
        run_id: replace(run, collected={**(run.collected or {}), "conditions": seen}) if run.spec.arm == arm else run
        for run_id, run in state.runs.items()
    }
    return replace(state, runs=runs)


def lost(state: StudyState, arm: str, count: int, code: str = "NAN") -> StudyState:
    names = [run.run_id for run in state.runs_of(arm)][:count]
    runs = {name: replace(run, invalid=(code, "x")) if name in names else run for name, run in state.runs.items()}
    return replace(state, runs=runs)


def clauses(state: StudyState) -> tuple[str, ...]:
    return unequal_drops(state, state.design.hypotheses[0])


def test_one_arms_lost_run_is_told_in_the_headline(finished: tuple[StudyState, Path]) -> None:
    state = lost(finished[0], TREATMENT, 1)
    (clause,) = clauses(state)
    assert_golden(clause)
    assert clause in headline(state).answers[0].sentence


def test_runs_that_count_as_worst_or_that_the_study_itself_cut_short_are_no_loss_of_an_arm(state: StudyState) -> None:
    assert clauses(lost(lost(state, CONTROL, 1), TREATMENT, 1)) == ()
    design = state.design.model_copy(update={"counted_as_worst": ("broke",)})
    assert clauses(lost(replace(state, design=design), TREATMENT, 1, "broke")) == ()
    given_up = lost(state, TREATMENT, 2, "vetoed")
    cut = {
        name: replace(run, attempts=(*run.attempts[:-1], replace(run.attempts[-1], status="stopped")))
        for name, run in given_up.runs.items()
        if run.invalid is not None
    }
    assert clauses(replace(given_up, runs={**given_up.runs, **cut})) == ()


def test_runs_that_had_nothing_to_learn_from_are_counted_by_arm_and_told(finished: tuple[StudyState, Path]) -> None:
    whole = finished[0]
    state = with_conditions(
        with_conditions(whole, CONTROL, signal_steps=0, steps=40), TREATMENT, signal_steps=1, steps=40
    )
    assert count_without_signal(state) == {CONTROL: (5, 5)}
    assert [had_no_signal(run) for run in state.runs_of(CONTROL)] == [True] * 5
    (text,) = [remark.text for remark in remarks(state, gather(*finished)) if "nothing to learn" in remark.text]
    assert_golden(text)
    assert count_without_signal(whole) == {}
