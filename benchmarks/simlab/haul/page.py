"""Stands for a flow run's page: a state that people click on and the study's view sets; its server may forget.

What follows from a click is decided by the shipped rule (`research.orchestration.prefect_api`) and carried out by the
shipped requests, as the view does it; the page and its server are fake, and whoever clicks is a plan.
"""

from __future__ import annotations

from research.controller.controller import build_stop_event
from research.controller.interventions import request_continue, request_pause
from research.orchestration.prefect_api import Activity, UserAction, activity, reconcile
from studies import EventLog, StudyLog, StudyState
from studies.log.event_log import Change

CANCELLED = "cancelled in the simulated UI"


class FakePage:
    """One page and the view that looks at it."""

    def __init__(self, log: EventLog, study: str) -> None:
        self._log = log
        self._record = StudyLog(log, study)
        self.clicks = 0
        """How many clicks became an event of the log."""
        self.forget()

    def forget(self) -> None:
        """Begin anew, as after the loss of the server's database: a new flow run says that the study runs."""
        self._shows: Activity | UserAction = Activity.RUNNING
        self._agreed = Activity.RUNNING

    def click(self, action: UserAction) -> None:
        """Let somebody click; nobody can while the server is down."""
        self._shows = {UserAction.PAUSE: Activity.PAUSED, UserAction.CONTINUE: Activity.RUNNING}.get(action, action)

    def refresh(self) -> None:
        """Carry out what was clicked since the last look, and show the study as it is."""
        state = self._record.state()
        both = reconcile(self._agreed, self._action(), activity(state))
        if both.ask is not None:
            self.clicks += self._asked(both.ask)
        self._shows = self._agreed = both.activity

    def _action(self) -> UserAction | None:
        if isinstance(self._shows, UserAction):
            return self._shows
        return UserAction.PAUSE if self._shows is Activity.PAUSED else UserAction.CONTINUE

    def _asked(self, action: UserAction) -> bool:
        if action is UserAction.PAUSE:
            return request_pause(self._log, self._record.study, "paused in the simulated UI")
        if action is UserAction.CONTINUE:
            return request_continue(self._log, self._record.study)
        return self._record.change(_cancelling, actor="user") is not None


def _cancelling(state: StudyState) -> Change | None:
    return build_stop_event(state, CANCELLED)
