"""Records: one canonical form, in which code is part of the lock and its absence leaves no trace."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from studies.records.design import BUILT_IN, REWARD, Arm, Design, Metric, RunSpec
from tests.studies.synthetic import SOURCE, coded_design, design


def test_a_design_without_code_keeps_the_hash_it_had_before_there_was_code() -> None:
    locked = design()
    assert locked.hash() == "16e1fbb7d330b30ef3f235449a4a45228397143bdc0d4d750ce9d72c46325bbe"
    assert "code" not in locked.model_dump(mode="json")
    assert Design.model_validate(locked.model_dump(mode="json")) == locked


def test_code_is_part_of_the_lock_to_the_last_byte() -> None:
    locked = coded_design()
    assert locked.hash() != coded_design(SOURCE + "\n").hash()
    again = Design.model_validate(locked.model_dump(mode="json"))
    assert again == locked
    assert again.hash() == locked.hash()


def test_an_arm_tells_its_reward_from_its_job_fields() -> None:
    arm = Arm(name="a", overrides={REWARD: "dense", "group_size": 4})
    assert (arm.reward, arm.job_overrides) == ("dense", {"group_size": 4})
    assert Arm(name="b", overrides={"group_size": 4}).reward == BUILT_IN


@pytest.mark.parametrize("code", [{}, {"other": SOURCE}, {"dense": SOURCE, "spare": SOURCE}, {BUILT_IN: SOURCE}])
def test_code_must_be_what_the_arms_name(code: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="code must hold the rewards that arms name"):
        coded_design(code=code)


def test_empty_code_is_no_code() -> None:
    with pytest.raises(ValidationError, match=r"code\.dense"):
        coded_design("")
    with pytest.raises(ValidationError, match="code"):
        run("")


def run(code: str | None) -> RunSpec:
    metric = Metric(meaning="m", episodes=2)
    return RunSpec(
        study="s", design_hash="0" * 64, arm="a", seed=1, environment="guess", job={}, metric=metric, code=code
    )


def test_runs_that_differ_in_code_have_different_names() -> None:
    assert len({run(code).run_id for code in (None, SOURCE, SOURCE + "\n")}) == 3
    assert "code" not in run(None).model_dump(mode="json")
