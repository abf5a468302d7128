"""`ajet up --work`: server and worker of this machine, started again where they end.

The worker is Prefect's own, of type process. It has no limit of its own, the pool has: one with a limit ends of a flow
run that is put back in line while it holds its place. When it is ended, what it drives is left in order, and the next
one goes on with it; when it is killed, processes of flow runs live on.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

import os
import subprocess
import sys
import threading
import time
from typing import Final

from research.controller.mirror import Trouble, describe_error
from research.files import ignore_disk_full, require_room
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.orchestration.deployment import ProcessPool, StudyFlowRuns, is_registered, register
from research.orchestration.prefect_api import connect, installation_name
from research.orchestration.server import PrefectServer, client_environment, end_group, ensure_server, record_or_end
from research.orchestration.supervision import LEAVING_S, PREFECT_COMMAND, WORKER, is_supervisor, leave_flow_runs
from studies import EventLog

LOOK_S: Final = 2.0
"""Seconds between two looks at server, worker, and flow runs that nobody drives; new ones are asked for as often."""
TELL_S: Final = 10.0
"""Seconds between two looks at a server that may have lost what it was told."""


class StudyWorker:
    """The worker of an installation, from entering to leaving; at most `limit` studies at once."""

    def __init__(self, home: Home, pool: ProcessPool, say: Note, warn: Note) -> None:
        self.server: PrefectServer = ensure_server(home.prefect)
        self._home, self._pool, self._limits = home, pool, True
        self._say, self._warn = ignore_disk_full(say), ignore_disk_full(warn)
        self._flow_runs = StudyFlowRuns(home, EventLog(home.database), self._warn)
        self._process: subprocess.Popen[bytes] | None = None
        self._registered_at = -TELL_S
        self._trouble = Trouble(
            self._warn, lambda error: f"the worker waits ({describe_error(error)})", "the worker goes on"
        )

    def run(self, until: threading.Event) -> None:
        """Look after server, worker and studies that were left until the event is set or the folder is gone."""
        try:
            while not until.wait(LOOK_S):
                if not is_supervisor(self._home):  # a server started there would be nobody's
                    self._warn(f"the folder {self._home.path} is gone, or another's; the worker ends")
                    return
                self._trouble.attempt(self._tick)
        finally:
            self._end()

    def _tick(self) -> None:
        before, self.server = self.server, ensure_server(self._home.prefect)
        if self._process is not None and self.server.api != before.api:
            self._say(f"Prefect's server is at {self.server.url} now; the worker is started again")
            self._end()
            self._process = None
            self._registered_at = -TELL_S
        with connect(self.server.api) as client:
            if time.monotonic() - self._registered_at >= TELL_S or not is_registered(client, self._home):
                register(client, self._home, self._pool, limits=self._limits)
                self._limits = False  # a person may change the pool's
                self._registered_at = time.monotonic()
            if self._process is None or self._process.poll() is not None:
                if self._process is not None:
                    self._say(f"the worker ended with code {self._process.returncode}; it is started again")
                self._start()
            require_room(self._home.path)  # on a full disk a process could not even begin
            self._flow_runs.settle(client)

    def _start(self) -> None:
        folder = self._home.prefect
        command = [sys.executable, "-m", PREFECT_COMMAND, "worker", "start", "--pool", self._pool.name, "--type",
                   "process", "--no-create-pool-if-not-found", "--install-policy", "never", "--name",
                   installation_name(self._home)]  # fmt: skip
        environment = {
            **os.environ, **client_environment(folder), "AJET_HOME": str(self._home.path),
            "AJET_DATABASE_URL": self._home.database, "PREFECT_API_URL": self.server.api,
            "PREFECT_WORKER_QUERY_SECONDS": str(LOOK_S), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
            "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR": "reschedule",
        }  # fmt: skip
        with (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        record_or_end(folder / WORKER, self._process)

    def _end(self) -> None:
        if self._process is not None:
            self._say("ending the worker; what it drives is left in order")
            leave_flow_runs(self._home, self._process.pid)
            end_group(self._process.pid, LEAVING_S)
        (self._home.prefect / WORKER).unlink(missing_ok=True)
