"""A study over two hosts that share a database and files: one vanishes, the other one brings it to its report.

Each host is a namespace of processes, network and host name, so that neither sees the other's processes or ports.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa

from sandboxes.preload import SWITCH
from studies import EventLog, StudyState, fold
from tests.end_to_end.factories import DEADLINE_S, LARGE, TOPIC, ajet, eventually, inherited
from tests.furnished import furnish
from tests.studies.conftest import postgres_url

__all__ = ["postgres_url"]

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and namespaces"),
]  # fmt: skip


@dataclass
class Host:
    """A host by its name: what it runs ends with its first process."""

    name: str
    environment: dict[str, str]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        boot = f'ip link set lo up && hostname {self.name} && exec "$@"'
        command = [
            "unshare",
            "--net",
            "--uts",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            boot,
            "sh",
        ]
        process = subprocess.Popen(
            [*command, sys.executable, "-m", "research", *arguments], env=self.environment, stdout=-1, stderr=-1,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def run(self, *arguments: str) -> str:
        process = self.start(*arguments)
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors
        return out

    def vanish(self) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


@pytest.fixture
def database(postgres_url: str) -> str:
    """The database by its socket, which every network reaches."""
    url = sa.make_url(postgres_url)
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        folder = str(connection.execute(sa.text("show unix_socket_directories")).scalar_one()).partition(",")[0]
    engine.dispose()
    return url.set(host=None, port=None, query={"host": folder, "port": str(url.port)}).render_as_string(False)


@pytest.fixture
def hosts(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, database: str) -> list[Host]:
    made = []
    for name in ("alpha", "beta"):
        furnish(tmp_path / name, tmp_path_factory)
        environment = inherited(
            AJET_HOME=str(tmp_path / name), AJET_DATABASE_URL=database, AJET_FILES=f"file://{tmp_path}/team",
            AJET_SANDBOX="process", AJET_ROUNDS="1", WANDB_MODE="offline", **{SWITCH: "1"},
        )  # fmt: skip
        made.append(Host(name, environment))
    return made


def trains_after_a_result(state: StudyState) -> bool:
    runs = state.runs.values()
    return any(run.status == "collected" for run in runs) and any(run.active for run in runs)


def test_a_study_goes_on_at_another_host_after_the_first_one_vanished(
    hosts: list[Host], database: str, tmp_path: Path
) -> None:
    alpha, beta = hosts
    controller = alpha.start("research", TOPIC, "--max-runs", "7", *LARGE, "--no-prefect")
    with closing(EventLog(database)) as log:

        def reaches(condition: Callable[[StudyState], bool]) -> bool:
            known = log.studies()
            return bool(known) and condition(fold(log.read(known[0])))

        try:
            eventually(lambda: reaches(trains_after_a_result), controller)
            alpha.vanish()
            (study,) = log.studies()
            running = [run.active.name for run in fold(log.read(study)).runs.values() if run.active]
            before = {run.run_id for run in fold(log.read(study)).runs.values() if run.status == "collected"}
            shown = json.loads(beta.run("study", "show", study, "--json"))
            assert shown["status"] == "running"
            beta.run("study", "resume", study, "--no-prefect", "--json")
            state = fold(log.read(study))
            assert state.status == "concluded"
            tried = [attempt for run in state.runs.values() for attempt in run.attempts]
            assert [attempt.name for attempt in tried if attempt.code == "lost"] == running
            assert {attempt.code for attempt in tried} == {"ok", "lost"}
            assert all(len(run.attempts) == 1 for run in state.runs.values() if run.run_id in before)
            with log.transaction("read") as connection:
                assert connection.execute(sa.text("select count(*) from slots")).scalar_one() == 0
            for host in (beta, alpha):  # which is back, and has its own folder as it left it
                exported = tmp_path / f"of-{host.name}"
                assert json.loads(host.run("study", "verify", study, "--json"))["holds"]
                host.run("study", "export", study, str(exported))
                host.run("study", "report", study)
                elsewhere = ajet(inherited(AJET_HOME=str(tmp_path / "stranger")), "study", "verify", str(exported))
                assert elsewhere.returncode == 0, elsewhere.stdout
        finally:
            for host in hosts:
                host.vanish()
