"""`ajet planner calibration`, and a topic that a language model declines: what a person and a script see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.installation.home import Home
from studies import EventLog
from tests.research.calibrated import Came, write_study
from tests.research.cli.conftest import Ajet
from tests.research.planner.scripted_endpoint import says, scripted_endpoint


def fill(*claims: Came, study: str = "a", planner: str = "rules") -> None:
    with closing(EventLog(Home.locate().prepare().database)) as log:
        write_study(log, study, *claims, planner=planner)


def test_an_empty_home_or_a_study_without_a_verdict_is_told_in_one_line(ajet: Ajet) -> None:
    ended = ajet("planner", "calibration")
    assert (ended.code, ended.out.count("\n"), "final verdict: 1" in ended.out) == (0, 1, False)
    fill(Came(0.5, None))
    ended = ajet("planner", "calibration")
    assert (ended.code, ended.out.count("\n"), "final verdict: 1" in ended.out) == (0, 1, True)


def test_the_screen_shows_scores_beside_the_constant_and_bins_with_counts(ajet: Ajet) -> None:
    fill(Came(0.7, "supported"), Came(0.7, "refuted", -0.1), Came(0.2, "inconclusive"))
    out = ajet("planner", "calibration").out
    for part in (
        "3 claims in 1 study: 1 supported, 1 refuted, 1 inconclusive", "Brier 0.207", "0.222: all 3 valid",
        "Brier 0.290", "0.250: the 2 decided", "held 67% [21%, 94%]", "80%: 3 intervals", "60% to 80%",
    ):  # fmt: skip
        assert part in out, part


def test_where_no_verdict_is_valid_nothing_is_scored(ajet: Ajet) -> None:
    fill(Came(0.5, "invalid", None))
    out = ajet("planner", "calibration").out
    assert ("1 claim in 1 study: 1 invalid" in out, "nothing to score" in out) == (True, True)


def test_json_holds_the_same_figures(ajet: Ajet) -> None:
    fill(Came(0.7, "supported"))
    fill(Came(0.4, "refuted"), study="b", planner="llm")
    found = json.loads(ajet("planner", "calibration", "--planner", "llm", "--json").out)
    (entry,) = found["planners"]
    assert (entry["planner"], entry["valid"], round(entry["brier"], 2)) == ("llm", 1, 0.16)
    assert entry["scores"]["verdicts"] == {"refuted": 1}


TOPIC = "Does curriculum learning raise success?"
LLM = ("--planner", "llm", "--planner-model", "m")
REASON = "There is no curriculum here."


@pytest.fixture
def declining(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model that declines whatever it is asked."""
    with scripted_endpoint([says({"action": "decline", "reason": REASON})]) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
        yield


@pytest.mark.usefixtures("declining")
def test_a_declined_study_ends_well_with_its_reason_and_a_report_and_does_not_go_on(ajet: Ajet) -> None:
    ended = ajet("research", TOPIC, *LLM, "--no-prefect")
    declined = f'declined  llm m: "{REASON}"'
    assert (ended.code, declined in ended.out, "report.html" in ended.out) == (0, True, True)
    again = ajet("study", "resume")
    assert (again.code, declined in again.out) == (0, True)
    (study,) = json.loads(ajet("study", "list", "--json").out)
    assert (study["status"], study["declined"], study["said"]["text"]) == ("concluded", True, REASON)
    assert study["reason"].startswith("the planner declined")


@pytest.mark.usefixtures("declining")
def test_a_plan_of_a_declined_topic_is_the_reason(ajet: Ajet) -> None:
    assert f'declined  llm m: "{REASON}"' in ajet("study", "plan", TOPIC, *LLM).out
    told = ajet("study", "plan", TOPIC, *LLM, "--json").data
    assert told == {"accepted": False, "declined": {"by": "llm m", "reason": REASON}}
