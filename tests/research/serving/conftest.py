"""An installation with a worker of its own, `ajet up --work`, and what Prefect's pages send to its server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
import pytest

from research.installation.home import Home
from research.orchestration.server import (
    PrefectServer,
    client_environment,
    ensure_server,
    is_alive,
    read_process,
    stop_server,
)
from research.orchestration.supervision import WORKER, end_worker
from studies import EventLog, StudyState, fold
from tests.end_to_end.factories import ajet, inherited
from tests.furnished import furnish
from tests.research.orchestration.conftest import asking, client, page, prefect_server, server  # noqa: F401 - fixtures
from tests.research.orchestration.shown import PATIENCE_S, press, runs_of, state_of, wait_for

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

TOPIC = "group size 4 vs 8 with 600 training steps"
LINGERING = '''
"""Whoever answers waits half a minute for the verdict."""
import time

from swarm.environments import Environment, Game, Outcome, Task, said


class Waiting(Game):
    def opening(self):
        return [{"role": "user", "content": "?"}]

    def answer(self, message):
        time.sleep(30.0)
        return []

    def outcome(self):
        return Outcome(0.0, success=False)


class Lingering(Environment):
    name, title, measures = "lingering", "a wait", "nothing"

    def tasks(self, split):
        return [Task(f"{split}-{number}", {}) for number in range(32)]

    def game(self, task):
        return Waiting()

    def imitate(self, task, rng):
        return [*Waiting().opening(), said("?")]
'''
"""Trainings on it are still under way when a test is done with them, and leave the cores to what it looks at."""


@dataclass
class Pages:
    """A server, its client, and an installation: begin, cancel, pause and resume as the pages do."""

    server: PrefectServer
    client: SyncPrefectClient
    home: Home
    environment: dict[str, str]
    worker: subprocess.Popen[str] | None = None

    @property
    def place(self) -> str:
        from research.orchestration.prefect_api import installation_name

        return installation_name(self.home)

    def serve(self, *options: str) -> None:
        command = [sys.executable, "-m", "research", "up", "--work", *options]
        log = self.home.path / "up.log"
        with log.open("ab") as file:
            self.worker = subprocess.Popen(command, env=self.environment, stdout=file, stderr=file, text=True)
        wait_for(self._is_served)

    def leave(self) -> None:
        """End it as Ctrl-C does."""
        assert self.worker is not None
        self.worker.send_signal(2)
        assert self.worker.wait(PATIENCE_S) == 0

    def process(self, name: str = "server.json") -> psutil.Process | None:
        known = read_process(self.home.prefect / name)
        return psutil.Process(int(str(known["pid"]))) if known is not None and is_alive(known) else None

    def kill_server(self) -> None:
        process = self.process()
        assert process is not None
        process.kill()
        psutil.wait_procs([process])

    @property
    def asked(self) -> dict[str, Any]:
        return {
            "topic": TOPIC, "env": str(self.home.path / "lingering"), "backend": "fake", "budget": "1d", "effect": 0.3
        }  # fmt: skip

    def detach(self, *options: str) -> str:
        asked = [word for name, value in self.asked.items() if name != "topic" for word in (f"--{name}", str(value))]
        given = self.ajet("research", TOPIC, *asked, "--detach", *options)
        assert given.returncode == 0, given.stderr
        return self.studies()[0]

    def engine(self, run: UUID) -> psutil.Process:
        """Return the process in which Prefect's engine drives the study of a flow run; its parent is the executor."""
        process = self.process(f"sittings/{run}.json")
        assert process is not None
        return process

    def begin(self, **parameters: Any) -> UUID:
        deployment = self.client.read_deployment_by_name(f"ajet-research/research@{self.place}")
        return self.client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id

    def state(self, run: UUID) -> State[Any]:
        return state_of(self.flow_run(run))

    def study_of(self, run: UUID) -> StudyState:
        """Return the study that a flow run began."""
        return self.study(next(study for study in self.studies() if study.endswith(run.hex[-8:])))

    def until_trained(self, run: UUID) -> None:
        """Wait until a process drives the study, and something of it trains."""

        def is_trained() -> bool:
            driven = self.process(f"sittings/{run}.json") is not None and self.shown(run) == "Running"
            begun = any(study.endswith(run.hex[-8:]) for study in self.studies())
            state = self.study_of(run) if driven and begun else None
            return state is not None and state.stopped_reason is None and bool(trainings(state))

        wait_for(is_trained)

    def press(self, run: UUID, button: str) -> None:
        status = press(self.client, run, button)
        # What waits, and has no process to be ended, is Cancelled at once, which the server calls a rejection.
        assert status == "ACCEPT" or (button == "cancel" and self.shown(run) == "Cancelled")

    def flow_run(self, run: UUID) -> FlowRun:
        return self.client.read_flow_run(run)

    def shown(self, run: UUID) -> str:
        state = self.flow_run(run).state
        return "" if state is None or state.name is None else state.name

    def until(self, run: UUID, *names: str) -> None:
        wait_for(lambda: self.shown(run) in names)

    def runs_of(self, study: str) -> list[FlowRun]:
        return runs_of(self.client, study)

    def study(self, name: str | None = None) -> StudyState:
        with closing(EventLog(self.home.database)) as log:
            return fold(log.read(name or log.studies()[0]))

    def studies(self) -> list[str]:
        with closing(EventLog(self.home.database)) as log:
            return log.studies()

    def serves(self) -> bool:
        try:
            deployments = self.client.read_deployments()
        except Exception:  # noqa: BLE001 - a server that is gone, or is being started, says so in many ways
            return False
        return len([each for each in deployments if each.work_pool_name == self.place]) == 1

    def ajet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ajet(self.environment, *arguments)

    def _is_served(self) -> bool:
        assert self.worker is not None
        assert self.worker.poll() is None, (self.home.path / "up.log").read_text()
        return self.process(WORKER) is not None


def trainings(state: StudyState) -> list[psutil.Process]:
    """Return the processes of attempts that live, without a child of theirs that has not yet become another program."""
    found = [
        process for process in psutil.process_iter(["cmdline", "ppid"])
        if "research.runs.attempt" in (words := process.info["cmdline"] or []) and state.id in str(words)
    ]  # fmt: skip
    parents = {process.pid for process in found}
    return [process for process in found if process.info["ppid"] not in parents]


def stop(pages: Pages, study: str) -> None:
    assert pages.ajet("study", "stop", study).returncode == 0
    wait_for(lambda: not trainings(pages.study(study)))


@pytest.fixture(scope="module")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "home"
    furnish(home, tmp_path_factory)
    (home / "lingering").mkdir()
    (home / "lingering" / "environment.py").write_text(LINGERING)
    return home


@contextmanager
def served_in(own_home: Path, **named: str) -> Iterator[Pages]:
    mine = inherited(AJET_HOME=str(own_home), AJET_SANDBOX="process", **named)
    home = Home.locate(mine)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        for name, value in (client_environment(home.prefect) | named).items():
            patch.setenv(name, value)
        patch.setenv("PREFECT_CLIENT_MAX_RETRIES", "3")
        server = ensure_server(home.prefect, port=0)
        from research.orchestration.prefect_api import connect  # Prefect reads its settings at import

        with connect(server.api) as client:
            yield Pages(server, client, home, mine)
    end_worker(home)
    stop_server(home.prefect)


@pytest.fixture(scope="module")
def served(own_home: Path) -> Iterator[Pages]:
    """A server of this module's own: automations would act on the flow runs of others."""
    with served_in(own_home) as pages:
        yield pages
