"""`ajet study approve` and `deny`: what is answered is shown first, and where nothing is asked nothing happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.installation.home import Home
from research.study.one_controller import controlling
from studies import EventLog, EventType
from tests.research.cli.conftest import Ajet
from tests.studies.log.test_approval_events import ask
from tests.studies.synthetic import STUDY, Synthetic, Ticking


@pytest.fixture
def waiting(home: Path) -> Iterator[Synthetic]:
    """A locked study in the installation's own database that asks to begin what is locked."""
    installation = Home.locate().prepare()
    synthetic = Synthetic(installation.study(STUDY))
    synthetic.log.close()
    synthetic.log = EventLog(installation.database, clock=Ticking())
    synthetic.create()
    synthetic.lock()
    ask(synthetic, would="all ten runs")
    yield synthetic
    synthetic.log.close()


@pytest.mark.parametrize(("word", "granted"), [("approve", True), ("deny", False)])
def test_what_is_asked_is_shown_and_then_answered(ajet: Ajet, waiting: Synthetic, word: str, granted: bool) -> None:
    ended = ajet("study", word, "--note", "as agreed")
    assert ended.code == 0
    shown, _, answered = ended.out.partition("approved by" if granted else "denied by")
    assert "asks to begin: all ten runs" in shown
    assert "at most 10 runs, about 6 min 15 s; 15 min of the budget were left" in shown
    assert "a command: all ten runs" in answered
    assert f"ajet study resume {STUDY}" in answered, "no controller works on it"
    (given,) = waiting.state().approvals
    assert (given.granted, given.by, given.note) == (granted, "command", "as agreed")
    assert waiting.state().status == ("running" if granted else "stopped")


def test_beside_a_controller_that_lives_the_study_goes_on_there(ajet: Ajet, waiting: Synthetic) -> None:
    installation = Home.locate()
    with (
        closing(EventLog(installation.database)) as log,
        controlling(installation, log, STUDY, lambda line: None),
    ):
        ended = ajet("study", "approve")
    assert "goes on under its controller" in ended.out


def test_a_denied_study_says_how_it_is_asked_again_and_where_its_report_comes_from(
    ajet: Ajet, waiting: Synthetic
) -> None:
    said = ajet("study", "deny").out
    assert f"to be asked again: ajet study resume {STUDY}" in said
    assert ajet("study", "report", STUDY, "--build").code == 0
    assert f"ajet study report {STUDY} --build" in said
    shown = json.loads(ajet("study", "show", "--json").out)
    assert shown["reason"] == "denied by a command: all ten runs"
    assert shown["asks"] is None
    assert [entry["granted"] for entry in shown["approvals"]] == [False]


def test_the_answer_as_json(ajet: Ajet, waiting: Synthetic) -> None:
    told = json.loads(ajet("study", "approve", "--json", "--note", "go").out)
    assert (told["study"], told["granted"], told["by"], told["note"]) == (STUDY, True, "command", "go")
    assert told["asked"]["would"] == "all ten runs"
    assert told["asked"]["digest"] == waiting.state().approvals[0].asked.digest


def test_the_open_question_is_shown_wherever_the_study_is(ajet: Ajet, waiting: Synthetic) -> None:
    assert f"answer: ajet study approve {STUDY}; or: ajet study deny {STUDY}" in ajet("study", "show").out
    assert json.loads(ajet("study", "show", "--json").out)["asks"]["runs"] == 10
    assert "waiting" in ajet("study", "list").out
    waiting.append(EventType.STUDY_STOPPED, reason="interrupted by the user")
    assert "asks to begin: all ten runs" in ajet("study", "show").out, "it may be answered before it is resumed"


@pytest.mark.parametrize("word", ["approve", "deny"])
def test_without_a_name_the_study_that_asks_is_answered_and_none_where_several_ask(
    ajet: Ajet, waiting: Synthetic, word: str
) -> None:
    newer = Synthetic(Home.locate().study("newer"), study="newer")
    newer.log.close()
    newer.log = waiting.log
    newer.create()
    newer.lock()
    ask(newer, study="newer", would="a hundred runs")
    ended = ajet("study", word)
    assert ended.code == 2
    assert "the name of one of the studies that wait for approval" in ended.line
    assert (len(newer.state().approvals), len(waiting.state().approvals)) == (0, 0)
    assert ajet("study", "deny", "newer").code == 0
    assert ajet("study", word).code == 0
    assert [entry.asked.question.would for entry in waiting.state().approvals] == ["all ten runs"]


@pytest.mark.parametrize("word", ["approve", "deny"])
def test_where_nothing_is_asked_one_line_says_so(ajet: Ajet, waiting: Synthetic, word: str) -> None:
    ajet("study", "approve")
    before = waiting.state().event_count
    ended = ajet("study", word, STUDY)
    assert ended.code == 2
    assert f"{STUDY} is running and asks nothing; the last question was answered: approved by a command" in ended.line
    assert waiting.state().event_count == before


def test_a_mode_that_there_is_not_is_refused_before_anything_begins(ajet: Ajet, home: Path) -> None:
    ended = ajet("research", "group size 4 vs 8 on arith", "--approve", "sometimes")
    assert ended.code == 2
    assert "expected --approve plan, stages or none; found 'sometimes'" in ended.line
    assert not home.exists()
