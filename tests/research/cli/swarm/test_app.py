"""`ajet swarm start` and `status` where the server failed, stands still, or trains another job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from research.agents.run import job_status
from research.cli.swarm import app as swarm
from research.installation.server_process import SwarmProcess, find_swarm, start_swarm, stop_swarm
from swarm.client import SwarmClient
from swarm.job import Job, PathModel
from swarm.wire import ServerState, Status
from tests.research.cli.conftest import Ajet
from tests.swarm.models.folders import whole_folder

FAKE = {"backend": "fake", "steps": 3, "episodes_per_step": 4, "group_size": 2, "environment": "arith"}


@pytest.fixture
def server(home: Path) -> Iterator[SwarmProcess]:
    """A server of this installation that has no job."""
    found = start_swarm(home / "swarm", models=home / "models", port=0)
    yield found
    stop_swarm(found)


@pytest.mark.usefixtures("server")
def test_a_server_that_failed_takes_the_next_job_or_tries_the_same_again(
    ajet: Ajet, home: Path, tmp_path: Path
) -> None:
    job, nothing = tmp_path / "job.json", tmp_path / "nothing"
    job.write_text(json.dumps({"model": {"kind": "path", "path": str(nothing)}}))
    ended = ajet("swarm", "start", "--job", str(job))
    assert ended.code == 2
    assert "found no such folder" in ended.line
    assert str(nothing) in ended.line
    assert "FAILED" in ajet("swarm", "status").out
    nothing.mkdir()
    again = ajet("swarm", "start")
    assert again.code == 2
    assert "trying again" in again.err
    assert "no config.json" in again.err.splitlines()[-1]
    job.write_text(json.dumps(FAKE))
    mended = ajet("swarm", "start", "--job", str(job))
    assert (mended.code, "ROLLING" in mended.out) == (0, True), mended.err


def test_a_model_s_folder_takes_the_place_of_the_job_s_model_with_a_word_on_the_step_size(
    ajet: Ajet, server: SwarmProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_folder(tmp_path / "m")
    (tmp_path / "job.json").write_text(json.dumps(FAKE))
    monkeypatch.chdir(tmp_path)
    ended = ajet("swarm", "start", "--job", "job.json", "--model", "m")
    assert ended.code == 0, ended.err
    assert "want about 2e-5" in ended.line
    with SwarmClient(server.url, server.admin_token) as client:
        job = client.job()
    assert job is not None
    assert isinstance(job.model, PathModel)
    assert job.model.path == str(tmp_path / "m")
    assert (job.steps, job.model.warm_start_steps) == (FAKE["steps"], 0), "a tiny model's warm start is its own"


def test_a_model_s_folder_keeps_what_else_the_job_says_of_its_model(tmp_path: Path) -> None:
    said = Job(model=PathModel(path="/gone", warm_start_steps=7, sha256="ab" * 32))
    whole_folder(tmp_path / "m")
    found = swarm._with_model(said, str(tmp_path / "m"))
    assert found.model == PathModel(path=str(tmp_path / "m"), warm_start_steps=7)


@pytest.mark.usefixtures("server")
def test_another_job_is_refused_with_what_differs_and_the_command_that_helps(ajet: Ajet, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps(FAKE))
    assert ajet("swarm", "start", "--job", str(job)).code == 0
    job.write_text(json.dumps({**FAKE, "steps": 5}))
    ended = ajet("swarm", "start", "--job", str(job))
    assert ended.code == 2
    for words in ("steps 5, not 3", "`ajet swarm stop`"):
        assert words in ended.line


def test_a_server_without_a_job_under_way_says_how_to_get_one_and_shows_no_step(
    ajet: Ajet, server: SwarmProcess, tmp_path: Path
) -> None:
    assert "--job FILE" in ajet("swarm", "start").out
    job = tmp_path / "job.json"
    job.write_text(json.dumps(FAKE))
    assert ajet("swarm", "start", "--job", str(job)).code == 0
    assert "0 of 3" in ajet("swarm", "status").out
    with SwarmClient(server.url, server.admin_token) as client:
        client.stop()
    shown = ajet("swarm", "status").out
    assert "- of 3" in shown
    assert "policy version" not in shown


@pytest.mark.parametrize(
    ("state", "words"), [("OFFLINE", "ajet swarm start"), ("BOOTING", "loading"), ("FAILED", "no room left")]
)
def test_an_agents_run_says_why_nothing_moves(state: str, words: str) -> None:
    reason = "no room left" if state == "FAILED" else None
    said = job_status(Status(state=ServerState(state), reason=reason, steps=3))
    assert f"the server is {state}" in said
    assert words in said
    assert "step" not in said


def test_a_server_that_stands_still_is_told_apart_from_one_that_is_not_there(
    ajet: Ajet, server: SwarmProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm, "PATIENCE_S", 0.5)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        ended = ajet("swarm", "status")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert ended.code == 2
    for words in ("did not answer within 0.5 s", f"process {server.pid}", "server.log", "`ajet swarm stop`"):
        assert words in ended.line
    assert ajet("swarm", "status").code == 0
    assert find_swarm(server.folder) is not None


def test_a_misspelt_field_of_a_job_is_answered_with_the_one_that_was_meant(ajet: Ajet, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text('{"grupsize": 4}')
    ended = ajet("swarm", "start", "--job", str(job))
    assert ended.code == 2
    assert "grupsize: there is no such field; did you mean group_size?" in ended.line


def test_what_is_explained_of_a_job_is_enough_to_write_its_file(ajet: Ajet, tmp_path: Path) -> None:
    said = ajet("job", "explain").out.replace("\n", " ")
    example = said[said.index("{", said.index("A job file is")) : said.index(". What it leaves out")]
    assert Job.model_validate_json(example).steps == 80
    version = said[said.index('"schema_version": ') :].split()[1]
    assert Job.model_validate({"schema_version": int(version)}) == Job()
