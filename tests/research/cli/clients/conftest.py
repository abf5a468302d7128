"""An installation whose server runs in a thread of the tests, and agents to play there."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from research.installation.home import Home
from research.isolation.client_image import ensure_client_image
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.build import Image
from swarm.client import SwarmClient
from tests.research.cli.conftest import client_of, own_server, server_of, small_job

PATIENCE_S = 300.0
seeds = itertools.count(1)
Load = Callable[..., None]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("installation")
    with own_server(folder):
        yield folder


@pytest.fixture
def home(home: Path, installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AJET_HOME", str(installation))
    return installation


@pytest.fixture
def contained(home: Path, engine: ContainerEngine, image: Image) -> None:
    ensure_client_image(engine, Home.locate(), lambda line: None, base=image.base)


@pytest.fixture
def control(home: Path) -> Iterator[SwarmClient]:
    with client_of(home) as client:
        yield client


@pytest.fixture
def load(control: SwarmClient) -> Load:
    def start(**fields: Any) -> None:
        control.stop()
        control.ensure_training(small_job(**{"seed": next(seeds), **fields}))

    return start


def make_agent(folder: Path, text: str, name: str = "agent.py") -> str:
    place = folder / "mine"
    place.mkdir(exist_ok=True)
    (place / name).write_text(text)
    return str(place)


def make_tasks(folder: Path, count: int = 3) -> str:
    path = folder / "tasks.json"
    path.write_text(json.dumps([{"id": f"q{n}", "data": {"question": f"{n}?"}} for n in range(count)]))
    return str(path)


class Client:
    """`ajet client ...` as a process, with what it says in a file."""

    def __init__(self, process: subprocess.Popen[str], told: Path) -> None:
        self.process = process
        self._told = told

    @property
    def err(self) -> str:
        return self._told.read_text()

    def until(self, true: Callable[[], Any], *, ended: bool = False) -> None:
        """Wait for a condition while it runs, or after it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert (self.process.poll() is None) != ended, self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.05)

    def until_told(self, words: str, times: int = 1) -> None:
        self.until(lambda: self.err.count(words) >= times)

    def ended(self, code: int, text: str | None = None) -> str:
        """Wait for its end with a code; return what it printed."""
        out, _ = self.process.communicate(text, timeout=PATIENCE_S)
        assert self.process.returncode == code, self.err
        return out


@contextlib.contextmanager
def running(home: Path, *options: str, **given: Any) -> Iterator[Client]:
    server = server_of(home)
    own = {"AJET_HOME": str(home), "AJET_SERVER": server.url, "AJET_TOKEN": server.client_token}
    told = home / f"told-{next(seeds)}"
    with told.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "research", "client", *options],
            env={**os.environ, **own}, text=True, stdout=subprocess.PIPE, stderr=err, **given,
        )  # fmt: skip
    try:
        yield Client(process, told)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.communicate()
