"""The light client as a wheel: installed alone it plays on a real server, without anything else of ajet."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from research.installation.servers import start_swarm, stop_swarm
from research.isolation.client_image import build_wheel
from swarm.client import SwarmClient
from swarm.job import Job

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
