"""A planner's last words in the log: they stand beside code's reason, and never in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import EventType, StudyState
from studies.records.planner_words import PlannerWords
from tests.studies.synthetic import Synthetic

JUDGED = "every hypothesis is judged"
WORDS = "It is strongly SUPPORTED, p < 0.0001."


def concluded(path: Path, planner: str, acted: str = "conclude", **payload: object) -> StudyState:
    """A study of a planner that took one turn and was concluded so."""
    study = Synthetic(path)
    study.create(planner={"name": planner, "model": None if planner == "rules" else "m"})
    study.append(
        EventType.PLANNER_ACTED, action=acted, tries=1, tokens={"prompt": 0, "completion": 0}, rejected=[], note=""
    )
    study.append(EventType.DECISION_TAKEN, rule="all verdicts are in", action="conclude", reason=JUDGED)
    study.append(EventType.STUDY_CONCLUDED, **payload)
    return study.state()


def test_the_reason_is_codes_and_the_words_are_the_planners(tmp_path: Path) -> None:
    said = PlannerWords(by="llm m", text=WORDS, unfounded=("0.0001",), contradicted=("SUPPORTED",))
    state = concluded(tmp_path, "llm", reason=JUDGED, said=said.model_dump(mode="json"))
    assert (state.concluded_reason, state.said, state.declined) == (JUDGED, said, False)


@pytest.mark.parametrize(("planner", "acted"), [("rules", "conclude"), ("llm", "design"), ("llm", "conclude")])
def test_a_reason_beside_which_no_words_are_stored_stands_alone(tmp_path: Path, planner: str, acted: str) -> None:
    state = concluded(tmp_path, planner, acted, reason="all is judged")
    assert (state.concluded_reason, state.said) == ("all is judged", None)


def test_a_declined_study_is_concluded_and_says_so(tmp_path: Path) -> None:
    said = PlannerWords(by="llm m", text="No field is a curriculum.", unfounded=())
    payload = {"reason": "declined", "said": said.model_dump(mode="json"), "declined": True}
    state = concluded(tmp_path, "llm", "decline", **payload)
    assert (state.status, state.declined, state.said) == ("concluded", True, said)
