"""A server directory's own files: made once, kept, readable by their owner alone, whole or absent."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from swarm.errors import ServerFailed
from swarm.server.shared.directory import ServerDirectory
from swarm.server.shared.keys import Claims, Keys
from tests.swarm.server.support import job


def test_the_secret_and_the_installation_are_kept(tmp_path: Path) -> None:
    first, again = ServerDirectory(tmp_path / "deep" / "er"), ServerDirectory(tmp_path / "deep" / "er")
    assert (first.secret(), first.installation()) == (again.secret(), again.installation())
    other = ServerDirectory(tmp_path / "other")
    assert other.secret() != first.secret()
    assert other.installation() != first.installation()
    assert first.secret().hex() != first.installation()


def test_all_files_are_the_owners_alone(tmp_path: Path) -> None:
    kept = ServerDirectory(tmp_path)
    kept.secret()
    kept.installation()
    kept.engine_on(job())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"secret": 0o600, "installation": 0o600, "engine.json": 0o600}


def test_a_key_of_an_earlier_life_is_read(tmp_path: Path) -> None:
    key = Keys(secret=ServerDirectory(tmp_path).secret()).lease("e", 3)
    assert Keys(secret=ServerDirectory(tmp_path).secret()).read(key) == Claims("lease", episode="e", epoch=3)


def test_the_interrupted_job_is_the_one_whose_engine_was_on(tmp_path: Path) -> None:
    kept = ServerDirectory(tmp_path)
    assert kept.interrupted() is None
    wanted = job(streams={"math": 1.5}, tracking={"run_id": "r"})
    kept.engine_on(wanted)
    assert ServerDirectory(tmp_path).interrupted() == wanted
    kept.engine_off()
    kept.engine_off()
    assert kept.interrupted() is None


def test_damaged_files_are_said_in_one_line(tmp_path: Path) -> None:
    kept = ServerDirectory(tmp_path)
    (tmp_path / "secret").write_text("not hex")
    with pytest.raises(ServerFailed, match="secret is damaged: expected 64 hex digits"):
        kept.secret()
    (tmp_path / "engine.json").write_text('{"steps": 3, "of_a_newer_version": 1}')
    with pytest.raises(ServerFailed, match="delete it to start without that job"):
        kept.interrupted()
