"""The sections on the backend `verl`, from figures that were written by hand and never measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import verl_agreement
import verl_backend
from performance import results
from performance.headlines import headlines
from performance.page import render
from rig.agreement.judged import of_environment
from rig.agreement.margins import MARGINS
from rig.cluster import python
from rig.cluster.parts import DEALT, ENGINE, MEASURED, PARTS, RAY, ROWS

from tests.benchmarks.rig.agreement.hand_made import SIZE, trainings

AROUND = {"date": "2026-01-02", "commit": "abc", "quick": False}


def round_of(first: str) -> dict[str, Any]:
    rolled = {"seconds": 1.0, "calls": 100, "sampled": 400, "context": 3000}
    update = {"ids": 4000.0, "trained": 400.0, "difference": 1e-6}
    parts = {**dict.fromkeys(PARTS, 0.01), "all": 0.01 * len(PARTS)}
    return {
        "batch of": first,
        "rollout": {"local": rolled, "verl": {**rolled, "seconds": 3.0}},
        "update": {
            "local": {"update, s": 0.1, "publish, s": 0.0, **update},
            "verl": {"update, s": 0.22, "publish, s": 0.05, "parts": parts, **update},
        },
        "call on its way, s": 0.025,
    }


def measured(a_byte: float) -> dict[str, Any]:
    cost = {"a call": 0.001, "a row": 1e-5, "an id": 1e-8}
    return {
        "boot, s": {"local": 2.0, "verl": 40.0},
        "rounds": [round_of("local"), round_of("verl")],
        "sweep": {"points": [], "constants": dict.fromkeys((ROWS, DEALT, RAY, ENGINE, MEASURED), cost)},
        "publish, small": {"bytes": 1e6, "seconds": 1e6 * a_byte, "of that in the learner": 0.0},
        "token on its way, s": 1e-8,
        "publish, large": {"bytes": 1e8, "seconds": 1e8 * a_byte, "of that in the learner": 0.0},
    }


@pytest.mark.parametrize(("a_byte", "kept"), [(1e-10, True), (5e-9, False)])
def test_the_section_on_a_step_tells_both_backends_and_whether_the_goal_is_kept(
    tmp_path: Path, a_byte: float, kept: bool
) -> None:
    figures = {**verl_backend.summed_up(measured(a_byte)), **AROUND}
    assert (verl_backend.goals_missed(figures) == []) is kept
    (tmp_path / "verl_backend.json").write_text(json.dumps(figures))
    page = render(tmp_path)
    assert "| boot, s | 2.0 | 40.0 |" in page
    assert "| model forward, arithmetic | 10.0 | 9 % |" in page
    told = page.replace("\n", " ")
    assert "verl takes 3.0 times as long for a sampled token and 2.2 times for an update" in told
    assert ("of a step of 1,024 episodes, is kept" in told) is kept
    assert ("of a step of 1,024 episodes, is **missed**" in told) is not kept
    found = results.load("verl_backend", tmp_path)
    assert found is not None
    assert [each.name for each in headlines(found)] == [
        "rollout, verl over local", "update, verl over local", "own part of a step of 1B parameters",
    ]  # fmt: skip


@pytest.mark.parametrize(("apart", "verdict"), [(0.0, "| 0.1 | equivalent |"), (0.3, "| 0.1 | **supported** |")])
def test_the_section_on_agreement_tells_the_verdict_of_each_measure(tmp_path: Path, apart: float, verdict: str) -> None:
    done = trainings(apart)
    figures = {
        "size": asdict(SIZE), "margins": dict(MARGINS), "seconds of all trainings": 1800,
        "environments": {name: of_environment(name, done, SIZE.held_out) for name in SIZE.environments},
        "trainings": [each.value() for each in done], **AROUND,
    }  # fmt: skip
    (tmp_path / "verl_agreement.json").write_text(json.dumps(figures))
    page = render(tmp_path)
    assert page.count(verdict) == 4
    assert "(../benchmarks/results/verl_agreement.svg)" in page
    assert "measured 2026-01-02 at commit abc" in page.replace("\n", " ")
    verl_agreement.show({**figures, "machine": {}})
    found = results.load("verl_agreement", tmp_path)
    assert found is not None
    assert [each.name for each in headlines(found)] == [
        f"{name}, {measure}: most that verl may differ by" for name in SIZE.environments for measure in MARGINS
    ]


def test_without_an_environment_of_verl_both_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AJET_VERL_PYTHON", str(tmp_path / "python"))
    reason = python.missing()
    assert reason is not None
    assert "no environment of the backend verl is at" in reason
    with pytest.raises(SystemExit, match="make setup-verl"):
        verl_agreement.require_verl()
