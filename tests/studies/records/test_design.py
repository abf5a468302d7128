from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from studies.checks.conditions import find_differing_fields
from studies.records.design import BUILT_IN, REWARD, Arm, Design, Metric, RunSpec, Schedule
from studies.records.runs import add_evaluation_steps
from swarm.job import Job
from tests.studies.synthetic import SOURCE, coded_design, design


def test_a_design_without_code_keeps_the_hash_it_had_before_there_was_code() -> None:
    locked = design()
    assert locked.hash() == "16e1fbb7d330b30ef3f235449a4a45228397143bdc0d4d750ce9d72c46325bbe"
    assert "code" not in locked.model_dump(mode="json")
    assert Design.model_validate(locked.model_dump(mode="json")) == locked


def test_code_is_part_of_the_lock_to_the_last_byte() -> None:
    locked = coded_design()
    assert locked.hash() != coded_design(SOURCE + "\n").hash()
    assert Design.model_validate(locked.model_dump(mode="json")).hash() == locked.hash()


def test_an_arm_tells_its_reward_from_its_job_fields() -> None:
    arm = Arm(name="a", overrides={REWARD: "dense", "group_size": 4})
    assert (arm.reward, arm.job_overrides) == ("dense", {"group_size": 4})
    assert Arm(name="b", overrides={"group_size": 4}).reward == BUILT_IN


@pytest.mark.parametrize("code", [{}, {"other": SOURCE}, {"dense": SOURCE, "spare": SOURCE}, {BUILT_IN: SOURCE}])
def test_code_must_be_what_the_arms_name(code: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="code must hold"):
        coded_design(code=code)


def test_empty_code_is_no_code() -> None:
    with pytest.raises(ValidationError, match=r"code\.dense"):
        coded_design("")
    with pytest.raises(ValidationError, match="code"):
        run("")


def run(code: str | None) -> RunSpec:
    given: dict[str, Any] = {"study": "s", "design_hash": "0" * 64, "arm": "a", "seed": 1, "environment": "guess"}
    return RunSpec(**given, job={}, metric=Metric(meaning="m", episodes=2), code=code)


def test_runs_that_differ_in_code_have_different_names() -> None:
    assert len({run(code).run_id for code in (None, SOURCE, SOURCE + "\n")}) == 3
    assert "code" not in run(None).model_dump(mode="json")


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
    found = add_evaluation_steps(plain, scheduled(every))
    after = found.get("evaluate_after", [])
    assert after == sorted(set(after))
    assert all(1 <= step < steps for step in after)
    for step in after:
        nearest = max(1, round(step * 4 * groups / every)) * every
        assert step == 1 or abs(step * 4 * groups - nearest) <= 2 * groups
    assert Job.from_record(found).evaluate_after == tuple(after)
    assert {**plain, **({"evaluate_after": after, "evaluation_episodes": 8} if after else {})} == found


def test_a_metric_without_a_schedule_leaves_the_job_and_so_the_run_as_they_were() -> None:
    assert add_evaluation_steps(job(10, 4), PLAIN) == job(10, 4)


def test_when_it_is_evaluated_is_no_difference_between_jobs() -> None:
    few, many = job(10, 4), job(10, 4) | {"episodes_per_step": 32}
    both = [add_evaluation_steps(each, scheduled(48)) for each in (few, many)]
    assert both[0]["evaluate_after"] != both[1]["evaluate_after"]
    assert find_differing_fields(both) == ("episodes_per_step",)
    assert find_differing_fields([few, add_evaluation_steps(few, scheduled(48))]) == ()
