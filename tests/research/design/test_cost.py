"""The budget check: stages go one after the other in waves, all of them count, and its flags are enough."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from research.design.cost import BudgetCheck, Stage
from research.design.pricing import Pricing
from research.durations import parse_budget
from studies.records.design import Budget


def budget_check(budget_s: float, max_runs: int | None = None, parallel: int = 2, **spent: float) -> BudgetCheck:
    pricing = Pricing(lambda job: 10.0, parallel, 20.0, "made up")
    return BudgetCheck(pricing, Budget(wall_clock_s=budget_s, max_runs=max_runs), **spent)  # type: ignore[arg-type]


def test_each_stage_fills_its_last_wave_before_the_next_begins() -> None:
    assert budget_check(1000).cost([Stage("screen", 3, 10.0), Stage("confirm", 3, 40.0)]) == 2 * 10 + 2 * 40 + 20


def test_what_was_spent_and_made_counts() -> None:
    stages = [Stage("confirm", 4, 40.0)]
    assert budget_check(200).affords(stages)
    assert not budget_check(200, seconds_left=90.0).affords(stages)
    assert budget_check(200, 6, runs_made=2).affords(stages)
    assert not budget_check(200, 6, runs_made=3).affords(stages)
    assert budget_check(200, 6, runs_made=3, seconds_left=150.0).stated() == (
        "the budget is 3 min 20 s (50 s of it spent) and 6 runs (3 of them made)"
    )


def test_the_price_names_runs_time_and_the_slowest_run() -> None:
    said = budget_check(1000).priced([Stage("screen", 3, 10.0), Stage("confirm", 3, 40.0)])
    assert said == "6 runs need about 2 min on this machine (40 s a run, 2 at once)"


stages = st.lists(st.builds(Stage, st.just("s"), st.integers(1, 40), st.floats(1, 900)), min_size=1, max_size=3)


@given(
    stages, st.floats(10, 9000), st.none() | st.integers(1, 30), st.integers(1, 4), st.floats(0, 1), st.integers(0, 5)
)
def test_its_flags_are_enough_and_none_are_asked_for_what_is_affordable(
    wanted: list[Stage], budget_s: float, max_runs: int | None, parallel: int, left: float, made: int
) -> None:
    before = budget_check(budget_s, max_runs, parallel, seconds_left=left * budget_s, runs_made=made)
    flags = before.flags(wanted)
    assert (flags == "") == before.affords(wanted)
    budget, runs = re.search(r"--budget (\S+)", flags), re.search(r"--max-runs (\d+)", flags)
    more_s = parse_budget(budget[1]) if budget else budget_s
    after = budget_check(
        more_s,
        int(runs[1]) if runs else max_runs,
        parallel,
        seconds_left=more_s - (1 - left) * budget_s,
        runs_made=made,
    )
    assert after.affords(wanted)


def test_a_longer_stage_costs_more() -> None:
    assert budget_check(1).cost([Stage("s", 5, 10.0)]) < budget_check(1).cost([Stage("s", 7, 10.0)])
