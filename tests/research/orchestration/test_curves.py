"""The curves of a study that is under way: what was collected, what was seen of what runs, small in any case."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.orchestration.artifacts import MOST_POINTS, LiveCurves
from research.runs.files import AttemptProgress
from studies.report.figure_data import ArmCurves, Curves, SeedCurve, mean_of
from studies.report.plots import curves_picture
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import Synthetic


@pytest.fixture(autouse=True)
def _locked(synthetic: Synthetic) -> None:
    synthetic.lock()


def progress(step: int) -> AttemptProgress:
    return AttemptProgress(stage="train", step=step, steps=40, train_success=0.5, seconds=step)


def arms(curves: LiveCurves, synthetic: Synthetic) -> dict[str, ArmCurves]:
    curves.read(synthetic.state())
    data = curves.data(synthetic.state())
    return {} if data is None else {arm.arm: arm for arm in data.arms}


def test_collected_runs_are_read_once_and_running_ones_as_far_as_they_were_seen(synthetic: Synthetic) -> None:
    curves = LiveCurves(synthetic.folder)
    assert arms(curves, synthetic) == {}
    first, second, third, *_ = synthetic.plan()
    synthetic.run(first)
    synthetic.launch(second)
    synthetic.launch(third)
    before = curves.version(synthetic.state())
    for step in (0, 1, 2):
        curves.add_progress(second.run_id, 1, progress(step))
    found = arms(curves, synthetic)
    assert list(found) == [first.arm, f"{second.arm}, running"]
    assert len(found[first.arm].mean) == 40
    assert found[f"{second.arm}, running"].seeds[0].points == ((128.0, 0.5), (256.0, 0.5))
    assert curves.version(synthetic.state()) != before
    (synthetic.folder / "runs" / first.run_id / "snapshot.json").unlink()
    assert list(arms(curves, synthetic)) == list(found), "it was read already"


def test_of_a_long_training_a_part_of_its_points_is_kept_with_the_last(synthetic: Synthetic) -> None:
    first, *_ = synthetic.plan()
    synthetic.launch(first)
    synthetic.end(first)
    synthetic.collect(first, steps=1111)
    points = arms(LiveCurves(synthetic.folder), synthetic)[first.arm].mean
    assert MOST_POINTS // 2 < len(points) <= MOST_POINTS + 1
    assert points[-1][0] == 1111 * 128


def test_a_file_that_was_changed_has_no_curve(synthetic: Synthetic) -> None:
    first, *_ = synthetic.plan()
    synthetic.run(first)
    path = synthetic.folder / "runs" / first.run_id / "snapshot.json"
    path.write_text(path.read_text() + " ")
    assert arms(LiveCurves(synthetic.folder), synthetic) == {}


def test_a_try_that_begins_anew_is_drawn_by_its_own_progress(synthetic: Synthetic) -> None:
    curves = LiveCurves(synthetic.folder)
    spec, *_ = synthetic.plan()
    synthetic.launch(spec)
    curves.add_progress(spec.run_id, 1, progress(30))
    synthetic.end(spec, status="lost", code="lost")
    assert arms(curves, synthetic) == {}
    synthetic.launch(spec, 2)
    curves.add_progress(spec.run_id, 2, progress(1))
    assert arms(curves, synthetic)[f"{spec.arm}, running"].seeds[0].points == ((128.0, 0.5),)


@pytest.mark.slow
def test_the_picture_of_two_hundred_long_runs_is_small() -> None:
    """The limit that docs name: 300 kB."""
    drawn = []
    for index, name in enumerate("abcd"):
        seeds = tuple(
            SeedCurve(f"{name}{n}", n, tuple((float(x), (x * 7919 * (n + 1)) % 97 / 97) for x in range(MOST_POINTS)))
            for n in range(50)
        )
        drawn.append(ArmCurves(name, index, seeds, mean_of(seeds)))
    picture = curves_picture(Curves(tuple(drawn), "share", "episodes"))
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 300_000


def test_the_curves_of_rounds_that_are_over_stay_and_are_drawn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, drawn = InRounds(tmp_path / "rounds"), list[str]()
    state, curves = study.two_rounds(), LiveCurves(study.folder)
    monkeypatch.setattr("research.orchestration.artifacts.data_uri", lambda data, kind: f"picture {len(data)}")
    monkeypatch.setattr(
        "studies.report.plots.curves_picture", lambda data: drawn.append(" ".join(arm.arm for arm in data.arms)) or b""
    )
    curves.read(state)
    text = curves.markdown(state)
    assert text.index("## Round 2") < text.index("## Round 1")
    assert drawn == ["group_size=16 group_size=32", "group_size=4 group_size=16"]
    study.begin_next()
    assert curves.version(study.state()) != curves.version(state)
    later = curves.markdown(study.state())
    assert later.startswith("## Round 3")
    assert drawn[2:] == ["group_size=16 group_size=32"], "the second round is over now, and drawn for the last time"
    curves.markdown(study.state())
    assert len(drawn) == 3
