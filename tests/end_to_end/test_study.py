"""The README's command: a whole study, everything real (Prefect, swarm servers, the local backend, W&B logs)."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from research.models.fetch import RECORD, SMOLLM2_135M, ModelRecord
from studies.records.statements import model_name
from swarm.backends.tiny_model import ensure_tiny
from swarm.job import Job, TinyModel
from swarm.models import folder_hash
from tests.end_to_end.factories import LARGE, TOPIC, ajet, check_whole, start, state_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def flow_runs(url: str, home: Path) -> list[dict[str, Any]]:
    entry = base64.b64encode((home / "prefect" / "password").read_text().strip().encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {entry}"}
    request = urllib.request.Request(f"{url}/api/flow_runs/filter", b"{}", headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        found: list[dict[str, Any]] = json.load(reply)
    return found


def test_a_killed_study_is_resumed_to_a_trustworthy_report(environment: dict[str, str]) -> None:
    controller = start(environment, "research", TOPIC, "--max-runs", "7", *LARGE)
    wait_until(controller, environment, lambda state: any(run.status == "collected" for run in state.runs.values()))
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()

    resumed = ajet(environment, "study", "resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    result = json.loads(resumed.stdout)
    state = check_whole(state_of(environment))
    assert result["runs"] == {"planned": 7, "collected": 7}
    assert all(len(run.attempts) == 1 for run in state.runs.values())  # what ran when it was killed was adopted
    assert state.planner["name"] == "rules"
    assert state.model is not None
    assert re.fullmatch("[0-9a-f]{64}", state.model["sha256"])

    html, markdown = (Path(result["report"][kind]).read_text() for kind in ("html", "markdown"))
    for run_id in state.runs:
        assert run_id in html
        assert run_id in markdown
    assert not re.search(r"""(src|href)=["']https?://""", html)  # the report is one self-contained file
    assert result["verdicts"][0]["verdict"] in {"supported", "refuted", "equivalent", "inconclusive"}

    states = sorted(run["state"]["type"] for run in flow_runs(result["prefect"], Path(environment["AJET_HOME"])))
    assert states == ["COMPLETED"]  # one flow run for the whole life of a study


def test_a_model_by_its_name_is_asked_its_question_with_the_fields_that_suit_it(environment: dict[str, str]) -> None:
    """A fake stands in for it, of a hundred thousand parameters, that was made on the spot."""
    models = Path(environment["AJET_HOME"]) / "models"
    models.unlink()  # which others share
    folder = ensure_tiny(TinyModel(warm_start_steps=20), "words", models).rename(models / SMOLLM2_135M.name)
    record = ModelRecord(
        name=folder.name, requirement="none", file="none", file_sha256="none", licence="none", about="a fake",
        weights_sha256="none", folder_hash=folder_hash(folder), converted_by="nobody",
    )  # fmt: skip
    (folder / RECORD).write_text(record.model_dump_json())
    ended = ajet(environment, "research", "--model", folder.name, "--explore", "--no-prefect")
    assert ended.returncode == 0, ended.stderr
    assert SMOLLM2_135M.question in ended.stderr
    state = state_of(environment)
    assert state is not None
    jobs = [Job.from_record(run.spec.job) for run in state.every_run.values()]
    assert sorted((job.environment, job.learning_rate, job.lora_rank, job.steps) for job in jobs) == [
        ("words", 5e-5, 16, 6), ("words", 5e-4, 16, 6),
    ]  # fmt: skip
    assert {model_name(job.model.model_dump()) for job in jobs} == {folder.name}
    assert all(run.status == "collected" for run in state.every_run.values())
