"""What of a run's job follows from its metric: when it is evaluated during training."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from studies.checks.job_fields import differing
from studies.records.design import Metric, Schedule
from studies.records.run_specs import evaluated
from swarm.job import Job

PLAIN = Metric(meaning="share of hidden tasks solved", episodes=64)


def scheduled(every: int) -> Metric:
    return PLAIN.model_copy(update={"schedule": Schedule(every=every, episodes=8)})


def job(steps: int, groups: int) -> dict[str, Any]:
    return Job(steps=steps, episodes_per_step=4 * groups, group_size=4).model_dump(mode="json", exclude={"tracking"})


@given(st.integers(1, 200), st.integers(1, 32), st.integers(1, 2000))
def test_a_schedule_gives_a_job_growing_steps_before_its_last_near_its_marks(
    steps: int, groups: int, every: int
) -> None:
    plain = job(steps, groups)
    found = evaluated(plain, scheduled(every))
    after = found.get("evaluate_after", [])
    assert after == sorted(set(after))
    assert all(1 <= step < steps for step in after)
    for step in after:
        nearest = max(1, round(step * 4 * groups / every)) * every
        assert step == 1 or abs(step * 4 * groups - nearest) <= 2 * groups
    assert Job.recorded(found).evaluate_after == tuple(after)
    assert {**plain, **({"evaluate_after": after, "evaluation_episodes": 8} if after else {})} == found


def test_a_metric_without_a_schedule_leaves_the_job_and_so_the_run_as_they_were() -> None:
    assert evaluated(job(10, 4), PLAIN) == job(10, 4)


def test_when_it_is_evaluated_is_no_difference_between_jobs() -> None:
    few, many = job(10, 4), job(10, 4) | {"episodes_per_step": 32}
    both = [evaluated(each, scheduled(48)) for each in (few, many)]
    assert both[0]["evaluate_after"] != both[1]["evaluate_after"]
    assert differing(both) == ("episodes_per_step",)
    assert differing([few, evaluated(few, scheduled(48))]) == ()
