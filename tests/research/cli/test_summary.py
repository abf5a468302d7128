"""How a stopped study says to go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from research.cli.summary import ending
from research.steps import BUDGET_RULE
from studies import EventType
from tests.studies.synthetic import STUDY, Synthetic, design

USED_UP = "900 s of work are used up"
RESUME = f"ajet study resume {STUDY}"


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    synthetic = Synthetic(tmp_path)
    synthetic.create(settings={"budget_s": 900.0, "max_runs": 40, "parallel": 2, "approve": "none"})
    return synthetic


def stopped(study: Synthetic, reason: str) -> str:
    study.append(EventType.STUDY_STOPPED, reason=reason)
    console = Console(width=500)
    with console.capture() as shown:
        console.print(ending(study.state(), study.folder))
    return shown.get()


def used_up(study: Synthetic) -> None:
    study.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason=USED_UP)


def test_a_study_that_a_person_stopped_is_resumed(study: Synthetic) -> None:
    study.lock()
    assert f"go on with: {RESUME}\n" in stopped(study, "Ctrl-C")


def test_a_study_whose_budget_is_used_up_needs_an_amendment_before_it_makes_more_runs(study: Synthetic) -> None:
    study.lock()
    used_up(study)
    said = stopped(study, f"budget: {USED_UP}")
    assert f'for more runs: ajet study amend {STUDY} --budget 30m --reason "..." and then {RESUME}' in said
    assert "resumed without, it concludes" in said


def test_a_study_whose_budget_ended_during_its_aa_runs_can_be_given_more(study: Synthetic) -> None:
    used_up(study)
    said = stopped(study, f"budget: {USED_UP}")
    assert f'for more runs: ajet study amend {STUDY} --budget 30m --reason "..." and then {RESUME}' in said
    assert "resumed without, it stops again" in said


def test_more_time_is_not_offered_where_each_hypothesis_had_its_last_look(study: Synthetic) -> None:
    study.lock()
    for spec in study.plan()[:4]:
        study.run(spec)
    study.judge()
    used_up(study)
    said = stopped(study, f"budget: {USED_UP}")
    assert f"so more time changes nothing; conclude with: {RESUME}" in said
    assert "--budget" not in said


def test_a_study_that_could_not_be_planned_is_planned_again_with_more_time_if_it_lacked(
    study: Synthetic,
) -> None:
    said = stopped(study, "3 runs need about 20 min; the budget is 15 min")
    assert f"plan again with: {RESUME}; where time was missing" in said
    assert f"ajet study amend {STUDY} --budget 30m" in said


def test_more_time_is_not_offered_where_no_run_may_be_made(study: Synthetic) -> None:
    study.lock(design(seeds=20))
    study.plan()
    used_up(study)
    assert f"conclude with: {RESUME}" in stopped(study, f"budget: {USED_UP}")
