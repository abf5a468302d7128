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
