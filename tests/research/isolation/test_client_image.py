"""Which base an installation's client image is made on, what of our sources lies in it, and the client as a wheel."""

from __future__ import annotations

import subprocess
import sys
import uuid
import zipfile
from pathlib import Path

import pytest

from research.installation.home import Home
from research.installation.servers import start_swarm, stop_swarm
from research.isolation import client_image
from research.isolation.client_image import build_wheel, ensure_client_image
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine
from swarm.client import SwarmClient
from swarm.job import Job


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, "")


def test_no_base_at_all_is_one_line_that_says_how_to_name_one(
    engine: ContainerEngine, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_image, "USUAL_BASE", f"ajet-test-{uuid.uuid4().hex[:8]}-usual:1")
    notes: list[str] = []
    with pytest.raises(SandboxError, match="--base IMAGE") as refused:
        ensure_client_image(engine, home, notes.append)
    assert "\n" not in str(refused.value)
    assert notes == [f"pulling {client_image.USUAL_BASE}"]
    assert not (home.sandboxes / "image.json").exists()


PLAY = """
import json, sys
sys.path.insert(0, sys.argv[3])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "fastapi", "sqlalchemy", "prefect", "research", "studies"}:
            raise ImportError(f"{name} is not on this machine")

sys.meta_path.insert(0, Absent())
import swarm
assert swarm.__file__.startswith(sys.argv[3]), swarm.__file__
from swarm.client import NamedTask, SwarmClient

def play(episode):
    episode.chat([{"role": "user", "content": episode.task.id}])
    return 1.0

with SwarmClient(sys.argv[1], sys.argv[2]) as client:
    summary = client.rollout(play, [NamedTask("a"), NamedTask("b")], concurrency=4)
    print(json.dumps({"step": client.status().step}))
"""


@pytest.mark.slow
def test_what_was_installed_of_it_plays_a_job_to_its_end(tmp_path: Path) -> None:
    made = build_wheel(tmp_path / "dist")
    there = tmp_path / "there"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(there)]
    subprocess.run([*install, str(made)], check=True)
    server = start_swarm(tmp_path / "swarm", models=tmp_path / "models", port=0)
    try:
        with SwarmClient(server.url, server.admin_token) as client:
            client.ensure_training(Job(backend="fake", steps=2, episodes_per_step=4, group_size=2))
        ended = subprocess.run(
            [sys.executable, "-c", PLAY, server.url, server.client_token, str(there)],
            capture_output=True, text=True, cwd=tmp_path, timeout=400, check=False,
        )  # fmt: skip
    finally:
        stop_swarm(server)
    assert ended.returncode == 0, ended.stderr
    assert '"step": 2' in ended.stdout


def test_the_same_sources_make_the_same_bytes_and_every_file_is_recorded(tmp_path: Path) -> None:
    first, second = build_wheel(tmp_path / "a"), build_wheel(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert not list(tmp_path.rglob("*.part"))
    with zipfile.ZipFile(first) as wheel:
        (record,) = (name for name in wheel.namelist() if name.endswith("RECORD"))
        told = {line.split(",")[0] for line in wheel.read(record).decode().splitlines()}
        needs = wheel.read(record.replace("RECORD", "METADATA")).decode()
    assert told == set(wheel.namelist())
    assert "Requires-Dist: aiohttp\nRequires-Dist: pydantic\n" in needs
