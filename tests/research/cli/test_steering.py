"""`ajet study approve`, `deny`, `pause`, `resume`, `amend`, `note`, `veto`, `prune` and `remove`: said back, or one
line of why not."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from research.cli import research as command
from research.cli import steering
from research.installation.home import Home
from sandboxes import ProcessSandbox, SandboxSpec
from studies import EventLog, EventType, StudiesError
from studies.log.locks import ControllerLeases, Holder
from studies.log.reviews import ReviewLog
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
    ajet("study", "amend", STUDY, "--note", "Unasked.").refused("no locked design")
    study.append(EventType.PLANNER_ASKED, text="Does arith\x1b[2J matter?", turn="1/propose/1", index=0)
    shown = ajet("study", "show", STUDY).out
    assert ("planner asks  Does" in shown, f'ajet study amend {STUDY} --note "..."' in shown) == (True, True)
    [asked] = ajet("study", "show", STUDY, "--json").data["planner_asks"]
    assert asked["id"] == f"question-{study.state().notebook[0].seq}"
    assert ajet("study", "amend", STUDY, "--note", "It does.").out == f"noted in study {STUDY}\n"
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


def save_checkpoints(study: str, run_id: str) -> Path:
    server = Home.locate().attempt(study, run_id, 1) / "server"
    for step in (1, 2):
        checkpoint = server / f"checkpoints/0123/step-{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(bytes(3 << 20))
    (server / "store.sqlite3").write_bytes(bytes(1 << 20))
    return server


def test_a_study_is_pruned_of_what_no_run_of_it_goes_on_with(ajet: Ajet, locked: Synthetic) -> None:
    over, going, ended, *_ = locked.plan()
    locked.run(over)
    locked.launch(going)
    locked.launch(ended)
    locked.end(ended, status="lost", code="lost")  # it may be tried again, and go on
    folders = {spec.run_id: save_checkpoints(STUDY, spec.run_id) for spec in (over, going, ended)}
    told = ajet("study", "prune", "s-syn", "--dry-run", "--json").data
    assert told["studies"] == [{"study": STUDY, "checkpoints": 1, "stores": 0, "bytes": 3 << 20}]
    assert ajet("study", "prune", STUDY).out == f"{STUDY}  1 checkpoints, 0 stores, 3.0 MiB freed\n"
    ajet("study", "prune", STUDY, "--keep", "none", "--tokens")
    left = {name: len([path for path in folder.rglob("*") if path.is_file()]) for name, folder in folders.items()}
    assert left == {over.run_id: 0, going.run_id: 3, ended.run_id: 3}


def test_a_study_is_removed_for_good_with_all_its_rows(ajet: Ajet, locked: Synthetic) -> None:
    other = make_study(study="other", log=locked.log)
    other.create()
    ReviewLog(locked.log, STUDY).append(locked.state(), "comment", by="ada", about="study", text="Why?")
    folder = Home.locate().study(STUDY)
    ajet("study", "remove", "s-syn", "--yes").refused("whole id", "s-syn")
    ajet("study", "remove", STUDY).refused("--yes", STUDY)
    assert (folder.is_dir(), locked.state().id) == (True, STUDY)
    assert ajet("study", "remove", STUDY, "--yes").out.startswith(f"removed  {STUDY} (")
    assert (folder.exists(), locked.log.studies()) == (False, ["other"])
    with locked.log.transaction("read") as connection:
        for table in ("reviews", "leases"):
            assert connection.exec_driver_sql(f"select study from {table}").all() == []
    with pytest.raises(StudiesError):
        locked.state()


def test_a_study_that_is_driven_stays_as_it_is(ajet: Ajet, driven: Synthetic) -> None:
    for arguments in (("remove", "--yes", "--force"), ("prune",)):
        ajet("study", *arguments, STUDY).refused("no other controller", STUDY)
    assert driven.state().id == STUDY


@pytest.mark.parametrize("way", ["--force", "other"])
def test_a_study_that_another_one_follows_goes_with_it_or_by_force(ajet: Ajet, locked: Synthetic, way: str) -> None:
    other = make_study(study="other", log=locked.log)
    other.create(settings={**locked.state().settings, "follows": f"{STUDY}/1/h1"})
    ajet("study", "remove", STUDY, "--yes").refused("other", "--force")
    assert ajet("study", "remove", STUDY, "--yes", way).code == 0
    assert locked.log.studies() == ["other"] * (way == "--force")


def test_a_study_of_which_an_attempt_runs_stays(ajet: Ajet, locked: Synthetic) -> None:
    home = Home.locate()
    spec = SandboxSpec("a1", ("sleep", "60"), home.path, labels={"study": STUDY}, trusted=True)
    handle = ProcessSandbox(home.sandboxes).run(spec)
    try:
        ajet("study", "remove", STUDY, "--yes", "--force").refused("a1", f"ajet study stop {STUDY}")
    finally:
        handle.stop()
    assert ajet("study", "remove", STUDY, "--yes").code == 0
