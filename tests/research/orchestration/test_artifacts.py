"""What a study's artifacts say, each made anew only when what it says changed, and the pictures inside a report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from research.orchestration.artifacts import (
    DESCRIPTIONS,
    MOST_POINTS,
    LiveCurves,
    StudyArtifact,
    build_artifacts,
    embed_pictures,
)
from research.runs.files import AttemptProgress
from studies import EventType, StudyState
from studies.report.figure_data import ArmCurves, Curves, SeedCurve, mean_of
from studies.report.plots import curves_picture
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import Synthetic, design, hypothesis


def found(state: StudyState, folder: Path) -> dict[str, StudyArtifact]:
    progress, *others = build_artifacts(state, folder, lambda run, attempt: None)
    assert progress.description
    return {each.name: each for each in others}


def test_there_is_an_artifact_once_there_is_something_to_show_and_each_is_described(synthetic: Synthetic) -> None:
    assert list(found(synthetic.state(), synthetic.folder)) == []
    synthetic.append(EventType.HYPOTHESIS_PROPOSED, **hypothesis().model_dump(mode="json"))
    assert list(found(synthetic.state(), synthetic.folder)) == ["plan"]
    synthetic = Synthetic(synthetic.folder / "whole")
    synthetic.whole(design((hypothesis("h1", 16), hypothesis("h2", 8))))
    shown = found(synthetic.state(), synthetic.folder)
    assert list(shown) == ["plan", "runs", "verdicts"]
    rows = json.loads(str(shown["verdicts"].make()))
    assert ([row["hypothesis"] for row in rows], rows[0]["verdict"]) == (["h1", "h2"], "supported")
    assert (rows[0]["runs"], float(rows[0]["estimate"]) > 0) == ("5 + 5", True)
    assert {"plan", "runs", "verdicts", "progress", "curves", "results", "report"} == {*DESCRIPTIONS, "progress"}


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
        "`group_size=4` (control)",
        "| seeds per arm | 5 |",
        "10 runs, about 6 min 15 s with 2 at once",
        synthetic.state().design_hash or "?",
    ):
        assert part in text, part


def test_the_table_of_runs_links_to_the_tracked_run_or_names_its_log(synthetic: Synthetic) -> None:
    synthetic.lock()
    online, offline, strange, *_ = synthetic.plan()
    for spec in (online, offline, strange):
        synthetic.launch(spec)
    synthetic.end(offline, status="lost", code="lost", reason="gone")
    synthetic.launch(offline, 2)
    state = synthetic.state()
    pages = {online.run_id: "https://wandb.example/e/p/runs/x", strange.run_id: "javascript:alert(1)"}
    shown = {
        name: replace(run, attempts=tuple(replace(each, url=pages.get(name, "")) for each in run.attempts))
        for name, run in state.runs.items()
    }
    found = build_artifacts(
        replace(state, runs=shown), synthetic.folder, lambda run, attempt: f"wandb/{attempt.number}"
    )
    (table,) = [each.make() for each in found if each.name == "runs"]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    page = f"[{online.run_id}-a1](https://wandb.example/e/p/runs/x)"
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
        (f"group\\_size=16 seed {offline.seed}", "2", "running", "offline: `wandb/2`"),
        (f"group\\_size=4 seed {strange.seed}", "1", "running", "offline: `wandb/1`"),
        (f"group\\_size=16 seed {offline.seed}", "1", "lost", "offline: `wandb/1`"),
        (f"group\\_size=4 seed {online.seed}", "1", "running", page),
    ]


def test_what_says_the_same_has_the_same_version(synthetic: Synthetic) -> None:
    def versions() -> dict[str, object]:
        return {name: each.version for name, each in found(synthetic.state(), synthetic.folder).items()}

    synthetic.lock()
    planned, specs = versions(), synthetic.plan()
    assert versions() == planned
    synthetic.launch(specs[0])
    begun = versions()
    assert begun.keys() - planned.keys() == {"runs"}
    synthetic.append(EventType.STUDY_WORKED, worked_s=1.0)
    assert versions() == begun
    synthetic.end(specs[0])
    assert {name for name, version in versions().items() if version != begun[name]} == {"runs"}
    synthetic.append(EventType.HYPOTHESIS_VETOED, hypothesis="h1", reason="no")
    assert versions()["plan"] != planned["plan"]


def test_artifacts_of_an_inquiry_hold_the_rounds_before(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    state = study.two_rounds()
    shown = found(state, tmp_path)
    plan = shown["plan"].make()
    assert "## Rounds before\n\n- Round 1: Whether group\\_size = 16 raises" in plan
    assert f"h1 supported; locked as {(state.rounds_before[0].design_hash or '')[:16]}" in plan
    assert '**Round 2 of at most 3**, asked as: "group\\_size = 32 is the rung above."' in plan
    judged = [(row["round"], row["hypothesis"]) for row in json.loads(shown["verdicts"].make())]
    assert judged == [(1, "h1"), (2, "r2h1")]
    table = shown["runs"].make()
    assert (table.count("round 1: "), table.count("round 2: ")) == (10, 10)
    study.begin_next()
    assert found(study.state(), tmp_path)["plan"].version != shown["plan"].version
    assert found(study.state(), tmp_path)["runs"].version == shown["runs"].version
    written = replace(study.state(), report={"markdown": {"path": "report.md", "sha256": "0"}})
    results = json.loads(found(written, tmp_path)["results"].make())
    assert [row["round"] for row in results] == [1] * 10 + [2] * 10


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


def progress(step: int) -> AttemptProgress:
    return AttemptProgress(stage="train", step=step, steps=40, train_success=0.5, seconds=step)


def arms(curves: LiveCurves, synthetic: Synthetic) -> dict[str, ArmCurves]:
    curves.read(synthetic.state())
    data = curves.data(synthetic.state())
    return {} if data is None else {arm.arm: arm for arm in data.arms}


def test_collected_runs_are_read_once_and_running_ones_as_far_as_they_were_seen(locked: Synthetic) -> None:
    curves = LiveCurves(locked.folder)
    assert arms(curves, locked) == {}
    first, second, third, *_ = locked.plan()
    locked.run(first)
    locked.launch(second)
    locked.launch(third)
    before = curves.version(locked.state())
    for step in (0, 1, 2):
        curves.add_progress(second.run_id, 1, progress(step))
    found = arms(curves, locked)
    assert list(found) == [first.arm, f"{second.arm}, running"]
    assert len(found[first.arm].mean) == 40
    assert found[f"{second.arm}, running"].seeds[0].points == ((128.0, 0.5), (256.0, 0.5))
    assert curves.version(locked.state()) != before
    (locked.folder / "runs" / first.run_id / "snapshot.json").unlink()
    assert list(arms(curves, locked)) == list(found)  # it was read already


def test_of_a_long_training_a_part_of_its_points_is_kept_with_the_last(locked: Synthetic) -> None:
    first, *_ = locked.plan()
    locked.launch(first)
    locked.end(first)
    locked.collect(first, steps=1111)
    points = arms(LiveCurves(locked.folder), locked)[first.arm].mean
    assert MOST_POINTS // 2 < len(points) <= MOST_POINTS + 1
    assert points[-1][0] == 1111 * 128


def test_a_file_that_was_changed_has_no_curve(locked: Synthetic) -> None:
    first, *_ = locked.plan()
    locked.run(first)
    path = locked.folder / "runs" / first.run_id / "snapshot.json"
    path.write_text(path.read_text() + " ")
    assert arms(LiveCurves(locked.folder), locked) == {}


def test_a_try_that_begins_anew_is_drawn_by_its_own_progress(locked: Synthetic) -> None:
    curves = LiveCurves(locked.folder)
    spec, *_ = locked.plan()
    locked.launch(spec)
    curves.add_progress(spec.run_id, 1, progress(30))
    locked.end(spec, status="lost", code="lost")
    assert arms(curves, locked) == {}
    locked.launch(spec, 2)
    curves.add_progress(spec.run_id, 2, progress(1))
    assert arms(curves, locked)[f"{spec.arm}, running"].seeds[0].points == ((128.0, 0.5),)


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
    assert drawn[2:] == ["group_size=16 group_size=32"]  # the second round is over now, and drawn for the last time
    curves.markdown(study.state())
    assert len(drawn) == 3
