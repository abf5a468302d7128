from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import EventType, LogCorrupt
from studies.records.procedure import Amendment
from studies.records.verdict import PlannerMessage
from studies.report.build import render_report
from tests.golden import refused
from tests.studies.synthetic import Synthetic

TURN: dict[str, Any] = {"turn": "1/propose/1"}
NOTE = Amendment.model_validate({"kind": "note", "target": "", "value": None, "reason": "Yes."}).model_dump(mode="json")
ACTED: dict[str, Any] = {"action": "propose", "tries": 1, "tokens": {}, "rejected": [], "note": ""}


@pytest.fixture
def study(study: Synthetic) -> Synthetic:
    study.create()
    return study


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
        (EventType.PLANNER_ASKED, {"index": 1}, "text"),
    ],
    ids=["about nothing", "a note twice", "a question twice", "without text"],
)
def test_what_cannot_follow_is_refused(study: Synthetic, kind: EventType, payload: dict[str, Any], named: str) -> None:
    study.append(EventType.PLANNER_NOTED, text="An idea.", index=0, **TURN)
    study.append(kind, **payload, **TURN)
    with refused(LogCorrupt, named):
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


WORDS = PlannerMessage(
    by="llm m", text="It is SUPPORTED, p < 0.0001.", unfounded=("0.0001",), contradicted=("SUPPORTED",)
)


@pytest.mark.parametrize(
    ("planner", "acted", "said", "declined"),
    [
        ("llm", "conclude", WORDS, False), ("llm", "decline", WORDS, True), ("llm", "conclude", None, False),
        ("rules", "conclude", None, False), ("llm", "design", None, False),
    ],
)  # fmt: skip
def test_the_reason_a_study_is_concluded_for_is_codes_and_the_words_are_the_planners(
    tmp_path: Path, planner: str, acted: str, said: PlannerMessage | None, declined: bool
) -> None:
    study = Synthetic(tmp_path)
    study.create(planner={"name": planner, "model": None if planner == "rules" else "m"})
    study.append(EventType.PLANNER_ACTED, **{**ACTED, "action": acted})
    payload = {"reason": "judged", "declined": declined}
    study.append(EventType.STUDY_CONCLUDED, **payload, said=None if said is None else said.model_dump(mode="json"))
    state = study.state()
    assert (state.status, state.concluded_reason, state.said, state.declined) == ("concluded", "judged", said, declined)
