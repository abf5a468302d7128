"""`ajet study approve`, `deny`, `pause`, `resume`, `amend`, `note` and `veto`: said back, or one line of why not."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from research.cli import research as command
from research.cli import steering
from research.installation.home import Home
from studies import EventLog, EventType
from studies.log.locks import ControllerLeases, Holder
from studies.log.study import BUDGET_RULE
from tests.golden import assert_golden
from tests.research.cli.conftest import Ajet
from tests.research.factories import make_study
from tests.studies.log.test_people import ask
from tests.studies.synthetic import STUDY, Synthetic


@pytest.fixture
def waiting(locked: Synthetic) -> Synthetic:
    ask(locked, would="all ten runs")
    return locked


@pytest.mark.parametrize(("word", "granted"), [("approve", True), ("deny", False)])
def test_what_is_asked_is_shown_and_then_answered(ajet: Ajet, waiting: Synthetic, word: str, granted: bool) -> None:
    ended = ajet("study", word, "--note", "as agreed")
    assert_golden(ended.out)  # how to resume it: no controller works on it
    (given,) = waiting.state().approvals
    assert (given.granted, given.by, given.note) == (granted, "command", "as agreed")
    assert waiting.state().status == ("running" if granted else "stopped")


def test_beside_a_controller_that_lives_the_study_goes_on_there(ajet: Ajet, driven: Synthetic) -> None:
    ask(driven, would="all ten runs")
    assert "under its controller" in ajet("study", "approve").out
    ask(driven, would="twenty runs")
    told = ajet("study", "approve", "--json", "--note", "go").data
    assert (told["study"], told["granted"], told["by"], told["note"]) == (STUDY, True, "command", "go")
    assert told["asked"]["would"] == "twenty runs"
    assert told["asked"]["digest"] == driven.state().approvals[-1].asked.digest


def test_the_open_question_is_shown_wherever_the_study_is(ajet: Ajet, waiting: Synthetic) -> None:
    shown = ajet("study", "show").out
    assert [word for word in ("approve", "deny") if f"ajet study {word} {STUDY}" not in shown] == []
    assert ajet("study", "show", "--json").data["asks"]["runs"] == 10
    assert "waiting" in ajet("study", "list").out
    waiting.append(EventType.STUDY_STOPPED, reason="Ctrl-C")
    assert "asks to begin:" in ajet("study", "show").out  # it may be answered before it is resumed


@pytest.mark.parametrize("word", ["approve", "deny"])
def test_without_a_name_the_only_study_that_asks_is_answered(ajet: Ajet, waiting: Synthetic, word: str) -> None:
    newer = make_study(study="newer", log=waiting.log)
    newer.create()
    newer.lock()
    ask(newer, study="newer", would="a hundred runs")
    ajet("study", word).refused("wait for approval")
    assert (len(newer.state().approvals), len(waiting.state().approvals)) == (0, 0)
    assert ajet("study", "deny", "newer").code == 0
    assert ajet("study", word).code == 0
    assert [entry.asked.question.would for entry in waiting.state().approvals] == ["all ten runs"]
    before = waiting.state().event_count
    ajet("study", word, STUDY).refused(STUDY, "asks nothing", "by a command")
    assert waiting.state().event_count == before


def test_a_paused_study_goes_on_under_its_controller(ajet: Ajet, driven: Synthetic) -> None:
    ended = ajet("study", "pause")
    assert (ended.code, f"ajet study resume {STUDY}" in " ".join(ended.out.split())) == (0, True)
    assert str(driven.state().paused_reason).endswith("by the user")
    assert ajet("study", "show", "--json").data["status"] == "paused"
    ended = ajet("study", "resume")
    assert (ended.code, f"ajet study watch {STUDY}" in ended.out) == (0, True)
    ajet("study", "pause")
    assert ajet("study", "resume", "--json").code == 0
    assert driven.state().paused_reason is None
    before = driven.state().event_count
    ajet("study", "resume").refused("drives it")
    assert driven.state().event_count == before  # it was not paused any more


def test_a_study_that_is_driven_is_handed_to_nobody_else(ajet: Ajet, driven: Synthetic) -> None:
    driven.append(EventType.STUDY_PAUSED, reason="lunch")
    for _ in range(2):  # paused, and running
        ended = ajet("study", "resume", "--detach")
        assert (ended.code, "under the controller" in ended.out) == (0, True)
        assert driven.state().paused_reason is None


def test_a_study_of_an_earlier_boot_is_given_on(ajet: Ajet, driven: Synthetic, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(steering, "find_worker", lambda home: lambda study: given.append(study) or "address")
    later = replace(Holder.here(Home.locate().path), boot="the boot after")
    monkeypatch.setattr(Holder, "here", lambda home: later)
    assert ajet("study", "resume", "--detach").code == 0
    assert given == [STUDY]


def test_a_detached_study_is_leased_before_its_flow_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(
        "research.orchestration.deployment.worker_scheduler",
        lambda home: lambda study: given.append(study) or "address",
    )
    command.research(topic="group size 4 vs 8 on arith", sandbox="process", detach=True, json=True)
    row = ControllerLeases(EventLog(Home.locate().database)).read(given[0])
    assert row is not None
    assert (row.holder.home, row.given_back) == (str(home), True)


@pytest.mark.parametrize("how", ["paused", "stopped", "concluded"])
def test_what_stands_still_cannot_be_paused(ajet: Ajet, driven: Synthetic, how: str) -> None:
    driven.append(EventType(f"study.{how}"), reason="x")
    before = driven.state().event_count
    ajet("study", "pause", STUDY).refused(f"{STUDY} is {how}", "nothing to pause")
    assert driven.state().event_count == before


def test_a_violation_is_accepted_in_the_open_and_once(ajet: Ajet, locked: Synthetic) -> None:
    accept = ("study", "amend", STUDY, "--accept", "co_tenancy", "--reason", "a backup")
    ended = ajet(*accept)
    assert (ended.code, ended.out) == (0, f"study {STUDY} now accepts co_tenancy\n")
    (amended,) = locked.state().amendments
    assert (amended.amendment.target, amended.actor, amended.after_data) == ("co_tenancy", "user", False)
    ajet(*accept).refused("co_tenancy is accepted")


def test_an_amendment_after_the_first_result_says_what_that_means(ajet: Ajet, locked: Synthetic) -> None:
    locked.run(locked.plan()[0])
    assert "exploratory" in ajet("study", "amend", "--accept", "overlap", "--reason", "x").out
    said = ajet("study", "amend", "--budget", "2h", "--reason", "slow", "--json").data
    assert said["after_data"] is True
    assert said["amendment"] == {"kind": "budget", "target": "", "value": 7200.0, "reason": "slow"}
    assert locked.state().budget_s == 7200.0
    locked.append(EventType.STUDY_STOPPED, reason="budget: 900 s of work are used up")
    assert_golden(ajet("study", "amend", "--budget", "3h", "--reason", "slow").out)


def test_where_time_was_missing_more_of_it_is_advised_until_it_is_given(ajet: Ajet, study: Synthetic) -> None:
    study.append(EventType.STUDY_STOPPED, reason="3 runs need about 20 min; the budget is 15 min")
    ajet("study", "report").refused(f"ajet study amend {STUDY} --budget 30m")
    told = ajet("study", "amend", "--budget", "20m", "--reason", "slow").out
    assert told.endswith(f"\ngo on with: ajet study resume {STUDY}\n")


def test_a_study_that_its_budget_ended_is_not_said_to_go_on_by_itself(ajet: Ajet, locked: Synthetic) -> None:
    locked.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason="900 s of work are used up")
    locked.append(EventType.STUDY_STOPPED, reason="budget: 900 s of work are used up")
    more = f"ajet study amend {STUDY} --budget 30m"
    ajet("study", "report").refused(more)
    assert more in ajet("study", "amend", "--note", "the machine is slow").out


def test_what_the_planner_asks_is_shown_and_answered_by_a_note(ajet: Ajet, study: Synthetic) -> None:
    ajet("study", "note", STUDY, "Unasked.").refused("no locked design")
    study.append(EventType.PLANNER_ASKED, text="Does arith\x1b[2J matter?", turn="1/propose/1", index=0)
    shown = ajet("study", "show", STUDY).out
    assert ("planner asks  Does" in shown, f'ajet study note {STUDY} "..."' in shown) == (True, True)
    [asked] = ajet("study", "show", STUDY, "--json").data["planner_asks"]
    assert asked["id"] == f"question-{study.state().notebook[0].seq}"
    assert ajet("study", "note", STUDY, "It does.").out == f"noted in study {STUDY}\n"
    assert study.state().amendments[0].amendment.reason == "It does."


def test_a_hypothesis_is_vetoed_once(ajet: Ajet, locked: Synthetic) -> None:
    assert_golden(ajet("study", "veto", STUDY, "h1", "--reason", "known as hacked").out)
    assert locked.state().vetoed["h1"].reason == "known as hacked"
    ajet("study", "veto", STUDY, "h1", "--reason", "x").refused("was vetoed before", "known as hacked")


WRONG = (
    "amend", "amend --note x --budget 2h", "amend --note x --reason y", "amend --note '  '",
    "amend --accept luck --reason x", "amend --accept overlap", "amend --budget soon --reason x",
    f"amend --accept overlap --reason {1001 * 'x'}", "amend --budget 15m --reason x", "amend nobody --note x",
    f"veto {STUDY} h7 --reason x", f"veto {STUDY} h1",
)  # fmt: skip


def test_an_empty_name_is_no_beginning_of_every_name(ajet: Ajet, locked: Synthetic) -> None:
    for verb in ("show", "stop", "watch"):
        ajet("study", verb, "").refused("''", "none")
    assert locked.state().stopped_reason is None


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_input_changes_nothing(ajet: Ajet, locked: Synthetic, wrong: str) -> None:
    before = locked.state().event_count
    assert_golden(ajet("study", *shlex.split(wrong)).refused())
    assert locked.state().event_count == before


def test_a_judged_study_takes_no_veto_and_a_concluded_one_only_notes(ajet: Ajet, locked: Synthetic) -> None:
    for spec in locked.plan():
        locked.run(spec)
    locked.judge()
    ajet("study", "veto", STUDY, "h1", "--reason", "x").refused("h1 is settled already")
    locked.conclude()
    for change in (("amend", STUDY, "--accept", "overlap"), ("amend", STUDY, "--budget", "2h"), ("veto", STUDY, "h1")):
        ajet("study", *change, "--reason", "x").refused("is concluded")
    assert ajet("study", "amend", STUDY, "--note", "machine\x1b was moved").code == 0
    assert locked.state().amendments[0].amendment.reason == "machine was moved"
