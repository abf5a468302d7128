"""How a stopped study says to go on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from research.cli.studies import ending, opening
from research.scheduler.steps import BUDGET_RULE
from studies import EventType
from studies.log.event_log import LOCK_FILE, write_lock
from studies.report import build_report
from studies.report.summary import headline
from tests.golden import assert_golden
from tests.studies.synthetic import STUDY, Synthetic, design

USED_UP = "900 s of work are used up"
RESUME = f"ajet study resume {STUDY}"


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    synthetic = Synthetic(tmp_path)
    synthetic.create(settings={"budget_s": 900.0, "max_runs": 40, "parallel": 2, "approve": "none"})
    return synthetic


def stopped(study: Synthetic, reason: str) -> str:
    if reason == USED_UP:
        study.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason=USED_UP)
        reason = f"budget: {USED_UP}"
    study.append(EventType.STUDY_STOPPED, reason=reason)
    return shown(study, [ending(study.state(), study.folder)])


def shown(study: Synthetic, lines: Iterable[RenderableType]) -> str:
    console = Console(width=500)
    with console.capture() as taken:
        for line in lines:
            console.print(line)
    return taken.get()


def judged(study: Synthetic) -> None:
    for spec in study.plan():
        study.run(spec)
    study.judge()


def test_a_study_that_a_person_stopped_is_resumed(study: Synthetic) -> None:
    study.lock()
    assert f"go on with: {RESUME}\n" in stopped(study, "Ctrl-C")


@pytest.mark.parametrize(("locked", "without"), [(True, "without, it concludes"), (False, "resumed without, it")])
def test_a_study_whose_budget_is_used_up_needs_an_amendment_before_it_makes_more_runs(
    study: Synthetic, locked: bool, without: str
) -> None:
    """Also one that was still at its A/A runs."""
    if locked:
        study.lock()
    said = stopped(study, USED_UP)
    assert f'ajet study amend {STUDY} --budget 30m --reason "..." and then {RESUME}' in said
    assert without in said


@pytest.mark.parametrize(("seeds", "then"), [(None, judged), (20, Synthetic.plan)])
def test_more_time_is_not_offered_where_no_run_may_be_made(study: Synthetic, seeds: int | None, then: Any) -> None:
    """Each hypothesis had its last look, or the largest number of runs is planned."""
    study.lock(design(seeds=seeds) if seeds else None)
    then(study)
    said = stopped(study, USED_UP)
    assert f"conclude with: {RESUME}" in said
    assert "--budget" not in said


def test_a_study_that_could_not_be_planned_is_planned_again_with_more_time_if_it_lacked(study: Synthetic) -> None:
    said = stopped(study, "3 runs need about 20 min; the budget is 15 min")
    assert f"plan again with: {RESUME}; where time" in said
    assert f"ajet study amend {STUDY} --budget 30m" in said


def test_a_terminal_begins_with_what_was_asked_and_what_is_tested(study: Synthetic) -> None:
    study.append(
        EventType.PLANNER_ACTED, action="propose", tries=1, tokens={}, rejected=[], note="",
        not_tested=["whether it holds on a large model"],
    )  # fmt: skip
    study.lock()
    assert_golden(shown(study, opening(study.state())))


def test_a_terminal_ends_with_the_reports_own_verdict(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    state = study.whole()
    said = shown(study, [ending(state, tmp_path)])
    head = headline(state)
    assert f"Supported: {head.answers[0].sentence}" in said
    assert head.answers[0].sentence in build_report(state, tmp_path).html.read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert f"in practice: {head.answers[0].practice}" in said
    assert head.next.command in said


def test_a_terminal_says_when_the_lock_was_edited_after_the_verdict(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    study.create()
    write_lock(tmp_path, study.design)
    study.append(
        EventType.DESIGN_LOCKED, design=study.design.model_dump(mode="json"), hash=study.design.hash(),
        file=LOCK_FILE,
    )  # fmt: skip
    assert "was changed" not in shown(study, [ending(study.state(), tmp_path)])
    (tmp_path / LOCK_FILE).write_text("{}")
    assert shown(study, [ending(study.state(), tmp_path)]).startswith("The lock design.lock was changed:")
