"""Attempts and jobs of a version that knew no evaluations during training: they open, and keep their names."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from research.files import read_json
from research.runs.files import (
    AttemptFolder,
    AttemptOutcome,
    AttemptSpec,
    due_versions,
    find_kept_file,
    missing_versions,
    read_progress,
)
from studies import EventLog, fold
from swarm.rollout.keys import ServerDirectory
from tests.recorded.conftest import FIRST, Unpack

first_set = pytest.mark.parametrize("recorded_set", [FIRST], indirect=True)


def attempts(home: Path) -> list[tuple[AttemptFolder, AttemptSpec]]:
    folders = [AttemptFolder(path.parent) for path in home.glob("studies/*/attempts/*/attempt.json")]
    return [(folder, AttemptSpec.model_validate(read_json(folder.spec))) for folder in folders]


@first_set
@pytest.mark.parametrize("name", ["finished", "stopped", "simulated"])
def test_attempts_open_without_evaluations_during_training_and_keep_their_names(
    tmp_path: Path, unpack: Unpack, name: str
) -> None:
    found = attempts(unpack(name, tmp_path))
    assert found
    for folder, spec in found:
        assert spec.spec.run_id == spec.run_id, "the hash of what a run is stays what it was"
        assert (spec.evaluate_after, spec.during_sha256, spec.other_environment) == ((), "", None)
        assert due_versions(spec, spec.job.steps) == missing_versions(spec, [], spec.job.steps) == []
        assert find_kept_file(folder) is None
        if folder.outcome.exists():
            assert AttemptOutcome.model_validate(read_json(folder.outcome)).seconds > 0
        if folder.progress.exists():
            assert read_progress(folder) is not None


@first_set
def test_runs_fold_to_attempts_that_kept_no_evaluations(tmp_path: Path, unpack: Unpack) -> None:
    with closing(EventLog(f"sqlite:///{unpack('stopped', tmp_path) / 'ajet.db'}")) as log:
        runs = [run for study in log.studies() for run in fold(log.read(study)).runs.values()]
    assert {attempt.during_sha256 for run in runs for attempt in run.attempts} == {""}


@first_set
@pytest.mark.parametrize("name", ["fake", "local"])
def test_a_servers_job_waits_for_no_evaluation_and_has_the_digest_its_checkpoints_are_named_by(
    tmp_path: Path, unpack: Unpack, name: str
) -> None:
    folder = unpack(name, tmp_path)
    job = ServerDirectory(folder).read_interrupted_job()
    assert (job.evaluate_after, job.evaluation_episodes) == ((), 64)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [job.digest()[:12]]
