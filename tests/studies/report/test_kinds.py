"""Reports of interactions, trends and fields that go together: what they are called, with the means of every arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies.records.design import Arm, Design, Hypothesis
from studies.records.design_parts import CollapseRule, Promise
from studies.report import build_report
from tests.studies.synthetic import Synthetic, design, hypothesis

A, B = "group_size", "learning_rate"
LOW, HIGH = {A: 4, B: 0.001}, {A: 16, B: 0.003}


def claimed(kind: str, **changes: Any) -> Hypothesis:
    if kind == "trend":
        return hypothesis("h1", 16, variable=A, control=4, ladder=(4, 8, 16), statement="-", **changes)
    more = {"moderator": B} if kind == "interaction" else {}
    return hypothesis("h1", HIGH, variable="configuration", control=LOW, statement="-", **more, **changes)


def locked(claim: Hypothesis, **changes: Any) -> Design:
    arms = [
        Arm(name=f"arm-{n}", overrides=dict(value) if isinstance(value, dict) else {A: value})
        for n, value in enumerate(claim.settings)
    ]
    given = {
        "hypotheses": [claim], "arms": arms, "control_arm": "arm-0", "equivalence_margin": 0.1,
        "promise": Promise(power=0.8, effect=0.1), "test": "welch" if claim.kind == "difference" else "contrast",
        **changes,
    }  # fmt: skip
    return Design.model_validate({**design(seeds=5).model_dump(), **given})


def report(folder: Path, claim: Hypothesis, means: list[float], **changes: Any) -> str:
    study = Synthetic(folder, means={f"arm-{n}": mean for n, mean in enumerate(means)}, sd=0.01)
    build_report(study.whole(locked(claim, **changes)), folder)
    return " ".join((folder / "report.md").read_text().replace("\\", "").split())


def test_an_interaction_is_told_by_both_effects(tmp_path: Path) -> None:
    text = report(tmp_path, claimed("interaction"), [0.50, 0.52, 0.50, 0.72])
    assert "the effect of group_size (4 to 16) took hidden success from" in text
    assert "difference of the differences +0." in text
    assert "choose group_size anew for each learning_rate" in text
    assert "Welch's t-test of a contrast of all arms" in text
    assert "5 + 5 + 5 + 5" in text
    assert "cannot be laid" not in text


def test_no_interaction_that_matters_is_one_choice_for_both(tmp_path: Path) -> None:
    text = report(tmp_path, claimed("interaction", sought="equivalence"), [0.5, 0.6, 0.55, 0.65])
    assert "take the effect of group_size (4 to 16) to be the same with both values of learning_rate" in text


def test_an_open_interaction_says_what_it_could_have_seen(tmp_path: Path) -> None:
    text = report(tmp_path, claimed("interaction"), [0.5, 0.6, 0.55, 0.65], equivalence_margin=0.01)
    assert "no evidence of one effect being another than the other" in text.lower()
    assert "differences of about 0.0" in text


def test_a_trend_is_told_by_every_value(tmp_path: Path) -> None:
    text = report(tmp_path, claimed("trend"), [0.50, 0.56, 0.64])
    assert "at group_size = 4, 8, 16 (rise +0.1" in text
    assert "read it as a direction: from group_size = 4 to 16" in text


def test_fields_that_go_together_are_laid_to_neither(tmp_path: Path) -> None:
    text = report(tmp_path, claimed("together"), [0.50, 0.72])
    assert "cannot be laid to group_size or learning_rate alone" in text


@pytest.mark.parametrize("kind", ["interaction", "trend"])
def test_collapses_of_every_arm_are_told(tmp_path: Path, kind: str) -> None:
    text = report(tmp_path, claimed(kind), [0.50, 0.52, 0.50, 0.72], collapse=CollapseRule())
    assert "0 of 5 did with arm-1" in text
