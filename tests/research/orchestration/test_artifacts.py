"""What a study's artifacts say, each made anew only when what it says changed, and the pictures inside a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from research.orchestration.projection import (
    DESCRIPTIONS,
    MOST_POINTS,
    LearningCurves,
    StudyArtifact,
    build_artifacts,
    embed_pictures,
)
from studies import EventType, StudyState
from studies.report.figure_data import ArmCurves, Curves, SeedCurve, mean_of
from studies.report.plots import curves_picture
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import Synthetic, design, hypothesis


def found(state: StudyState, folder: Path) -> dict[str, StudyArtifact]:
    progress, *others = build_artifacts(state, folder, LearningCurves(folder))
    assert progress.description
    return {each.name: each for each in others}


def test_there_is_an_artifact_once_there_is_something_to_show_and_each_is_described(synthetic: Synthetic) -> None:
    assert list(found(synthetic.state(), synthetic.folder)) == []
    synthetic.append(EventType.HYPOTHESIS_PROPOSED, **hypothesis().model_dump(mode="json"))
    assert list(found(synthetic.state(), synthetic.folder)) == ["plan"]
    synthetic = Synthetic(synthetic.folder / "whole")
    synthetic.whole(design((hypothesis("h1", 16), hypothesis("h2", 8))))
    shown = found(synthetic.state(), synthetic.folder)
    assert list(shown) == ["plan", "curves", "verdicts"]
    rows = json.loads(str(shown["verdicts"].make()))
    assert ([row["hypothesis"] for row in rows], rows[0]["verdict"]) == (["h1", "h2"], "supported")
    assert (rows[0]["n_control"], float(rows[0]["estimate"]) > 0) == (5, True)
    assert {"plan", "verdicts", "curves", "report", "pages"} == {*DESCRIPTIONS}
    served = build_artifacts(synthetic.state(), synthetic.folder, LearningCurves(synthetic.folder), "http://here/s/a")
    assert next(each for each in served if each.name == "pages").make() == "[http://here/s/a](http://here/s/a)"


def test_the_plan_says_what_is_asked_tested_and_left_out_and_the_price(synthetic: Synthetic) -> None:
    synthetic.append(EventType.PLANNER_ACTED, action="propose", tries=1, tokens={}, rejected=[], note="",
                     not_tested=["the *colour* of | the cat"])  # fmt: skip
    synthetic.lock()
    text = found(synthetic.state(), synthetic.folder)["plan"].make()
    assert text.startswith("# Does a larger")
    for part in (
        "## Put to the test\n\n- Whether group\\_size = 16 raises the hidden success",
        "## Not tested\n\n- the \\*colour\\* of \\| the cat",
        "Predicted: a difference of 0.02 to 0.2 (80%), true with probability 0.7",
        "group\\_size=4 (control)",
        "seeds per arm: at most 5",
        "10 runs, about 6 min 15 s with 2 at once",
        synthetic.state().design_hash or "?",
    ):
        assert part in text, part


def test_what_says_the_same_has_the_same_version(synthetic: Synthetic) -> None:
    def versions() -> dict[str, object]:
        return {name: each.version for name, each in found(synthetic.state(), synthetic.folder).items()}

    synthetic.lock()
    planned, specs = versions(), synthetic.plan()
    assert versions() == planned
    synthetic.launch(specs[0])
    begun = versions()
    synthetic.end(specs[0])
    assert versions() == begun == planned
    synthetic.collect(specs[0])
    assert versions().keys() - planned.keys() == {"curves"}
    synthetic.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="no")
    assert versions()["plan"] != planned["plan"]


def test_artifacts_of_an_inquiry_hold_the_rounds_before(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    state = study.two_rounds()
    shown = found(state, tmp_path)
    plan = shown["plan"].make()
    assert "## Rounds before\n\n- Round 1: Whether group\\_size = 16 raises" in plan
    assert f"h1 supported; locked as {(state.rounds_before[0].design_hash or '')[:16]}" in plan
    assert '## Put to the test in round 2 of at most 3, asked as: "group\\_size = 32 is the rung above."' in plan
    judged = [(row["round"], row["hypothesis"]) for row in json.loads(shown["verdicts"].make())]
    assert judged == [(1, "h1"), (2, "r2h1")]
    study.begin_next()
    assert found(study.state(), tmp_path)["plan"].version != shown["plan"].version


def test_artifacts_of_one_round_name_none(tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path)
    state = replace(synthetic.whole(), report={"markdown": {"path": "report.md", "sha256": "0"}})
    assert not [name for name, each in found(state, tmp_path).items() if name != "report" and "ound" in each.make()]


def test_pictures_come_to_so_many_bytes_at_most_and_what_is_not_there_stays_as_it_is(tmp_path: Path) -> None:
    absent = "![a](figures/gone.svg) ![b](https://example.org/b.png) [c](figures/c.svg)"
    assert embed_pictures(absent, tmp_path) == absent
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(b"\x89PNG" + bytes(300))
    text = embed_pictures("![a](a.png) ![b](b.png) ![c](c.png)", tmp_path, most=1000)
    assert text.count("](data:image/png;base64,") == 2
    assert text.endswith("(`c.png` is too large to be shown here)")
    assert len(text) < 1100


@pytest.fixture
def locked(synthetic: Synthetic) -> Synthetic:
    synthetic.lock()
    return synthetic


def arms(curves: LearningCurves, synthetic: Synthetic) -> dict[str, ArmCurves]:
    data = curves.data(synthetic.state())
    return {} if data is None else {arm.arm: arm for arm in data.arms}


def test_collected_runs_are_drawn_and_read_once(locked: Synthetic) -> None:
    curves = LearningCurves(locked.folder)
    assert arms(curves, locked) == {}
    first, second, *_ = locked.plan()
    locked.run(first)
    locked.launch(second)
    found = arms(curves, locked)
    assert list(found) == [first.arm]
    assert len(found[first.arm].mean) == 40
    (locked.folder / "runs" / first.run_id / "snapshot.json").unlink()
    assert list(arms(curves, locked)) == list(found)  # it was read already


def test_of_a_long_training_a_part_of_its_points_is_kept_with_the_last(locked: Synthetic) -> None:
    first, *_ = locked.plan()
    locked.launch(first)
    locked.end(first)
    locked.collect(first, steps=1111)
    points = arms(LearningCurves(locked.folder), locked)[first.arm].mean
    assert MOST_POINTS // 2 < len(points) <= MOST_POINTS + 1
    assert points[-1][0] == 1111 * 128


def test_a_file_that_was_changed_has_no_curve(locked: Synthetic) -> None:
    first, *_ = locked.plan()
    locked.run(first)
    path = locked.folder / "runs" / first.run_id / "snapshot.json"
    path.write_text(path.read_text() + " ")
    assert arms(LearningCurves(locked.folder), locked) == {}


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


def test_the_curves_of_all_rounds_are_drawn_the_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, drawn = InRounds(tmp_path / "rounds"), list[str]()
    state = study.two_rounds()
    monkeypatch.setattr(
        "studies.report.plots.curves_picture", lambda data: drawn.append(" ".join(arm.arm for arm in data.arms)) or b""
    )
    text = LearningCurves(study.folder).markdown(state)
    assert text.index("## Round 2") < text.index("## Round 1")
    assert drawn == ["group_size=16 group_size=32", "group_size=4 group_size=16"]
