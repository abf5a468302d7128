"""The hash of an agent's code: it changes with the code, and with nothing that an agent writes while it plays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.environments.playing import code_hash as module
from swarm.environments.playing.code_hash import code_files, code_hash, code_times


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text("def agent(episode): ...\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "prompt.md").write_text("Be brief.\n")
    return tmp_path


@pytest.mark.parametrize("name", ["agent.py", "parts/prompt.md", "new.py", "parts/new.yaml"])
def test_what_is_code_changes_it(folder: Path, name: str) -> None:
    before = code_hash(folder)
    (folder / name).write_text("something else\n")
    assert code_hash(folder) != before


@pytest.mark.parametrize("name", ["log.txt", "seen.json", ".hidden.py", "__pycache__/agent.py", ".git/hook.py"])
def test_what_an_agent_writes_does_not(folder: Path, name: str) -> None:
    before, times = code_hash(folder), code_times(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("something else\n")
    assert (code_hash(folder), code_times(folder)) == (before, times)


def test_it_is_of_contents_and_names_and_not_of_times_or_places(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("elsewhere")
    (copy / "parts").mkdir()
    for path in code_files(folder):
        (copy / path.relative_to(folder)).write_bytes(path.read_bytes())
        os.utime(copy / path.relative_to(folder), (1, 1))
    assert code_hash(copy) == code_hash(folder)
    (copy / "agent.py").rename(copy / "other.py")
    assert code_hash(copy) != code_hash(folder)


def test_of_a_folder_with_too_many_files_its_own_alone_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 1)
    assert code_files(folder) == [folder / "agent.py"]
