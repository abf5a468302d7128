"""What a planner adds to its log beside its turns: looks, notes, revisions, questions; and who may answer when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import EventType, LogCorrupt
from studies.records.design_parts import Amendment
from tests.studies.synthetic import Synthetic

TURN: dict[str, Any] = {"turn": "1/propose/1"}
NOTE = Amendment.model_validate({"kind": "note", "target": "", "value": None, "reason": "Yes."}).model_dump(mode="json")


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    made = Synthetic(tmp_path)
    made.create()
    return made


def test_notes_revisions_and_questions_are_kept_in_order(study: Synthetic) -> None:
    study.append(EventType.PLANNER_NOTED, text="An idea.", index=0, **TURN)
    idea = study.state().notebook[0].id
    study.append(EventType.PLANNER_NOTED, text="", about=idea, reason="Wrong.", index=1, **TURN)
    study.append(EventType.PLANNER_ASKED, text="Which?", index=2, **TURN)
    assert [(note.kind, note.text, note.about, note.reason) for note in study.state().notebook] == [
        ("note", "An idea.", "", ""), ("revise", "", idea, "Wrong."), ("ask", "Which?", "", ""),
    ]  # fmt: skip
    assert idea == f"idea-{study.state().notebook[0].seq}"
    assert study.state().notebook[2].id.startswith("question-")


@pytest.mark.parametrize(
    ("kind", "payload", "told"),
    [
        (EventType.PLANNER_NOTED, {"text": "x", "about": "idea-99", "index": 1}, "found 'idea-99'"),
        (EventType.PLANNER_NOTED, {"text": "x", "index": 0}, "note 0 of the turn 1/propose/1 was kept before"),
        (EventType.PLANNER_ASKED, {"text": "x", "index": 0}, "was kept before"),
        (EventType.PLANNER_ASKED, {"index": 1}, "lacks what it must hold"),
    ],
)
def test_what_cannot_follow_is_refused(study: Synthetic, kind: EventType, payload: dict[str, Any], told: str) -> None:
    study.append(EventType.PLANNER_NOTED, text="An idea.", index=0, **TURN)
    study.append(kind, **payload, **TURN)
    with pytest.raises(LogCorrupt, match=told):
        study.state()


def test_nothing_is_noted_in_a_study_that_is_over(study: Synthetic) -> None:
    study.lock()
    study.conclude()
    study.append(EventType.PLANNER_NOTED, text="Too late.", index=0, **TURN)
    with pytest.raises(LogCorrupt, match="concluded before"):
        study.state()


def test_the_looks_of_a_turn_are_counted_and_a_turn_of_old_has_none(study: Synthetic) -> None:
    turn = {"action": "propose", "tries": 1, "tokens": {}, "rejected": [], "note": ""}
    look = {"name": "runs", "arguments": {}, "sha256": "0" * 64, "characters": 12}
    study.append(EventType.PLANNER_ACTED, **turn)
    study.append(EventType.PLANNER_ACTED, **turn, looks=[look])
    assert [act.looks for act in study.state().planner_acts] == [(), (look,)]


def test_a_question_may_be_answered_before_the_lock_and_nothing_else_noted(study: Synthetic) -> None:
    study.append(EventType.PLANNER_ASKED, text="Which?", index=0, **TURN)
    assert study.state().takes_notes
    study.append(EventType.DESIGN_AMENDED, amendment=NOTE)
    assert study.state().amendments[0].amendment.reason == "Yes."


def test_before_the_lock_nobody_notes_unasked(study: Synthetic) -> None:
    assert not study.state().takes_notes
    study.append(EventType.DESIGN_AMENDED, amendment=NOTE)
    with pytest.raises(LogCorrupt, match="before any design was locked"):
        study.state()
