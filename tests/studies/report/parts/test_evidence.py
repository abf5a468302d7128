from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies import ReportError, StudyState
from studies.records.base import canonical
from studies.report.parts.evidence import AFTER, BEFORE, REWARDS, SUCCESS, gather
from tests.studies.synthetic import Synthetic


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


def rewritten(state: StudyState, folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> StudyState:
    """Return a state in which the first run's file was collected with `change` made to it."""
    run_id, run = next(iter(state.runs.items()))
    assert run.collected is not None
    path = folder / run.collected[name]["path"]
    value = json.loads(path.read_text())
    change(value)
    path.write_text(canonical(value))
    record = {**run.collected[name], "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    changed = replace(run, collected={**run.collected, name: record})
    return replace(state, runs={**state.runs, run_id: changed})


def test_numbers_are_computed_again_from_the_files(study: Synthetic) -> None:
    state = study.whole()
    evidence = gather(state, study.folder)
    assert evidence.files == 20
    assert evidence.curve_key == SUCCESS
    for run_id, found in evidence.runs.items():
        run = state.runs[run_id]
        assert found.recomputed[AFTER] == run.measurements[AFTER].value
        assert found.recomputed[BEFORE] == run.measurements[BEFORE].value
        assert found.steps == 40
        assert len(found.curves[SUCCESS]) == 40


def test_rewards_stand_in_where_success_was_not_logged(study: Synthetic) -> None:
    def drop(value: dict[str, Any]) -> None:
        for entry in value["history"]:
            entry["metrics"].pop(SUCCESS)

    state = rewritten(study.whole(), study.folder, "snapshot", drop)
    assert gather(state, study.folder).curve_key == REWARDS


def one_episode_flipped(value: dict[str, Any]) -> None:
    episodes = value["final"]["episodes"]
    episodes[0]["success"] = not episodes[0]["success"]


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "an episode changed before hashing": ("evaluation", one_episode_flipped, "No report is built on a number that"),
    "an episode left out": ("evaluation", lambda v: v["final"]["episodes"].pop(), "hidden/success of run .* of 511"),
    "no final episodes": ("evaluation", lambda v: v.pop("final"), "holds no final episodes"),
    "another run's file": ("snapshot", lambda v: v.update(run_id="other"), "is not about this run"),
    "another design's run": ("snapshot", lambda v: v.update(design_hash="f" * 64), "under another design"),
    "no history": ("snapshot", lambda v: v.pop("history"), "holds no readable history"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_contradicts_the_log_is_refused(study: Synthetic, name: str) -> None:
    kind, change, said = REFUSED[name]
    state = rewritten(study.whole(), study.folder, kind, change)
    with pytest.raises(ReportError, match=said):
        gather(state, study.folder)


def test_a_missing_file_is_named(study: Synthetic) -> None:
    state = study.whole()
    run = next(iter(state.runs.values()))
    assert run.collected is not None
    (study.folder / run.collected["evaluation"]["path"]).unlink()
    with pytest.raises(ReportError, match=rf"expected the evaluation of run {run.run_id} at .*No such file"):
        gather(state, study.folder)


def test_a_path_that_leaves_the_study_is_refused(study: Synthetic) -> None:
    state = study.whole()
    run_id, run = next(iter(state.runs.items()))
    assert run.collected is not None
    stray = {**run.collected, "snapshot": {**run.collected["snapshot"], "path": "../../secret"}}
    state = replace(state, runs={**state.runs, run_id: replace(run, collected=stray)})
    with pytest.raises(ReportError, match="outside the study's folder"):
        gather(state, study.folder)


def test_a_run_given_up_for_damaged_files_does_not_stand_in_the_way_of_a_report(study: Synthetic) -> None:
    state = study.whole()
    run_id, run = next(iter(state.runs.items()))
    assert run.collected is not None
    (study.folder / run.collected["evaluation"]["path"]).write_text("damaged")
    with pytest.raises(ReportError, match=run_id):
        gather(state, study.folder)
    given_up = replace(state, runs={**state.runs, run_id: replace(run, invalid=("evaluation_unreadable", "x"))})
    assert run_id not in gather(given_up, study.folder).runs
