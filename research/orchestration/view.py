"""Prefect beside a study: a thread that starts or finds the server, and then refreshes the flow run every few seconds.

A study never waits for Prefect and never fails with it: whatever its client raises is reported in one line and tried
again. Only a study that is over waits, for a bounded time, until its end is shown.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import UUID

from research.installation.disk import unless_full
from research.installation.home import Home
from research.orchestration.named import PrefectUnavailable
from research.orchestration.server import PrefectServer, client_environment, ensure_server
from studies import EventLog, StudyState

if TYPE_CHECKING:
    pass  # imports Prefect, which reads its settings then

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

Say = Callable[[str], None]
"""Takes one line for whoever watches."""


class PrefectView:
    """Shows one session of a study, which begins at `since`, from entering to leaving; `url` is where, once known."""

    def __init__(self, home: Home, since: StudyState, say: Say, warn: Say, taken: UUID | None = None) -> None:
        """`say` takes where it is shown, `warn` that it is not; `taken` is a flow run as in ControllerSession.

        A line that can be written nowhere, as on a full disk, is dropped.
        """
        self.url: str | None = None
        self.own = False
        """Whether the server is one that `ajet up --stop` ends."""
        self._home = home
        self._since = since
        self._say = unless_full(say)
        self._warn = unless_full(warn)
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._taken = taken
        self._lost = False
        self._notes: list[str] = []
        self._thread = threading.Thread(target=self._work, name="prefect-view", daemon=True)

    def observe(self, state: StudyState) -> None:
        """Take the state after a tick; what is shown is read from the log instead."""

    def note(self, line: str) -> None:
        """Take a line for the flow run's log."""
        self._notes.append(line)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._error = error
        self._over.set()
        leaving = error is not None and not isinstance(error, Exception)
        with suppress(KeyboardInterrupt):  # whoever waits no longer is not kept
            self._thread.join(_LEAVING_S)
            if self._thread.is_alive() and not leaving:
                self._say("waiting for Prefect to show how the study ended")
                self._thread.join(_CLOSING_S - _LEAVING_S)

    def _work(self) -> None:
        try:
            if (server := self._server()) is not None:
                self._show(server)
        except Exception as error:  # noqa: BLE001 - what starts or connects may raise anything, and ends the view only
            self._warn(f"Prefect's view ended ({type(error).__name__}: {error}); the study goes on without it")

    def _server(self) -> PrefectServer | None:
        """Return a server as soon as there is one; say once why there is none; None where the study ended before."""
        again_s = _AGAIN_S
        while True:
            try:
                return ensure_server(self._home.prefect)
            except (PrefectUnavailable, OSError) as error:  # a full disk, say, has room again
                if again_s == _AGAIN_S:
                    self._warn(f"{error}; the study goes on without Prefect's view, which is tried again")
            if self._over.wait(again_s):
                return None
            again_s = min(2 * again_s, _RARELY_S)  # one that does not come up costs two minutes of a core

    def _show(self, server: PrefectServer) -> None:
        self.url, self.own = server.url, server.password is not None
        self._say(server.line)
        os.environ.update(client_environment(self._home.prefect))
        from research.orchestration.flow_run import connect  # Prefect reads its settings at import
        from research.orchestration.session import ControllerSession

        with connect(server.api) as client, closing(EventLog(self._home.database)) as log:
            session = ControllerSession(self._home, log, self._since, client, self._taken)
            self._try(lambda: session.refresh(self._notes))
            while not self._over.wait(_AGAIN_S if self._lost else REFRESH_S):
                self._try(lambda: session.refresh(self._notes))
            self._try(lambda: session.close(self._error))

    def _try(self, look: Callable[[], None]) -> None:
        """Publish something; say once that it fails, with the reason, and once that it works again."""
        try:
            look()
        except Exception as error:  # noqa: BLE001 - a client's errors are many; none may end what it only shows
            if not self._lost:
                why = " ".join(f"{type(error).__name__}: {error}".split())
                self._warn(f"Prefect's view is interrupted ({why}); the study goes on without it")
            self._lost = True
        else:
            if self._lost:
                self._warn("Prefect's view is back")
            self._lost = False
