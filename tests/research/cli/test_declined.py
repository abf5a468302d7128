"""A topic that a language model declines: an end with exit code 0, said as the model's words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.research.cli.conftest import Ajet
from tests.research.planner.scripted_endpoint import says, scripted_endpoint

TOPIC = "Does curriculum learning raise success?"
LLM = ("--planner", "llm", "--planner-model", "m")
REASON = "There is no curriculum here."


@pytest.fixture(autouse=True)
def declining(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model that declines whatever it is asked."""
    with scripted_endpoint([says({"action": "decline", "reason": REASON})]) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
        yield


def test_a_declined_study_ends_well_with_its_reason_and_a_report_and_does_not_go_on(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC, *LLM, "--no-prefect")
    assert ended.code == 0
    assert f'declined  llm m: "{REASON}"' in ended.out
    assert "report.html" in ended.out
    again = ajet("study", "resume")
    assert (again.code, f'declined  llm m: "{REASON}"' in again.out) == (0, True)
    (study,) = json.loads(ajet("study", "list", "--json").out)
    assert (study["status"], study["declined"], study["said"]["text"]) == ("concluded", True, REASON)
    assert study["reason"] == "the planner declined the topic: nothing was tested"


def test_a_plan_of_a_declined_topic_is_the_reason(ajet: Ajet) -> None:
    ended = ajet("study", "plan", TOPIC, *LLM)
    assert (ended.code, f'declined  llm m: "{REASON}"' in ended.out) == (0, True)
    told = json.loads(ajet("study", "plan", TOPIC, *LLM, "--json").out)
    assert told == {"accepted": False, "declined": {"by": "llm m", "reason": REASON}}
