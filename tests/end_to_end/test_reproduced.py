"""A real study, exported, and reproduced from that in an installation which never heard of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.factories import LARGE, TOPIC, ajet, check_whole, inherited, state_of
from tests.furnished import furnish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_an_exported_study_is_reproduced_elsewhere_and_verifies_there_and_from_its_own_export(
    environment: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = ajet(environment, "research", TOPIC, *LARGE, "--no-prefect", "--json")
    assert made.returncode == 0, made.stderr
    (before,) = json.loads(made.stdout)["verdicts"]
    assert before["verdict"] == "equivalent"  # three steps move nothing by as much as that
    assert ajet(environment, "study", "export", json.loads(made.stdout)["study"], str(tmp_path / "out")).returncode == 0

    furnish(home := tmp_path / "elsewhere", tmp_path_factory)
    elsewhere = inherited(**environment | {"AJET_HOME": str(home)})
    again = ajet(elsewhere, "study", "reproduce", str(tmp_path / "out"), "--no-prefect", "--json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    state, there = check_whole(state_of(elsewhere)), check_whole(state_of(environment))
    assert {run.spec.seed for run in state.runs.values()}.isdisjoint(run.spec.seed for run in there.runs.values())
    (told,) = result["reproduces"]
    assert (told["of"], told["outcome"]) == (f"{there.id}/1/h1", "replicated")
    assert told["of"] in Path(result["report"]["html"]).read_text()
    assert ajet(elsewhere, "study", "verify").returncode == 0
    assert ajet(elsewhere, "study", "export", state.id, str(tmp_path / "other")).returncode == 0
    differ = json.loads(ajet(elsewhere, "study", "diff", str(tmp_path / "out"), state.id, "--json").stdout)["differ"]
    changed = {name.partition(" ")[0] for name in differ if not name.startswith(("versions", "machine"))}
    assert changed <= {"design.metric.task_seed", "group_size"}  # the tasks, and what was measured of them
