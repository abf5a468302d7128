"""Studies whose reward a language model wrote, from the command line: its code runs in containers, and nowhere else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from research.installation.home import Home
from studies import StudyState
from studies.report.evidence import gather
from tests.end_to_end.factories import LARGE, ajet, state_of
from tests.research.planners.scripted_endpoint import says, scripted_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "Does a dense reward function help with sums?"
OFFSET = 5.0
"""Added to every reward of the generated function, so that its runs are told apart by what they logged."""


def source(trace: Path) -> str:
    """Return a reward function whose module would leave a trace on this machine."""
    return (
        f"try:\n    open({str(trace)!r}, 'w').close()\nexcept OSError:\n    pass\n\n\n"
        "def reward(task: dict, messages: list[dict], outcome: dict) -> float:\n"
        "    total = task['data']['left'] + task['data']['right']\n"
        "    close = messages[-1]['content'].strip().endswith(str(total)[-1])\n"
        f"    return {OFFSET} + outcome['reward'] + 0.5 * close\n"
    )


def planned(code: str) -> list[Any]:
    hypothesis = {
        "statement": "A denser reward learns sums faster.", "mechanism": "More of the plays tell something.",
        "variable": "reward", "control": "built-in", "treatment": "last-digit", "code": code, "direction": "increase",
        "predicted_low": 0.0, "predicted_high": 0.3, "probability": 0.6, "smallest_effect": 0.3,
        "falsifier": "It learns no faster.",
    }  # fmt: skip
    design = {"action": "design", "environment": "arith", "seeds_per_arm": 3, "steps": 3, "constants": []}
    return [
        says({"action": "propose", "hypotheses": [hypothesis]}),
        says(design),
        says({"action": "conclude", "reason": "The question is answered as far as the budget goes."}),
    ]


def studied(environment: dict[str, str], code: str) -> tuple[StudyState, dict[str, Any]]:
    with scripted_endpoint(planned(code)) as endpoint:
        settings = {**environment, "OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "sk-hush"}
        llm = ("--planner", "llm", "--planner-model", "scripted")
        options = (*llm, "--no-prefect", "--max-runs", "6", "--json", *LARGE)
        ended = ajet(settings, "research", TOPIC, *options)
    assert "sk-hush" not in ended.stdout + ended.stderr + Path(environment["AJET_HOME"], "ajet.db").read_text("latin-1")
    assert ended.returncode == 0, ended.stderr
    state = state_of(environment)
    assert state is not None
    assert (state.status, state.planner) == ("concluded", {"name": "llm", "model": "scripted"})
    return state, json.loads(ended.stdout)


@pytest.mark.usefixtures("contained_home")
def test_a_generated_reward_is_trained_on_in_containers_and_reported(
    environment: dict[str, str], tmp_path: Path
) -> None:
    trace, contained = tmp_path / "trace", {**environment, "AJET_SANDBOX": "docker"}
    code = source(trace)
    state, result = studied(contained, code)
    assert not trace.exists()
    assert state.design is not None
    assert (state.design.code, result["runs"]) == ({"last-digit": code}, {"planned": 6, "collected": 6})
    assert result["verdicts"][0]["verdict"] in {"supported", "refuted", "equivalent", "inconclusive"}

    evidence = gather(state, Home(Path(contained["AJET_HOME"]), "").study(state.id))
    for run_id, found in evidence.runs.items():
        rewards = [value for _, value in found.curves["critic/rewards/mean"]]
        assert all((value >= OFFSET) == (state.runs[run_id].spec.arm == "reward=last-digit") for value in rewards)

    html, markdown = (Path(result["report"][kind]).read_text() for kind in ("html", "markdown"))
    assert code in markdown
    for text in (html, markdown):
        assert hashlib.sha256(code.encode()).hexdigest() in text
        assert "reward hacking" in text
        assert "containers only" in text
    assert "reward last-digit" in ajet(contained, "study", "show").stdout
    again = ajet(contained, "study", "report", "--build")
    assert again.returncode == 0, again.stderr
