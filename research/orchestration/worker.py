"""`ajet up --work`: server and worker of this machine, started again where they end.

The worker is Prefect's own, of type process: for each flow run it starts `research.orchestration.flow` as a process of
its own. Beside it, studies that these left are handed over again.
When it is ended, what it drives is left in order, and the next one goes on with it; when it is killed, its sittings
live on.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import psutil
from prefect.client.orchestration import SyncPrefectClient

from research.controller.controller import build_stop_event
from research.controller.interventions import end_attempts
from research.files import ignore_disk_full, require_room
from research.installation.home import Home
from research.orchestration.deployment import ProcessPool, StalledFlowRuns, UnownedStudies, register, reschedule_or_stop
from research.orchestration.prefect_api import UserAction, action_reason, connect, installation_name
from research.orchestration.server import PrefectServer, client_environment, end_group, ensure_server, record_or_end
from research.orchestration.supervision import LEAVING_S, WORKER, is_supervisor
from studies import EventLog, StudyLog, StudyState
from studies.log.locks import Holder

LOOK_S: Final = 2.0
"""Seconds between two looks at the server and the worker; new flow runs are asked for as often."""
TELL_S: Final = 10.0
"""Seconds between two looks for studies that were left, and for a server that lost what it was told."""

Say = Callable[[str], None]


class StudyWorker:
    """The worker of an installation, from entering to leaving; at most `limit` studies at once."""

    def __init__(self, home: Home, pool: ProcessPool, limit: int, say: Say, warn: Say) -> None:
        self.server: PrefectServer = ensure_server(home.prefect)
        self._home = home
        self._pool = pool
        self._limit = limit
        self._say = ignore_disk_full(say)
        self._warn = ignore_disk_full(warn)
        self._place = installation_name(home)
        self._log = EventLog(home.database)
        self._unowned_studies = UnownedStudies(self._log, home, Holder.here(home.path))
        self._stalled = StalledFlowRuns(home)
        self._process: subprocess.Popen[bytes] | None = None
        self._told = 0.0
        self._once = secrets.token_hex(4)
        self._trouble: str | None = None

    def run(self, until: threading.Event) -> None:
        """Look after server, worker and studies that were left until the event is set or the folder is gone."""
        try:
            while not until.wait(LOOK_S):
                if not is_supervisor(self._home):  # a server started there would be nobody's
                    self._warn(f"the folder {self._home.path} is gone, or another's; the worker ends")
                    return
                self._try(self._tick)
        finally:
            self._end()

    def _tick(self) -> None:
        before, self.server = self.server, ensure_server(self._home.prefect)
        if self._process is not None and self.server.api != before.api:
            self._say(f"Prefect's server is at {self.server.url} now; the worker is started again")
            self._end()
            self._process = None
            self._told = 0.0
        is_due = time.monotonic() - self._told >= TELL_S
        if is_due:
            with connect(self.server.api) as client:
                register(client, self._home, self._pool)
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                self._say(f"the worker ended with code {self._process.returncode}; it is started again")
            self._start()
        if is_due:
            self._reschedule_all()
            self._told = time.monotonic()  # else the next look tries again, and none between says that all is well

    def _reschedule_all(self) -> None:
        """Hand over what was left; what keeps one study from it keeps no other, and is raised when all were tried."""
        require_room(self._home.path)  # on a full disk its process could not even begin
        failed: Exception | None = None
        with connect(self.server.api) as client:
            self._stalled.reschedule(client)
            for state in self._unowned_studies.find():
                try:
                    self._reschedule(client, state)
                except Exception as error:  # noqa: BLE001 - as in _try
                    failed = error
        if failed is not None:
            raise failed

    def _reschedule(self, client: SyncPrefectClient, state: StudyState) -> None:
        """Hand a study over that was left; where somebody cancelled its flow run, which nobody saw, stop it instead."""
        record = StudyLog(self._log, state.id)

        def stop() -> None:
            record.change(lambda state: build_stop_event(state, action_reason(UserAction.STOP)), actor="user")

        key = f"{state.id}/{state.head_hash}/{self._once}"
        if not reschedule_or_stop(client, self._home, state.id, key, stop):
            end_attempts(self._home, self._log, record, self._warn)

    def _start(self) -> None:
        folder = self._home.prefect
        command = [sys.executable, "-m", "research.orchestration.worker", "worker", "start", "--pool", self._pool.name,
                   "--type", "process", "--install-policy", "never", "--limit", str(self._limit),
                   "--name", self._place]  # fmt: skip
        environment = {
            **os.environ, **client_environment(folder), "AJET_HOME": str(self._home.path),
            "AJET_DATABASE_URL": self._home.database, "PREFECT_API_URL": self.server.api,
            "PREFECT_WORKER_QUERY_SECONDS": str(LOOK_S), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
        }  # fmt: skip
        with (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        record_or_end(folder / WORKER, self._process)

    def _end(self) -> None:
        if self._process is not None:
            self._say("ending the worker; what it drives is left in order")
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(self._process.pid).children()
                for child in children:
                    child.terminate()
                psutil.wait_procs(children, timeout=LEAVING_S)
            end_group(self._process.pid, LEAVING_S)
        (self._home.prefect / WORKER).unlink(missing_ok=True)

    def _try(self, look: Callable[[], None]) -> None:
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


def skip_running(submit: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return how a worker begins flow runs, but for one whose process still ends: a second would end the worker."""

    async def submit_others(worker: Any, flow_run_response: list[Any]) -> Any:
        held = () if worker._limiter is None else worker._limiter.statistics().borrowers
        return await submit(worker, [entry for entry in flow_run_response if entry.flow_run.id not in held])

    return submit_others


def main() -> None:
    from prefect.cli import app
    from prefect.workers.base import BaseWorker

    BaseWorker._submit_scheduled_flow_runs = skip_running(BaseWorker._submit_scheduled_flow_runs)  # type: ignore[method-assign, assignment]
    app()


if __name__ == "__main__":
    main()
