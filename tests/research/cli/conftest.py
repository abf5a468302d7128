from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from research.cli.app import LazyGroup, app, run
from research.controller.session import hold_lease
from research.installation import servers
from research.installation.home import Home
from research.installation.servers import SwarmProcess, find_swarm
from studies import EventLog
from swarm.client import SwarmClient
from swarm.client.transport import server_folder
from swarm.job import Job
from tests.research.commands import ended
from tests.research.factories import make_study
from tests.studies.synthetic import STUDY, Synthetic
from tests.swarm.server.threads import Threaded, threaded


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The one line of an error, after that of a boot; fails if there is more than one, or a traceback."""
        (line,) = [line for line in self.err.splitlines() if not line.startswith("ajet: booting the model")]
        assert "Traceback" not in line
        return f"{line}\n"

    def refused(self, *names: str, code: int = 2) -> str:
        """Return the one line of a refusal, which names all of these."""
        assert (self.code, [name for name in names if name not in self.line]) == (code, []), self
        return self.line


Ajet = Callable[..., Ended]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of its own, and no settings from outside."""
    for name in [name for name in os.environ if name.startswith(("AJET_", "OPENAI_", "PREFECT_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AJET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AJET_SANDBOX", "process")
    monkeypatch.setenv("WANDB_MODE", "offline")  # whoever runs the tests may be logged in
    return tmp_path / "home"


@pytest.fixture
def ajet(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ajet:
    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["ajet", *arguments])
        with pytest.raises(SystemExit) as stopped:
            run()
        out, err = capfd.readouterr()
        return Ended(int(stopped.value.code or 0), out, err)

    return call


@pytest.fixture
def study(home: Path) -> Iterator[Synthetic]:
    made = make_study()
    made.create()
    yield made
    made.log.close()


@pytest.fixture
def locked(study: Synthetic) -> Synthetic:
    study.lock()
    return study


@pytest.fixture
def driven(locked: Synthetic) -> Iterator[Synthetic]:
    """A study of which a run goes on, with a controller that lives."""
    locked.launch(locked.plan()[0])
    home = Home.locate()
    with closing(EventLog(home.database)) as log, hold_lease(home, log, STUDY, lambda line: None):
        yield locked


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation whose study is finished, with a report, for copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AJET_HOME", str(tmp_path_factory.mktemp("finished")))
        made = make_study()
        made.whole()
        made.log.close()
        assert ended("study", "report", "--build")[0] == 0
        return Home.locate().path


@pytest.fixture
def finished(home: Path, finished_home: Path) -> Iterator[Synthetic]:
    shutil.copytree(finished_home, home, dirs_exist_ok=True)
    made = make_study()
    yield made
    made.log.close()


@contextmanager
def own_server(home: Path, name: str | None = None, job: Job | None = None) -> Iterator[Threaded]:
    folder, is_server = server_folder(home, name), servers._is_server
    with threaded(folder, job, start=job is not None) as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "_is_server", lambda pid, at: at == folder or is_server(pid, at))
        keys = {role: running.served.server.keys.role_key(role) for role in ("admin", "client", "viewer")}
        (folder / "tokens.json").write_text(json.dumps(keys))
        (folder / "server.json").write_text(json.dumps({"url": running.served.url, "pid": os.getpid()}))
        yield running


def server_of(home: Path, name: str | None = None) -> SwarmProcess:
    found = find_swarm(server_folder(home, name))
    assert found is not None
    return found


@contextmanager
def client_of(home: Path, name: str | None = None) -> Iterator[SwarmClient]:
    server = server_of(home, name)
    with SwarmClient(server.url, server.admin_token) as client:
        yield client


@pytest.fixture
def server(home: Path) -> Iterator[SwarmProcess]:
    with own_server(home):
        yield server_of(home)


def small_job(**fields: Any) -> Job:
    small = {"backend": "fake", "steps": 2, "episodes_per_step": 4, "group_size": 2, "environment": "arith"}
    return Job.model_validate({**small, **fields})


def every_command() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def take(command: Any, path: str) -> None:
        found[path] = command
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                loaded = command.lazy[name].load(name) if isinstance(command, LazyGroup) else command.commands[name]
                take(loaded, f"{path} {name}")

    take(typer.main.get_command(app), "ajet")
    return found
