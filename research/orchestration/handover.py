"""The way to the worker of an installation, and a study's view at Prefect, for who has not imported Prefect."""

import os
from collections.abc import Callable
from contextlib import closing

from research.controller.mirror import StudyView, describe_error
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.orchestration import server
from studies import EventLog, StudyState


def prepare_prefect(home: Home) -> None:
    """Set what Prefect reads once, when it is first imported; raise PrefectUnavailable where it is not installed."""
    server.require_prefect()
    os.environ.update(server.client_settings(home.prefect))


def find_worker(home: Home) -> Callable[[str], str]:
    """Return the way to the worker (`research.orchestration.deployment`); raise NotReady where there is none."""
    prepare_prefect(home)
    from research.orchestration.deployment import worker_scheduler

    return worker_scheduler(home)


REFRESH_S = 2.0
"""Seconds between two refreshes: what is clicked is carried out after so many."""
_AGAIN_S = 10.0
"""Seconds between two tries of a server that is gone."""
_RARELY_S = 600.0
"""The same, at most, of one that was never there."""
_LEAVING_S = 5.0
"""Most seconds that a study which is left at once waits until that is shown."""
_CLOSING_S = 30.0
"""The same for one that is over."""


class PrefectView(StudyView):
    """Shows a session of a study, which begins as of `begun`, from entering to leaving; `url` is where, once known.

    Prefect is imported in its thread, once a server is there: it takes seconds."""

    def __init__(self, home: Home, begun: StudyState, say: Note, warn: Note, *, executed: bool = False) -> None:
        """`executed` is as in ControllerSession."""

        def describe_trouble(error: Exception) -> str:
            return f"Prefect's view is interrupted ({describe_error(error)}); the study goes on without it"

        super().__init__("prefect-view", say, warn, describe_trouble, "Prefect's view is back")
        self.url: str | None = None
        self.own = False
        """Whether the server is one that `ajet up --stop` ends."""
        self._home, self._begun, self._executed = home, begun, executed
        self._notes: list[str] = []

    def observe(self, state: StudyState) -> None:
        """Take the state after a tick; what is shown is read from the log instead."""

    def note(self, line: str) -> None:
        self._notes.append(line)

    def _leave(self) -> None:
        self._thread.join(_LEAVING_S)
        if self._thread.is_alive() and (self._error is None or isinstance(self._error, Exception)):
            self._say("waiting for Prefect to show how the study ended")
            self._thread.join(_CLOSING_S - _LEAVING_S)

    def _work(self) -> None:
        try:
            if (running := self._server()) is None:
                return
            from research.orchestration import prefect_api, projection

            self.url, self.own = running.url, running.password is not None
            self._say(running.line)
            os.environ.update(server.client_environment(self._home.prefect))
            with prefect_api.connect(running.api) as client, closing(EventLog(self._home.database)) as log:
                session = projection.ControllerSession(self._home, log, self._begun, client, executed=self._executed)
                self._trouble.attempt(lambda: session.refresh(self._notes))
                while not self._over.wait(_AGAIN_S if self._trouble.lasts else REFRESH_S):
                    self._trouble.attempt(lambda: session.refresh(self._notes))
                self._trouble.attempt(lambda: session.close(self._error))
        except Exception as error:  # noqa: BLE001 - what starts or connects may raise anything, and ends the view only
            self._warn(f"Prefect's view ended ({type(error).__name__}: {error}); the study goes on without it")

    def _server(self) -> server.PrefectServer | None:
        again_s = _AGAIN_S
        while True:
            try:
                return server.ensure_server(self._home.prefect)
            except (server.PrefectUnavailable, OSError) as error:  # a full disk, say, has room again
                if again_s == _AGAIN_S:
                    self._warn(f"{error}; the study goes on without Prefect's view, which is tried again")
            if self._over.wait(again_s):
                return None
            again_s = min(2 * again_s, _RARELY_S)  # one that does not come up costs two minutes of a core
