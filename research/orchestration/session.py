"""One session of a study's controller as a Prefect flow run: refreshed every few seconds, and ended with the session.

A refresh reads the flow run's state and the study's log, reconciles the two and publishes what is new. A user's action
is carried out as the command line's own commands are, by an event of the log, which the controller's next step reads.
Where the server's database is another one than before, everything is published anew.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient

from research.files import read_json, write_json
from research.installation.home import Home
from research.orchestration.approvals import ApprovalForms
from research.orchestration.flow_run import FlowRun, FlowRunGone, close_abandoned
from research.orchestration.projection import Projection
from research.orchestration.reconcile import Activity, UserAction, activity, ending, reconcile
from research.study.stop import request_continue, request_pause, request_stop
from studies import EventLog, StudyLog, StudyState

BEAT_S = 30.0
"""Seconds between two heartbeats: three missed ones crash a flow run (`research.serving.registration`)."""


@dataclass(slots=True)
class _Shown:
    """A flow run, what was published to it, and what it and the study agreed on last."""

    flow_run: FlowRun
    projection: Projection
    agreed: Activity = Activity.RUNNING


class ControllerSession:
    """The flow run of the session that began at `since`. Every call raises what Prefect's client raises."""

    def __init__(
        self, home: Home, log: EventLog, since: StudyState, client: SyncPrefectClient, taken: UUID | None = None
    ) -> None:
        """`taken` is the flow run that a worker started this process for; else, or once it is gone, one is made."""
        self._home = home
        self._log = log
        self._since = since
        self._client = client
        self._study = StudyLog(log, since.id)
        self._forms = ApprovalForms(client, self._study)
        self._note = home.study(since.id) / "prefect.json"
        self._key = uuid4()
        self._taken = taken
        self._beaten = -math.inf
        self._shown: _Shown | None = None

    def refresh(self, notes: list[str] | None = None) -> None:
        """Carry out what was clicked since the last refresh, and publish what is new, with lines of the controller.

        Lines that were told are taken out of `notes`, whatever comes after them.
        """
        self._with_flow_run(lambda shown: self._refresh(shown, [] if notes is None else notes))

    def close(self, error: BaseException | None) -> None:
        """Publish how the session ended, or the error that it ended with; clicks are not carried out any more.

        The flow run is ended even where something else cannot be published, which is raised then.
        """

        def tell(shown: _Shown) -> None:
            state = self._study.state()
            shown.flow_run.found()  # one that is gone is noticed before anything is published
            try:
                shown.projection.tell(state, over=True)
                self._forms.settle(state)
            finally:
                shown.flow_run.end(ending(state, error))

        self._with_flow_run(tell)
        if self._shown is not None and _noted(self._note) == str(self._shown.flow_run.id):  # else a later session's
            self._note.unlink(missing_ok=True)

    def _refresh(self, shown: _Shown, notes: list[str]) -> None:
        """Set the flow run's state before the study's, so that the least time is left for a click in between.

        What people are asked and answer comes before what is only shown.
        """
        state = self._study.state()
        found = shown.flow_run.found()
        both = reconcile(shown.agreed, found.action, activity(state))
        if both.ask is not UserAction.STOP and found.shows is not both.activity:
            shown.flow_run.show(both.activity, state.paused_reason or said(UserAction.PAUSE))
        if both.ask is not None:
            self._ask(both.ask)
        shown.agreed = both.activity
        if (now := time.monotonic()) - self._beaten >= BEAT_S:
            shown.flow_run.beat()
            self._beaten = now
        if told := len(notes):  # more may come meanwhile
            shown.flow_run.log(notes[:told])
            del notes[:told]
        self._forms.refresh(self._study.state())
        shown.projection.tell(self._study.state())

    def _ask(self, action: UserAction) -> None:
        match action:
            case UserAction.STOP:
                request_stop(self._home, self._log, self._since.id, said(action))
            case UserAction.PAUSE:
                request_pause(self._log, self._since.id, said(action))
            case UserAction.CONTINUE:
                request_continue(self._log, self._since.id)

    def _with_flow_run(self, do: Callable[[_Shown], None]) -> None:
        """Call `do` with the flow run, which is created if need be, also where the server does not know it any more."""
        try:
            self._shown = self._shown or self._begin()
            do(self._shown)
        except FlowRunGone:
            self._taken = None  # one of our own follows
            self._shown = self._begin()
            do(self._shown)

    def _begin(self) -> _Shown:
        study, taken = self._since, self._taken
        if (earlier := _noted(self._note)) is not None and earlier != str(taken):
            close_abandoned(self._client, earlier)
        if taken is not None:
            flow_run = FlowRun.taken(self._client, taken, study.id, study.topic)
        else:
            flow_run = FlowRun.begin(self._client, self._home, study.id, study.topic, str(self._key))
        write_json(self._note, {"flow_run": str(flow_run.id)})
        return _Shown(flow_run, Projection(flow_run, study, self._home.study(study.id)))


def said(action: UserAction) -> str:
    """Return what a log says of why somebody's click stopped or paused a study."""
    return "cancelled in the Prefect UI" if action is UserAction.STOP else "paused in the Prefect UI"


def _noted(path: Path) -> str | None:
    """Return the flow run that an earlier controller left open; a note cut short names none."""
    try:
        note = read_json(path)
    except ValueError:
        return None
    return note.get("flow_run") if isinstance(note, dict) else None
