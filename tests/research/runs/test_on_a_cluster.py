"""One attempt whose server is of the backend `verl`, in the environment of its own that AJET_TEST_VERL_PYTHON names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.installation.base_job import VERL_PYTHON, variables_of
from research.runs.collect import collect
from sandboxes import Exit
from swarm.job import Job
from tests.research.factories import with_run
from tests.research.runs.trials import EPISODES, Trial

SEVERAL_BOOTS_S = 400.0


class ClusterTrial(Trial):
    def variables(self) -> dict[str, str]:
        return variables_of("verl")


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterTrial]:
    named = os.environ.get("AJET_TEST_VERL_PYTHON")
    if not named:
        pytest.skip("AJET_TEST_VERL_PYTHON names no environment with verl and vLLM: `make test-verl` makes one")
    monkeypatch.setenv(VERL_PYTHON, named)
    trial = ClusterTrial(tmp_path)
    yield trial
    trial.end()


@pytest.mark.timeout(SEVERAL_BOOTS_S)
def test_an_attempt_on_a_cluster_is_trained_measured_and_collected(trial: ClusterTrial, tmp_path: Path) -> None:
    model = {"kind": "tiny", "hidden_size": 32, "layers": 1, "warm_start_steps": 20}
    fields = {"steps": 2, "episodes_per_step": 8, "group_size": 4, "seed": 3, "model": model}
    job = Job.model_validate({"backend": "verl", **fields})
    order = trial.order(steps=2)
    order = with_run(order, job=job.model_dump(mode="json", exclude={"tracking"}))
    handle = trial.launch(order)
    assert handle.wait(SEVERAL_BOOTS_S) == Exit("finished", 0), handle.logs()
    found = collect(trial.folder, order, tmp_path / "study", said=trial.outcome())
    assert found.snapshot["steps"] == 2
    assert {measurement.n for measurement in found.measurements} == {EPISODES}
    assert (found.conditions.checkpoint, len(found.conditions.initial_policy or "")) == ("last", 64)
    assert (found.alarms, trial.pids("-m")) == ((), [])
