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
from typing import Self

from research.installation.home import Home
from research.orchestration.server import PrefectServer, PrefectUnavailable, client_environment, ensure_server
from studies import EventLog, StudyState

REFRESH_S = 2.0
"""Seconds between two refreshes: what is clicked is carried out after so many."""
_AGAIN_S = 10.0
"""Seconds between two tries of a server that is gone."""
_LEAVING_S = 5.0
"""Most seconds that a study which is left at once waits until that is shown."""
_CLOSING_S = 30.0
"""The same for one that is over."""

Say = Callable[[str], None]
"""Takes one line for whoever watches."""


class PrefectView:
    """Shows one session of a study, which begins at `since`, from entering to leaving; `url` is where, once known."""

    def __init__(self, home: Home, since: StudyState, say: Say, warn: Say) -> None:
        """`say` takes where it is shown, `warn` that it is not."""
        self.url: str | None = None
        self._home = home
        self._since = since
        self._say = say
        self._warn = warn
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._lost = False
        self._thread = threading.Thread(target=self._work, name="prefect-view", daemon=True)

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
            self._show(ensure_server(self._home.prefect))
        except PrefectUnavailable as error:
            self._warn(f"{error}; the study goes on without Prefect's view")
        except Exception as error:  # noqa: BLE001 - what starts or connects may raise anything, and ends the view only
            self._warn(f"Prefect's view ended ({type(error).__name__}: {error}); the study goes on without it")

    def _show(self, server: PrefectServer) -> None:
        self.url = server.url
        self._say(f"Prefect UI  {server.url}" + (f"  ({server.note})" if server.note else ""))
        os.environ.update(client_environment(self._home.prefect))
        from research.orchestration.flow_run import connect  # Prefect reads its settings at import
        from research.orchestration.session import ControllerSession

        with connect(server.api) as client, closing(EventLog(self._home.database)) as log:
            session = ControllerSession(self._home, log, self._since, client)
            self._try(session.refresh)
            while not self._over.wait(_AGAIN_S if self._lost else REFRESH_S):
                self._try(session.refresh)
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
