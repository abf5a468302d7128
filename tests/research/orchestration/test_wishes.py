"""Who wants what: the Prefect UI and the study's log agree after every look, and no side is overruled for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.orchestration.wishes import Agreement, Ending, Mood, Wish, agree, ending
from research.steps import BUDGET_RULE
from studies.events import EventType
from tests.studies.synthetic import Synthetic

RUNNING, PAUSED = Mood.RUNNING, Mood.PAUSED


@pytest.mark.parametrize(
    ("agreed", "wish", "study", "then"),
    [
        (RUNNING, Wish.GO_ON, RUNNING, Agreement(RUNNING)),
        (RUNNING, Wish.PAUSE, RUNNING, Agreement(PAUSED, Wish.PAUSE)),
        (PAUSED, Wish.PAUSE, PAUSED, Agreement(PAUSED)),
        (PAUSED, Wish.GO_ON, PAUSED, Agreement(RUNNING, Wish.GO_ON)),
        (RUNNING, Wish.GO_ON, PAUSED, Agreement(PAUSED)),
        (PAUSED, Wish.PAUSE, RUNNING, Agreement(RUNNING)),
        (RUNNING, Wish.PAUSE, PAUSED, Agreement(PAUSED)),
        (PAUSED, Wish.GO_ON, RUNNING, Agreement(RUNNING)),
        (PAUSED, None, PAUSED, Agreement(PAUSED)),
        (RUNNING, None, PAUSED, Agreement(PAUSED)),
        (PAUSED, Wish.STOP, PAUSED, Agreement(PAUSED, Wish.STOP)),
        (RUNNING, Wish.STOP, PAUSED, Agreement(RUNNING, Wish.STOP)),
    ],
)
def test_the_side_that_moved_is_followed(agreed: Mood, wish: Wish | None, study: Mood, then: Agreement) -> None:
    assert agree(agreed, wish, study) == then


@pytest.mark.parametrize("agreed", Mood)
@pytest.mark.parametrize("wish", [Wish.GO_ON, Wish.PAUSE, None])
@pytest.mark.parametrize("study", Mood)
def test_after_one_look_nobody_moves_any_more(agreed: Mood, wish: Wish | None, study: Mood) -> None:
    both = agree(agreed, wish, study)
    shown = Wish.PAUSE if both.mood is PAUSED else Wish.GO_ON
    assert agree(both.mood, shown, both.mood) == Agreement(both.mood)


@pytest.fixture
def synthetic(tmp_path: Path) -> Synthetic:
    synthetic = Synthetic(tmp_path)
    synthetic.create()
    synthetic.lock()
    return synthetic


def test_a_study_whose_budget_is_used_up_was_not_cancelled(synthetic: Synthetic) -> None:
    synthetic.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason="900 s of work are used up")
    synthetic.append(EventType.STUDY_STOPPED, reason="budget: 900 s of work are used up")
    assert ending(synthetic.state(), None) == Ending("budget", "budget: 900 s of work are used up")


def test_a_study_that_somebody_stopped_after_its_budget_was_used_up_was_cancelled(synthetic: Synthetic) -> None:
    synthetic.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason="900 s of work are used up")
    synthetic.append(EventType.STUDY_STOPPED, reason="budget: 900 s of work are used up")
    synthetic.append(EventType.STUDY_RESUMED, command=[])
    synthetic.append(EventType.STUDY_STOPPED, reason="cancelled in the Prefect UI")
    assert ending(synthetic.state(), None) == Ending("cancelled", "cancelled in the Prefect UI")


def test_a_study_that_somebody_stopped_was(synthetic: Synthetic) -> None:
    synthetic.append(EventType.STUDY_STOPPED, reason="stopped by the user")
    assert ending(synthetic.state(), None) == Ending("cancelled", "stopped by the user")


def test_an_error_is_told_as_it_is_and_leaving_at_once_is_none(synthetic: Synthetic) -> None:
    synthetic.append(EventType.STUDY_STOPPED, reason="too dear")
    assert ending(synthetic.state(), ValueError("too dear")) == Ending("failed", "too dear")
    assert ending(synthetic.state(), KeyboardInterrupt()).how == "left"


def test_a_concluded_study_is_completed(synthetic: Synthetic) -> None:
    for spec in synthetic.plan():
        synthetic.run(spec)
    synthetic.judge()
    assert ending(synthetic.conclude(), None) == Ending("concluded", "every hypothesis is judged")
