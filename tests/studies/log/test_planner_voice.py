from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import EventType, LogCorrupt, StudyState
from studies.records.procedure import Amendment
from studies.records.verdict import PlannerMessage
from studies.report.build import render_report
from tests.golden import refused
from tests.studies.synthetic import Synthetic

TURN: dict[str, Any] = {"turn": "1/propose/1"}
NOTE = Amendment.model_validate({"kind": "note", "target": "", "value": None, "reason": "Yes."}).model_dump(mode="json")
ACTED: dict[str, Any] = {"action": "propose", "tries": 1, "tokens": {}, "rejected": [], "note": ""}


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    made = Synthetic(tmp_path)
    made.create()
    return made


def test_notes_revisions_and_questions_are_kept_in_order_and_quoted_in_both_pages(study: Synthetic) -> None:
    pages = render_report(study.state(), study.folder)
    assert "notebook" not in pages["report.md"] + pages["report.html"]
    study.append(EventType.PLANNER_NOTED, text="Larger <b>groups</b> might help.", index=0, **TURN)
    idea = study.state().notebook[0].id
    study.append(EventType.PLANNER_NOTED, text="", about=idea, reason="They cost.", index=1, **TURN)
    study.append(EventType.PLANNER_ASKED, text="Which?", index=2, **TURN)
    notes = study.state().notebook
    assert [(note.kind, note.text, note.about, note.reason) for note in notes] == [
        ("note", "Larger <b>groups</b> might help.", "", ""), ("revise", "", idea, "They cost."),
        ("ask", "Which?", "", ""),
    ]  # fmt: skip
    assert idea == f"idea-{notes[0].seq}"
    assert notes[2].id.startswith("question-")
    pages = render_report(study.state(), study.folder)
    for page in (pages["report.md"], pages["report.html"]):
        assert "withdrawn, because “They cost.”" in page
        assert "question to the user" in page
        assert "<b>groups" not in page


@pytest.mark.parametrize(
    ("kind", "payload", "named"),
    [
        (EventType.PLANNER_NOTED, {"text": "x", "about": "idea-99", "index": 1}, "'idea-99'"),
        (EventType.PLANNER_NOTED, {"text": "x", "index": 0}, "1/propose/1"),
        (EventType.PLANNER_ASKED, {"text": "x", "index": 0}, "kept before"),
        (EventType.PLANNER_ASKED, {"index": 1}, "lacks"),
    ],
    ids=["about nothing", "a note twice", "a question twice", "without text"],
)
def test_what_cannot_follow_is_refused(study: Synthetic, kind: EventType, payload: dict[str, Any], named: str) -> None:
    study.append(EventType.PLANNER_NOTED, text="An idea.", index=0, **TURN)
    study.append(kind, **payload, **TURN)
    with refused(LogCorrupt, named):
        study.state()


def test_nothing_is_noted_in_a_study_that_is_over(study: Synthetic) -> None:
    study.lock()
    study.conclude()
    study.append(EventType.PLANNER_NOTED, text="Too late.", index=0, **TURN)
    with pytest.raises(LogCorrupt, match="concluded before"):
        study.state()


def test_the_looks_of_a_turn_are_counted_and_a_turn_of_old_has_none(study: Synthetic) -> None:
    look = {"name": "runs", "arguments": {}, "sha256": "0" * 64, "characters": 12}
    study.append(EventType.PLANNER_ACTED, **ACTED)
    study.append(EventType.PLANNER_ACTED, **ACTED, looks=[look])
    assert [act.tool_calls for act in study.state().planner_acts] == [(), (look,)]


def test_a_question_may_be_answered_before_the_lock_and_nothing_else_noted(study: Synthetic) -> None:
    assert not study.state().takes_notes
    study.append(EventType.PLANNER_ASKED, text="Which?", index=0, **TURN)
    assert study.state().takes_notes
    study.append(EventType.DESIGN_AMENDED, amendment=NOTE)
    assert study.state().amendments[0].amendment.reason == "Yes."


def test_before_the_lock_nobody_notes_unasked(study: Synthetic) -> None:
    study.append(EventType.DESIGN_AMENDED, amendment=NOTE)
    with refused(LogCorrupt, "lock"):
        study.state()


def concluded(folder: Path, planner: str, acted: str = "conclude", **payload: object) -> StudyState:
    """Return a study of a planner that took one turn and was concluded so."""
    study = Synthetic(folder)
    study.create(planner={"name": planner, "model": None if planner == "rules" else "m"})
    study.append(EventType.PLANNER_ACTED, **{**ACTED, "action": acted})
    study.append(EventType.DECISION_TAKEN, rule="all verdicts are in", action="conclude", reason="judged")
    study.append(EventType.STUDY_CONCLUDED, **payload)
    return study.state()


def test_the_reason_a_study_is_concluded_for_is_codes_and_the_words_are_the_planners(tmp_path: Path) -> None:
    words = PlannerMessage(
        by="llm m", text="It is SUPPORTED, p < 0.0001.", unfounded=("0.0001",), contradicted=("SUPPORTED",)
    )
    state = concluded(tmp_path, "llm", reason="judged", said=words.model_dump(mode="json"))
    assert (state.concluded_reason, state.said, state.declined) == ("judged", words, False)


@pytest.mark.parametrize(("planner", "acted"), [("rules", "conclude"), ("llm", "design"), ("llm", "conclude")])
def test_a_reason_concluded_without_words_stands_alone(tmp_path: Path, planner: str, acted: str) -> None:
    state = concluded(tmp_path, planner, acted, reason="all is judged")
    assert (state.concluded_reason, state.said) == ("all is judged", None)


def test_a_declined_study_is_concluded_and_says_so(tmp_path: Path) -> None:
    words = PlannerMessage(by="llm m", text="No field is a curriculum.", unfounded=())
    state = concluded(tmp_path, "llm", "decline", reason="declined", said=words.model_dump(mode="json"), declined=True)
    assert (state.status, state.declined, state.said) == ("concluded", True, words)
