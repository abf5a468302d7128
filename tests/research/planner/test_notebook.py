"""The planner's notebook: what may be written down, and how it is shown back, bounded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from research.planner.notebook import MOST_SHOWN, Notebook
from research.proposals.actions import AskUser, Note, Revise
from studies.log.study_state import PlannerNote


def note(seq: int, **changes: Any) -> PlannerNote:
    parts = {
        "kind": "note",
        "text": f"Idea {seq}.",
        "round": 1,
        "seq": seq,
        "ts": "",
        "turn": "1/propose/1",
        "index": seq,
    }
    return PlannerNote(**{**parts, **changes})


BOOK = Notebook((
    note(3), note(4, kind="ask", text="Which?"), note(5),
    note(6, kind="revise", text="Narrower.", about="idea-3", reason="Seen once."),
    note(7, kind="revise", text="", about="idea-5", reason="It was wrong."),
))  # fmt: skip


@pytest.mark.parametrize(
    ("aside", "told"),
    [
        (Revise(about="idea-9", reason="x"), r"expected an idea of your notebook \(idea-3, idea-5\); found 'idea-9'"),
        (Revise(about="question-4", reason="x"), "expected an idea of your notebook"),
        (Revise(about="idea-5", text="y", reason="x"), "idea-5 was withdrawn before; note a new idea instead"),
        (Revise(about="idea-3", text="Narrower.", reason="x"), "found the same words"),
        (Note(text="Idea 3."), "what your notebook holds already"),
        (AskUser(text="Which?"), "what was asked already"),
    ],
)
def test_what_cannot_be_written_down_is_refused_with_a_reason(aside: Note | Revise | AskUser, told: str) -> None:
    assert re.search(told, str(BOOK.refuses(aside)))


@pytest.mark.parametrize(
    "aside", [Revise(about="idea-3", text="Narrower still.", reason="x"), Note(text="New."), AskUser(text="Idea 3.")]
)
def test_what_is_new_is_written_down(aside: Note | Revise | AskUser) -> None:
    assert BOOK.refuses(aside) is None


def test_ideas_are_shown_as_they_stand_now() -> None:
    assert BOOK.facts() == {
        "your_notebook": [
            {"id": "idea-3", "round": 1, "text": "Idea 3.", "now": "Narrower.", "because": "Seen once."},
            {"id": "idea-5", "round": 1, "text": "Idea 5.", "withdrawn_because": "It was wrong."},
        ],
        "you_asked_the_user": [{"id": "question-4", "text": "Which?"}],
    }
    assert Notebook().facts() == {}


def test_a_long_notebook_is_shown_in_part_and_says_so() -> None:
    facts = Notebook(tuple(note(seq) for seq in range(MOST_SHOWN + 5))).facts()
    assert [entry["id"] for entry in facts["your_notebook"]] == [f"idea-{seq}" for seq in range(5, MOST_SHOWN + 5)]
    assert facts["left_out_of_your_notebook"] == "5 older entries"


def test_words_are_shown_without_what_does_not_print() -> None:
    [shown] = Notebook((note(1, text="a\x1b[2Jb\nc"),)).facts()["your_notebook"]
    assert shown["text"] == "ab c"
