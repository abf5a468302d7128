"""`ajet swarm start` and `status` where the server failed, stands still, or trains another job."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from research.agents.run import job_status
from research.cli.swarm import app as swarm
from research.installation.server_process import SwarmProcess, start_swarm, stop_swarm
from swarm.client import SwarmClient
from swarm.job import Job, PathModel
from swarm.wire import ServerState, Status
from tests.research.cli.conftest import Ajet
from tests.swarm.models.folders import whole_folder

pytestmark = pytest.mark.slow

FAKE = {"backend": "fake", "steps": 3, "episodes_per_step": 4, "group_size": 2, "environment": "arith"}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(FAKE))
    return path


def test_a_server_that_failed_takes_the_next_job_or_tries_the_same_again(
    ajet: Ajet, home: Path, job: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A real process, as a fake backend loads no model."""
    found, nothing = start_swarm(home / "swarm", models=home / "models", port=0), tmp_path / "nothing"
    request.addfinalizer(lambda: stop_swarm(found))
    job.write_text(json.dumps({"model": {"kind": "path", "path": str(nothing)}}))
    ajet("swarm", "start", "--job", str(job)).refused("no such folder", str(nothing))
    assert "FAILED" in ajet("swarm", "status").out
    nothing.mkdir()
    again = ajet("swarm", "start")
    assert (again.code, "trying again" in again.err) == (2, True)
    assert "no config.json" in again.err.splitlines()[-1]
    job.write_text(json.dumps(FAKE))
    mended = ajet("swarm", "start", "--job", str(job))
    assert (mended.code, "ROLLING" in mended.out) == (0, True), mended.err


def test_a_model_s_folder_takes_the_place_of_the_job_s_model_with_a_word_on_the_step_size(
    ajet: Ajet, server: SwarmProcess, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_folder(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    ended = ajet("swarm", "start", "--job", "job.json", "--model", "m")
    assert ended.code == 0, ended.err
    assert "want about 2e-5" in ended.line
    with SwarmClient(server.url, server.admin_token) as client:
        held = client.job()
    assert held is not None
    assert held.steps == FAKE["steps"]
    assert held.model == PathModel(path=str(tmp_path / "m")), "a tiny model's warm start is its own"


def test_a_model_s_folder_keeps_what_else_the_job_says_of_its_model(tmp_path: Path) -> None:
    said = Job(model=PathModel(path="/gone", warm_start_steps=7, sha256="ab" * 32))
    whole_folder(tmp_path / "m")
    found = swarm._with_model(said, str(tmp_path / "m"))
    assert found.model == PathModel(path=str(tmp_path / "m"), warm_start_steps=7)


@pytest.mark.usefixtures("server")
def test_another_job_is_refused_with_what_differs_and_the_command_that_helps(ajet: Ajet, job: Path) -> None:
    assert ajet("swarm", "start", "--job", str(job)).code == 0
    job.write_text(json.dumps({**FAKE, "steps": 5}))
    ajet("swarm", "start", "--job", str(job)).refused("steps 5, not 3", "`ajet swarm stop`")


def test_a_server_without_a_job_under_way_says_how_to_get_one_and_shows_no_step(
    ajet: Ajet, server: SwarmProcess, job: Path
) -> None:
    assert "--job FILE" in ajet("swarm", "start").out
    assert ajet("swarm", "start", "--job", str(job)).code == 0
    assert "0 of 3" in ajet("swarm", "status").out
    with SwarmClient(server.url, server.admin_token) as client:
        client.stop()
    shown = ajet("swarm", "status").out
    assert ("- of 3" in shown, "policy version" in shown) == (True, False)


@pytest.mark.parametrize(
    ("state", "words"), [("OFFLINE", "ajet swarm start"), ("BOOTING", "loading"), ("FAILED", "no room left")]
)
def test_an_agents_run_says_why_nothing_moves(state: str, words: str) -> None:
    reason = "no room left" if state == "FAILED" else None
    said = job_status(Status(state=ServerState(state), reason=reason, steps=3))
    assert (f"the server is {state}" in said, words in said, "step" in said) == (True, True, False)


def test_a_server_that_stands_still_is_told_apart_from_one_that_is_not_there(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm, "PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        mute = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = SwarmProcess(mute, os.getpid(), "a" * 40, home / "swarm", "c" * 40)
        monkeypatch.setattr("research.servers.running.find_swarm", lambda _: found)
        ajet("swarm", "status").refused("within 0.5 s", f"process {os.getpid()}", "server.log", "`ajet swarm stop`")


def test_what_is_explained_of_a_job_is_enough_to_write_its_file(ajet: Ajet, tmp_path: Path) -> None:
    said = ajet("job", "explain").out.replace("\n", " ")
    example = said[said.index("{", said.index("A job file is")) : said.index(". What it leaves out")]
    assert Job.model_validate_json(example).steps == 80
    version = said[said.index('"schema_version": ') :].split()[1]
    assert Job.model_validate({"schema_version": int(version)}) == Job()
