"""What a planner wrote down is in the report, quoted; a report without it says nothing of a notebook."""

from __future__ import annotations

from pathlib import Path

from studies import EventType
from studies.report.build import render_report
from tests.studies.synthetic import Synthetic


def test_notes_are_quoted_in_both_pages(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    study.create()
    turn = {"turn": "1/propose/1"}
    study.append(EventType.PLANNER_NOTED, text="Larger <b>groups</b> might help.", index=0, **turn)
    idea = study.state().notebook[0].id
    study.append(EventType.PLANNER_NOTED, text="", about=idea, reason="They cost too much.", index=1, **turn)
    study.append(EventType.PLANNER_ASKED, text="How long may a run take?", index=2, **turn)
    pages = render_report(study.state(), tmp_path)
    for page in (pages["report.md"], pages["report.html"]):
        assert "withdrawn, because “They cost too much.”" in page
        assert "a question to the user" in page
        assert "<b>groups" not in page


def test_without_notes_there_is_no_notebook(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    study.create()
    pages = render_report(study.state(), tmp_path)
    assert all("notebook" not in pages[name] for name in ("report.md", "report.html"))
