"""Records: one canonical form, in which code is part of the lock and its absence leaves no trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from studies.records import BUILT_IN, REWARD, Arm, Design, Metric, RunSpec
from tests.studies.synthetic import SOURCE, coded_design, design

GALLERY = Path(__file__).parents[2] / "studies" / "gallery"


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


@pytest.mark.parametrize("study", sorted(path.parent.name for path in GALLERY.glob("*/report.md")))
def test_the_runs_of_the_gallery_still_have_the_names_they_were_given(study: str) -> None:
    """The reports hold everything a run's name is computed from."""
    text = re.sub(r"\\(.)", r"\1", (GALLERY / study / "report.md").read_text())
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    said = {row[0]: row[1] for row in rows if len(row) == 2}
    sets = {row[0]: row[2] for row in rows if len(row) == 3 and row[1] in ("control", "treatment")}
    held = text.partition("Every field that was held constant:")[2].partition("## Every run")[0]
    constants = {name: _value(value) for name, value in re.findall(r"^\| (\w+) \| (.*) \|$", held, re.MULTILINE)}
    metric = Metric(meaning=said["Metric"].partition(": ")[2], episodes=512)
    (name,) = re.findall(r"^Study (\S+)$", text, re.MULTILINE)
    listed = [row for row in rows if len(row) == 9 and re.fullmatch("[0-9a-f]{16}", row[0])]
    assert listed
    for run_id, arm, seed, *_ in listed:
        field, _, value = sets[arm].partition(" = ")
        spec = RunSpec(
            study=name, design_hash=said["sha256 of the design"], arm=arm, seed=int(seed),
            environment=said["Environment"], job={**constants, field: _value(value), "seed": int(seed)}, metric=metric,
        )  # fmt: skip
        assert spec.run_id == run_id


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
