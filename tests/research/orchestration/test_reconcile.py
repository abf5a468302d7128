"""The Prefect UI and the study's log agree after every refresh, and no side is overruled for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.orchestration.reconcile import Activity, Reconciled, SessionEnd, UserAction, ending, reconcile
from research.scheduling.steps import BUDGET_RULE
from studies.log.event import EventType
from tests.studies.synthetic import Synthetic

RUNNING, PAUSED = Activity.RUNNING, Activity.PAUSED


@pytest.mark.parametrize(
    ("agreed", "action", "study", "then"),
    [
        (RUNNING, UserAction.CONTINUE, RUNNING, Reconciled(RUNNING)),
        (RUNNING, UserAction.PAUSE, RUNNING, Reconciled(PAUSED, UserAction.PAUSE)),
        (PAUSED, UserAction.PAUSE, PAUSED, Reconciled(PAUSED)),
        (PAUSED, UserAction.CONTINUE, PAUSED, Reconciled(RUNNING, UserAction.CONTINUE)),
        (RUNNING, UserAction.CONTINUE, PAUSED, Reconciled(PAUSED)),
        (PAUSED, UserAction.PAUSE, RUNNING, Reconciled(RUNNING)),
        (RUNNING, UserAction.PAUSE, PAUSED, Reconciled(PAUSED)),
        (PAUSED, UserAction.CONTINUE, RUNNING, Reconciled(RUNNING)),
        (PAUSED, None, PAUSED, Reconciled(PAUSED)),
        (RUNNING, None, PAUSED, Reconciled(PAUSED)),
        (PAUSED, UserAction.STOP, PAUSED, Reconciled(PAUSED, UserAction.STOP)),
        (RUNNING, UserAction.STOP, PAUSED, Reconciled(RUNNING, UserAction.STOP)),
    ],
)
def test_the_side_that_changed_is_followed(
    agreed: Activity, action: UserAction | None, study: Activity, then: Reconciled
) -> None:
    assert reconcile(agreed, action, study) == then


@pytest.mark.parametrize("agreed", Activity)
@pytest.mark.parametrize("action", [UserAction.CONTINUE, UserAction.PAUSE, None])
@pytest.mark.parametrize("study", Activity)
def test_after_one_refresh_nothing_changes_any_more(
    agreed: Activity, action: UserAction | None, study: Activity
) -> None:
    both = reconcile(agreed, action, study)
    shown = UserAction.PAUSE if both.activity is PAUSED else UserAction.CONTINUE
    assert reconcile(both.activity, shown, both.activity) == Reconciled(both.activity)


@pytest.fixture
def synthetic(tmp_path: Path) -> Synthetic:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    synthetic.lock()
    return synthetic


def test_a_study_whose_budget_is_used_up_was_not_cancelled(synthetic: Synthetic) -> None:
    synthetic.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason="900 s of work are used up")
    synthetic.append(EventType.STUDY_STOPPED, reason="budget: 900 s of work are used up")
    assert ending(synthetic.state(), None) == SessionEnd("budget", "budget: 900 s of work are used up")


def test_a_study_that_somebody_stopped_after_its_budget_was_used_up_was_cancelled(synthetic: Synthetic) -> None:
    synthetic.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason="900 s of work are used up")
    synthetic.append(EventType.STUDY_STOPPED, reason="budget: 900 s of work are used up")
    synthetic.append(EventType.STUDY_RESUMED, command=[])
    synthetic.append(EventType.STUDY_STOPPED, reason="cancelled in the Prefect UI")
    assert ending(synthetic.state(), None) == SessionEnd("cancelled", "cancelled in the Prefect UI")


def test_a_study_that_somebody_stopped_was(synthetic: Synthetic) -> None:
    synthetic.append(EventType.STUDY_STOPPED, reason="stopped by the user")
    assert ending(synthetic.state(), None) == SessionEnd("cancelled", "stopped by the user")


def test_an_error_is_told_as_it_is_and_leaving_at_once_is_none(synthetic: Synthetic) -> None:
    synthetic.append(EventType.STUDY_STOPPED, reason="too dear")
    assert ending(synthetic.state(), ValueError("too dear")) == SessionEnd("failed", "too dear")
    assert ending(synthetic.state(), KeyboardInterrupt()).how == "left"


def test_a_concluded_study_is_completed(synthetic: Synthetic) -> None:
    for spec in synthetic.plan():
        synthetic.run(spec)
    synthetic.judge()
    assert ending(synthetic.conclude(), None) == SessionEnd("concluded", "every hypothesis is judged")
