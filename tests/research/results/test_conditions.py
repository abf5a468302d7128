"""Conditions are put together from what the harness saw; what it did not see is None."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.isolation.mode import Sandboxing
from research.runs.files import AttemptSpec, EpisodeOutcome, Evaluation, ObservedConditions, RunEvaluation
from research.runs.provenance import conditions_of, neighbours_of
from studies.log.study import AttemptState
from studies.records.runs import Conditions
from swarm.environments.play import rounds
from swarm.environments.registry import environments
from tests.research.factories import make_order

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def evaluated(*plays: tuple[str, int], version: int = 3) -> dict[str, Any]:
    """Return what a run's evaluations of these tasks and samples are stored as."""
    played = [EpisodeOutcome(task_id=task, sample=sample, success=True, reward=1.0) for task, sample in plays]
    initial, final = (
        Evaluation(environment="guess", split="hidden", policy_version=number, episodes=played)
        for number in (0, version)
    )
    return RunEvaluation(run_id="r", attempt=1, initial=initial, final=final).model_dump(mode="json")


def history(steps: int = 3, **metrics: float) -> list[dict[str, Any]]:
    return [{"step": n, "metrics": metrics} for n in range(1, steps + 1)]


def conditions(
    order: AttemptSpec | None = None, rows: list[dict[str, Any]] | None = None,
    plays: dict[str, Any] | None = None, neighbours: int | None = 0,
) -> Conditions:  # fmt: skip
    plays = evaluated(("a", 0)) if plays is None else plays
    return conditions_of(order or make_order(), rows or history(), plays, ObservedConditions(), neighbours, None)


def test_amounts_are_summed_over_steps_and_unknown_where_a_step_lacks_them() -> None:
    rows = history(**{"batch/episodes": 8.0, "tokens/trained": 100.0, "timing_s/step": 0.5})
    found = conditions(rows=rows, neighbours=2)
    assert (found.steps, found.episodes, found.tokens, found.wall_s, found.neighbours) == (3, 24, 300, 1.5, 2)
    assert found.initial_success == 1.0
    assert (found.initial_policy, found.decoding, found.overlap, found.judge_errors) == (None, None, None, None)
    rows[1]["metrics"] = {}
    lacking = conditions(rows=rows, neighbours=None)
    assert (lacking.episodes, lacking.tokens, lacking.wall_s) == (None, None, None)


def test_episodes_that_were_given_up_are_those_the_server_counted_at_last() -> None:
    rows = history(**{"lease/begun": 9.0})
    assert conditions(rows=rows).judge_errors == 0
    rows[-1]["metrics"] = {"lease/begun": 9.0, "lease/aborted": 4.0}
    assert conditions(rows=rows).judge_errors == 4


def test_the_order_of_plays_makes_no_other_tasks_and_another_task_does() -> None:
    one, turned, other = (
        conditions(plays=evaluated(*((task, 0) for task in tasks))).evaluation_tasks for tasks in ("ab", "ba", "ac")
    )
    assert one == turned != other


def test_a_policy_that_is_not_the_last_one_and_an_image_are_told() -> None:
    assert conditions(plays=evaluated(("a", 0), version=2)).checkpoint == "after step 2"
    contained = make_order().model_copy(update={"sandbox": Sandboxing(kind="docker", image="sha256:1")})
    assert (conditions(contained).image, conditions().image) == ("sha256:1", "process")


def attempts_of(*spans: tuple[int, int | None]) -> list[AttemptState]:
    """Return attempts that ran from a second to another; None: still running."""
    return [
        AttemptState(
            1, f"a{n}", (BEGIN + timedelta(seconds=begin)).isoformat(),
            None if end is None else "finished", seconds=None if end is None else float(end - begin),
        )
        for n, (begin, end) in enumerate(spans)
    ]  # fmt: skip


def beside(*spans: tuple[int, int | None], at: int) -> int:
    attempts = attempts_of(*spans)
    return neighbours_of(attempts, attempts[0], BEGIN + timedelta(seconds=at))


@pytest.mark.parametrize(
    ("spans", "count"),
    [
        ([(0, None)], 0), ([(0, None), (10, 20), (20, 30)], 1), ([(0, None), (10, 25), (20, 30)], 2),
        ([(0, None), (10, None)], 1), ([(50, None), (0, 50)], 0),
    ],
)  # fmt: skip
def test_neighbours_are_those_at_one_moment_not_those_that_came_one_after_the_other(
    spans: list[tuple[int, int | None]], count: int
) -> None:
    assert beside(*spans, at=100) == count


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=6))
def test_what_ran_later_changes_no_count(others: list[tuple[int, int]]) -> None:
    spans = [(begin, begin + length) for begin, length in others]
    now, later = beside((0, None), *spans, at=60), beside((0, 60), *spans, (60, None), (70, 90), at=60)
    assert now == later <= len(others)


def test_trainings_of_other_studies_are_neighbours_too() -> None:
    (attempt,) = attempts_of((10, 30))
    others = [(BEGIN + timedelta(seconds=begin), BEGIN + timedelta(seconds=end)) for begin, end in ((0, 20), (15, 90))]
    assert neighbours_of([attempt], attempt, BEGIN + timedelta(seconds=30), others) == 2
    assert neighbours_of([attempt], attempt, BEGIN + timedelta(seconds=30), others[:1]) == 1


def test_a_try_that_never_ran_is_nobodys_neighbour() -> None:
    attempts = attempts_of((0, None), (5, None))
    never = replace(attempts[1], status="stopped", seconds=0.0)
    assert neighbours_of([attempts[0], never], attempts[0], BEGIN + timedelta(seconds=9)) == 0


@given(st.integers(0, 9), st.sampled_from((64, 216, 512)))
def test_the_tasks_that_the_evaluator_plays_for_a_seed_are_those_the_harness_expects(seed: int, count: int) -> None:
    order = make_order(episodes=count, seed=seed)
    chosen = rounds(environments()["guess"].tasks("hidden"), count, seed)
    plays = evaluated(*((task.id, sample) for sample, part in enumerate(chosen) for task in part))
    found = conditions(order, plays=plays)
    assert found.evaluation_tasks == found.drawn_tasks
    assert conditions(order).drawn_tasks == found.drawn_tasks
