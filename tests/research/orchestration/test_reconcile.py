"""The Prefect UI and the study's log agree after every refresh, and no side is overruled for ever."""

from __future__ import annotations

from typing import Any

import pytest

from research.orchestration.prefect_api import Activity, SessionEnd, UserAction, describe_end, reconcile
from studies.log.event import EventType
from studies.log.study import BUDGET_RULE
from tests.studies.synthetic import Synthetic

RUNNING, PAUSED, ASKING = Activity


@pytest.mark.parametrize(
    ("agreed", "action", "study", "then"),
    [
        (RUNNING, UserAction.CONTINUE, RUNNING, (RUNNING, None)),
        (RUNNING, UserAction.PAUSE, RUNNING, (PAUSED, UserAction.PAUSE)),
        (PAUSED, UserAction.PAUSE, PAUSED, (PAUSED, None)),
        (PAUSED, UserAction.CONTINUE, PAUSED, (RUNNING, UserAction.CONTINUE)),
        (RUNNING, UserAction.CONTINUE, PAUSED, (PAUSED, None)),
        (PAUSED, UserAction.PAUSE, RUNNING, (RUNNING, None)),
        (RUNNING, UserAction.PAUSE, PAUSED, (PAUSED, None)),
        (PAUSED, UserAction.CONTINUE, RUNNING, (RUNNING, None)),
        (PAUSED, None, PAUSED, (PAUSED, None)),
        (RUNNING, None, PAUSED, (PAUSED, None)),
        (PAUSED, UserAction.STOP, PAUSED, (PAUSED, UserAction.STOP)),
        (RUNNING, UserAction.STOP, PAUSED, (RUNNING, UserAction.STOP)),
        (RUNNING, UserAction.CONTINUE, ASKING, (ASKING, None)),
        (ASKING, None, ASKING, (ASKING, None)),
        (ASKING, None, RUNNING, (RUNNING, None)),
        (ASKING, UserAction.PAUSE, ASKING, (PAUSED, UserAction.PAUSE)),
    ],
)
def test_the_side_that_changed_is_followed(
    agreed: Activity, action: UserAction | None, study: Activity, then: tuple[Activity, UserAction | None]
) -> None:
    assert reconcile(agreed, action, study) == then


@pytest.mark.parametrize("agreed", Activity)
@pytest.mark.parametrize("action", [UserAction.CONTINUE, UserAction.PAUSE, None])
@pytest.mark.parametrize("study", Activity)
def test_after_one_refresh_nothing_changes_any_more(
    agreed: Activity, action: UserAction | None, study: Activity
) -> None:
    both, _ = reconcile(agreed, action, study)
    shown = {RUNNING: UserAction.CONTINUE, PAUSED: UserAction.PAUSE, ASKING: None}[both]
    assert reconcile(both, shown, both) == (both, None)


USED_UP = "budget: 900 s of work are used up"
RESUMED = (EventType.STUDY_RESUMED, {"command": []})
OVER = (EventType.DECISION_TAKEN, {"rule": BUDGET_RULE, "action": "stop", "reason": "900 s of work are used up"})


Change = tuple[EventType, dict[str, Any]]


def stopped(reason: str) -> Change:
    return EventType.STUDY_STOPPED, {"reason": reason}


@pytest.mark.parametrize(
    ("events", "error", "end"),
    [
        ([OVER, stopped(USED_UP)], None, SessionEnd("budget", USED_UP)),
        ([OVER, stopped(USED_UP), RESUMED, stopped("cancelled")], None, SessionEnd("cancelled", "cancelled")),
        ([stopped("by user")], None, SessionEnd("cancelled", "by user")),
        ([stopped("too dear")], ValueError("too dear"), SessionEnd("failed", "too dear")),
        ([(EventType.STUDY_CONCLUDED, {"reason": "all judged"})], None, SessionEnd("concluded", "all judged")),
        ([stopped("interrupted")], KeyboardInterrupt(), None),
    ],
    ids=["budget", "after its budget", "stopped", "an error", "concluded", "left at once"],
)
def test_how_a_session_ended(
    synthetic: Synthetic, events: list[Change], error: BaseException | None, end: SessionEnd | None
) -> None:
    synthetic.lock()
    for kind, payload in events:
        synthetic.append(kind, **payload)
    found = describe_end(synthetic.state(), error)
    assert found == end if end is not None else found.how == "left"
