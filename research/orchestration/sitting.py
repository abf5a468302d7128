"""One sitting of a study as a flow run: looked at again and again, obeyed, told, and closed.

A look reads the flow run's state as a wish and the study's log as the truth, brings the two to agree and tells what is
new. A wish is carried out as the command line's own commands are, by an event of the log, which the controller's next
step reads. Where the server's database is another one than before, everything is told anew.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from prefect.client.orchestration import SyncPrefectClient

from research.control import request_continue, request_pause, request_stop
from research.files import read_json, write_json
from research.home import Home
from research.orchestration.flow_run import FlowRun, FlowRunGone, close_abandoned
from research.orchestration.projection import Projection
from research.orchestration.wishes import Mood, Wish, agree, ending, mood
from studies import EventLog, StudyLog, StudyState


@dataclass(slots=True)
class _Shown:
    """A flow run, what it was told, and what it and the study agreed on last."""

    flow_run: FlowRun
    projection: Projection
    agreed: Mood = Mood.RUNNING


class Sitting:
    """The flow run of the sitting that began at `since`. Every call raises what Prefect's client raises."""

    def __init__(self, home: Home, log: EventLog, since: StudyState, client: SyncPrefectClient) -> None:
        self._home = home
        self._log = log
        self._since = since
        self._client = client
        self._study = StudyLog(log, since.id)
        self._note = home.study(since.id) / "prefect.json"
        self._key = uuid4()
        self._shown: _Shown | None = None

    def look(self) -> None:
        """Obey what was clicked since the last look, and tell what is new."""
        self._with_flow_run(self._look)

    def close(self, error: BaseException | None) -> None:
        """Tell how the sitting ended, or the error that it ended with; nothing is obeyed any more.

        The flow run is ended also where something else cannot be told, which is raised then.
        """

        def tell(shown: _Shown) -> None:
            state = self._study.state()
            shown.flow_run.found()  # one that is gone is noticed before anything is told
            try:
                shown.projection.tell(state, over=True)
            finally:
                shown.flow_run.end(ending(state, error))

        self._with_flow_run(tell)
        self._note.unlink(missing_ok=True)

    def _look(self, shown: _Shown) -> None:
        """Set the flow run's state before the study's, so that the least time is left for a click in between."""
        state = self._study.state()
        found = shown.flow_run.found()
        both = agree(shown.agreed, found.wish, mood(state))
        if both.ask is not Wish.STOP and found.shows is not both.mood:
            shown.flow_run.show(both.mood, state.paused_reason or _said(Wish.PAUSE))
        if both.ask is not None:
            self._ask(both.ask)
        shown.agreed = both.mood
        shown.projection.tell(self._study.state())

    def _ask(self, wish: Wish) -> None:
        match wish:
            case Wish.STOP:
                request_stop(self._home, self._log, self._since.id, _said(wish))
            case Wish.PAUSE:
                request_pause(self._log, self._since.id, _said(wish))
            case Wish.GO_ON:
                request_continue(self._log, self._since.id)

    def _with_flow_run(self, do: Callable[[_Shown], None]) -> None:
        """Do something with the flow run, beginning it if need be; anew where the server does not know it any more."""
        self._shown = self._shown or self._begin()
        try:
            do(self._shown)
        except FlowRunGone:
            self._shown = self._begin()
            do(self._shown)

    def _begin(self) -> _Shown:
        if (earlier := _noted(self._note)) is not None:
            close_abandoned(self._client, earlier)
        study = self._since
        about = {"study": study.id, "topic": study.topic}
        flow_run = FlowRun.begin(self._client, f"{study.id}: {study.topic[:80]}", str(self._key), about)
        write_json(self._note, {"flow_run": str(flow_run.id)})
        return _Shown(flow_run, Projection(flow_run, study, self._home.study(study.id)))


def _said(wish: Wish) -> str:
    return "cancelled in the Prefect UI" if wish is Wish.STOP else "paused in the Prefect UI"


def _noted(path: Path) -> str | None:
    """Return the flow run that an earlier controller left open; a note cut short names none."""
    try:
        note = read_json(path)
    except ValueError:
        return None
    return note.get("flow_run") if isinstance(note, dict) else None
