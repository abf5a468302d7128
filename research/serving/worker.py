"""`ajet up --work`: the server and the worker of this machine, both started again where they end.

The worker is Prefect's own, of the type `process`: for each flow run it starts `research.serving.sitting`. Beside it,
studies that its processes left are handed over again. When it is ended, what it drives is left in order, and the next
one goes on with it; when it is killed, its processes live on.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from research.installation.home import Home
from research.orchestration.deployments import hand_over, place_of
from research.orchestration.flow_run import connect
from research.orchestration.server import PrefectServer, client_environment, end_group, ensure_server, record
from research.serving.orphans import Orphans
from research.serving.registration import register
from research.serving.supervision import LEAVING_S, WORKER, is_supervisor
from studies import EventLog
from studies.log.leases import Holder

LOOK_S: Final = 2.0
"""Seconds between two looks at the server and the worker; new flow runs are asked for as often."""
TELL_S: Final = 10.0
"""Seconds between two looks for studies that were left, and for a server that lost what it was told."""

Say = Callable[[str], None]


class StudyWorker:
    """The worker of an installation, from entering to leaving; at most `limit` studies at once."""

    def __init__(self, home: Home, limit: int, say: Say, warn: Say) -> None:
        self.server: PrefectServer = ensure_server(home.prefect)
        self._home = home
        self._limit = limit
        self._say = say
        self._warn = warn
        self._place = place_of(home)
        self._orphans = Orphans(EventLog(home.database), Holder.here(home.path))
        self._process: subprocess.Popen[bytes] | None = None
        self._told = 0.0
        self._once = secrets.token_hex(4)
        self._trouble: str | None = None

    def run(self, until: threading.Event) -> None:
        """Look after the server, the worker and studies that were left, until the event is set; then end the worker.

        It ends by itself where its folder is gone, with a line: a server started there would be nobody's.
        """
        try:
            while not until.wait(LOOK_S):
                if not is_supervisor(self._home):
                    self._warn(f"the folder {self._home.path} is gone, or another's; the worker ends")
                    return
                self._try(self._look)
        finally:
            self._end()

    def _look(self) -> None:
        """Start what is not there; tell the server what it does not know; hand over what was left."""
        self.server = ensure_server(self._home.prefect)
        if time.monotonic() - self._told >= TELL_S:
            self._tell()
            self._told = time.monotonic()
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                self._say(f"the worker ended with code {self._process.returncode}; it is started again")
            self._start()

    def _tell(self) -> None:
        with connect(self.server.api) as client:
            register(client, self._place, Path.cwd())
            for state in self._orphans.found():
                hand_over(client, self._place, state.id, f"{state.id}/{state.head_hash}/{self._once}")

    def _start(self) -> None:
        folder = self._home.prefect
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", self._place, "--type", "process",
                   "--limit", str(self._limit), "--name", self._place]  # fmt: skip
        environment = {
            **os.environ, **client_environment(folder), "AJET_HOME": str(self._home.path),
            "AJET_DATABASE_URL": self._home.database, "PREFECT_API_URL": self.server.api,
            "PREFECT_WORKER_QUERY_SECONDS": str(LOOK_S), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
        }  # fmt: skip
        with (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        record(folder / WORKER, self._process.pid)

    def _end(self) -> None:
        if self._process is not None:
            self._say("ending the worker; what it drives is left in order")
            _end_children(self._process.pid)  # first: a worker that ends does not wait for their last words
            end_group(self._process.pid, LEAVING_S)
        (self._home.prefect / WORKER).unlink(missing_ok=True)

    def _try(self, look: Callable[[], None]) -> None:
        """Do it; say once that it fails, and once that it works again."""
        try:
            look()
        except Exception as error:  # noqa: BLE001 - the client's errors are many; none may end what is looked after
            said = " ".join(f"{type(error).__name__}: {error}".split())
            if self._trouble is None:
                self._warn(f"the worker waits ({said})")
            self._trouble = said
        else:
            if self._trouble is not None:
                self._warn("the worker goes on")
            self._trouble = None


def _end_children(worker: int) -> None:
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(worker).children()
        for child in children:
            child.terminate()
        psutil.wait_procs(children, timeout=LEAVING_S)
