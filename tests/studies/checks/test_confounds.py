from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.checks.confounders import Violation, lint_conditions, lint_jobs
from studies.records.design import Arm, Design, Metric
from studies.records.runs import Conditions
from tests.studies import synthetic

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
    assert "control" in found.sentence
    assert "treatment" in found.sentence
    assert not found.sentence.endswith(".")


def test_the_table_above_changes_every_condition() -> None:
    results = {"course", "signal_steps", "probs_diff", "stillness"}  # what training came to, no conditions of it
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
