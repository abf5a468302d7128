"""`ajet study amend` and `veto`: a change in the open, said back, or one line of why it cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from research.installation.home import Home
from research.study.amendments import ACCEPTABLE
from studies import EventLog, EventType
from studies.checks.confounds import VIOLATION_CODES
from tests.research.cli.conftest import Ajet
from tests.studies.synthetic import STUDY, Synthetic, Ticking


@pytest.fixture
def study(home: Path) -> Synthetic:
    """A study in the installation's own database, created and no more."""
    installation = Home.locate().prepare()
    synthetic = Synthetic(installation.study(STUDY))
    synthetic.log.close()
    synthetic.log = EventLog(installation.database, clock=Ticking())
    synthetic.create()
    return synthetic


@pytest.fixture
def locked(study: Synthetic) -> Synthetic:
    study.lock()
    return study


def test_a_violation_is_accepted_in_the_open(ajet: Ajet, locked: Synthetic) -> None:
    ended = ajet("study", "amend", STUDY, "--accept", "co_tenancy", "--reason", "a backup ran beside both arms")
    assert (ended.code, ended.out) == (0, f"study {STUDY} now accepts co_tenancy\n")
    (amended,) = locked.state().amendments
    assert (amended.amendment.target, amended.actor, amended.after_data) == ("co_tenancy", "user", False)


def test_an_amendment_after_the_first_result_says_what_that_means(ajet: Ajet, locked: Synthetic) -> None:
    locked.run(locked.plan()[0])
    assert "exploratory" in ajet("study", "amend", "--accept", "overlap", "--reason", "x").out
    said = json.loads(ajet("study", "amend", "--budget", "2h", "--reason", "slow", "--json").out)
    assert said["after_data"] is True
    assert said["amendment"] == {"kind": "budget", "target": "", "value": 7200.0, "reason": "slow"}
    assert locked.state().budget_s == 7200.0


def test_a_stopped_study_says_how_to_go_on(ajet: Ajet, locked: Synthetic) -> None:
    locked.append(EventType.STUDY_STOPPED, reason="budget: 900 s of work are used up")
    out = ajet("study", "amend", "--budget", "2h", "--reason", "slow").out
    assert out.splitlines() == [
        f"study {STUDY} now has a budget of 2 h", f"go on with: ajet study resume {STUDY}",
    ]  # fmt: skip


def test_a_note_may_be_added_to_a_finished_study(ajet: Ajet, study: Synthetic) -> None:
    study.lock()
    study.conclude()
    assert ajet("study", "amend", STUDY, "--note", "the machine was moved").code == 0
    assert study.state().amendments[0].amendment.reason == "the machine was moved"


def test_what_the_planner_asks_is_shown_and_answered_by_a_note(ajet: Ajet, study: Synthetic) -> None:
    assert "no locked design yet" in ajet("study", "note", STUDY, "Unasked.").line
    study.append(EventType.PLANNER_ASKED, text="Does arith\x1b[2J matter?", turn="1/propose/1", index=0)
    shown = ajet("study", "show", STUDY).out
    assert "planner asks  Does arith matter?" in shown
    assert f'answer: ajet study note {STUDY} "..."' in shown
    [asked] = json.loads(ajet("study", "show", STUDY, "--json").out)["planner_asks"]
    assert asked["id"] == f"question-{study.state().notebook[0].seq}"
    assert ajet("study", "note", STUDY, "It does.").out == f"noted in study {STUDY}\n"
    assert study.state().amendments[0].amendment.reason == "It does."


def test_a_hypothesis_is_vetoed(ajet: Ajet, locked: Synthetic) -> None:
    ended = ajet("study", "veto", STUDY, "h1", "--reason", "known to be hacked")
    assert ended.out == f"hypothesis h1 of study {STUDY} is vetoed; it gets no more runs\n"
    assert locked.state().vetoed["h1"].reason == "known to be hacked"
    assert "was vetoed before: known to be hacked" in ajet("study", "veto", STUDY, "h1", "--reason", "x").line


WRONG = {
    "nothing to change": (("amend",), "expected one of --accept, --budget and --note; found none"),
    "two changes": (("amend", "--note", "x", "--budget", "2h"), "found --budget, --note"),
    "a note with a reason": (("amend", "--note", "x", "--reason", "y"), "the note is its own reason"),
    "an empty note": (
        ("amend", "--note", "  "),
        "1 to 1000 characters, for the report; found none",
    ),
    "a code that there is not": (("amend", "--accept", "luck", "--reason", "x"), "found 'luck'"),
    "no reason": (
        ("amend", "--accept", "overlap"),
        "1 to 1000 characters, for the report; found none",
    ),
    "too long a reason": (("amend", "--accept", "overlap", "--reason", "x" * 1001), "found 1001 characters"),
    "no budget": (("amend", "--budget", "soon", "--reason", "x"), "expected a budget"),
    "the budget it has": (("amend", "--budget", "15m", "--reason", "x"), "has a budget of 15 min already"),
    "another study": (("amend", "nobody", "--note", "x"), "nobody"),
    "no such hypothesis": (("veto", STUDY, "h7", "--reason", "x"), "h1; found 'h7'"),
    "a veto without a reason": (("veto", STUDY, "h1"), "expected a reason"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line(ajet: Ajet, locked: Synthetic, name: str) -> None:
    arguments, said = WRONG[name]
    before = locked.state().event_count
    ended = ajet("study", *arguments)
    assert ended.code == 2
    assert said in ended.line
    assert locked.state().event_count == before


def test_before_the_lock_the_budget_alone_can_be_amended(ajet: Ajet, study: Synthetic) -> None:
    assert "has no locked design yet" in ajet("study", "amend", "--note", "x").line
    assert "has no locked design yet" in ajet("study", "amend", "--accept", "overlap", "--reason", "x").line
    assert ajet("study", "amend", "--budget", "2h", "--reason", "A/A runs are slow").code == 0
    assert study.state().budget_s == 7200.0
    assert "none is proposed yet" in ajet("study", "veto", STUDY, "h1", "--reason", "x").line


def test_a_concluded_study_takes_notes_alone(ajet: Ajet, locked: Synthetic) -> None:
    locked.conclude()
    for arguments in (("--accept", "overlap"), ("--budget", "2h")):
        assert "is concluded" in ajet("study", "amend", STUDY, *arguments, "--reason", "x").line
    assert "is concluded" in ajet("study", "veto", STUDY, "h1", "--reason", "x").line


def test_a_settled_hypothesis_cannot_be_vetoed(ajet: Ajet, locked: Synthetic) -> None:
    for spec in locked.plan():
        locked.run(spec)
    locked.judge()
    assert "h1 is settled already" in ajet("study", "veto", STUDY, "h1", "--reason", "x").line


def test_what_is_accepted_twice_is_refused(ajet: Ajet, locked: Synthetic) -> None:
    ajet("study", "amend", "--accept", "overlap", "--reason", "x")
    assert "overlap is accepted already" in ajet("study", "amend", "--accept", "overlap", "--reason", "x").line


@pytest.mark.parametrize("command", ["amend", "note", "veto"])
def test_help_has_an_example(ajet: Ajet, command: str) -> None:
    assert "Example" in ajet("study", command, "--help").out


def test_every_code_of_the_confound_linter_can_be_accepted() -> None:
    folder = Path(__file__).parents[4] / "studies"
    source = "".join((folder / name).read_text() for name in ("checks/confounds.py", "verdicts/subgroups.py"))
    named = set(re.findall(r'(?:Violation|_Same)\(\s*"([a-z_]+)"', source))
    assert named == VIOLATION_CODES
    assert set(ACCEPTABLE) >= VIOLATION_CODES
