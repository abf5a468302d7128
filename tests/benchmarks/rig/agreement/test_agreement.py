"""Backends agree where they differ by less than the margin, never by a word alone; trainings go on where they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.agreement.judged import of_environment
from rig.agreement.margins import MARGINS
from rig.agreement.served import job_of
from rig.agreement.trainings import TrainingsFile
from verl_agreement import goals_missed

from tests.benchmarks.rig.agreement.hand_made import SIZE, training, trainings


def figures(verl_less_local: float) -> dict[str, Any]:
    found = trainings(verl_less_local)
    environments = {name: of_environment(name, found, SIZE.held_out) for name in SIZE.environments}
    return {"margins": dict(MARGINS), "environments": environments}


def test_backends_that_differ_by_noise_are_equivalent_in_both_measures() -> None:
    found = figures(0.0)
    verdicts = [each["verdict"] for own in found["environments"].values() for each in own["verdicts"].values()]
    assert verdicts == ["equivalent"] * 4
    assert goals_missed(found) == []


@pytest.mark.parametrize(("apart", "verdict"), [(0.3, "supported"), (-0.3, "refuted")])
def test_backends_that_differ_by_more_than_the_margin_are_not(apart: float, verdict: str) -> None:
    found = figures(apart)
    for own in found["environments"].values():
        for measure in own["verdicts"].values():
            assert measure["verdict"] == verdict
            assert measure["estimate"] == pytest.approx(apart, abs=0.02)
    assert len([goal for goal in goals_missed(found) if "not equivalent" in goal]) == 4


def test_training_that_gains_no_more_than_the_margin_is_told() -> None:
    still = [training("guess", each.backend, each.seed, each.end - 0.4) for each in trainings(0.0)[:10]]
    found = {"margins": dict(MARGINS), "environments": {"guess": of_environment("guess", still, 8)}}
    assert [goal.split(" may")[0] for goal in goals_missed(found)] == [
        "guess: training with local", "guess: training with verl",
    ]  # fmt: skip


def test_the_jobs_of_a_pair_differ_in_the_backend_alone() -> None:
    local, verl = (job_of("guess", backend, 3, SIZE).model_dump() for backend in ("local", "verl"))
    assert {name for name in local if local[name] != verl[name]} == {"backend"}


def test_trainings_go_on_where_they_were_and_half_a_line_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "trainings.jsonl"
    begun = TrainingsFile(path, SIZE)
    assert len(list(begun.missing())) == 20
    done = trainings(0.0)[0]
    begun.append(done)
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[1][:40])
    again = TrainingsFile(path, SIZE)
    assert again.done() == [done]
    left = list(again.missing())
    assert len(left) == 19
    assert left[:3] == [("guess", "verl", 0), ("arith", "local", 0), ("arith", "verl", 0)]
    assert left[3] == ("guess", "verl", 1)  # neither backend always comes first


def test_trainings_of_other_settings_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "trainings.jsonl"
    TrainingsFile(path, SIZE).append(trainings(0.0)[0])
    before = path.read_text()
    with pytest.raises(SystemExit, match="to hold trainings of these settings, found others"):
        TrainingsFile(path, replace(SIZE, steps=3))
    assert path.read_text() == before
