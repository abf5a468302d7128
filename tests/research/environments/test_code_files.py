"""All of an environment's code is copied, and its records are kept from those who train on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from research.environments import code_files
from research.environments.code_files import CodeFiles, is_record, read_code
from research.environments.reference import read_reference
from research.errors import BadEnvironment
from swarm.environments.custom import files_hash


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand beside a folder with an environment."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shop"
    write(folder, {"environment.py": "a", "words.txt": "b", "tasks.jsonl": "c", "data/prices.csv": "d"})
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def code(text: str = "shop", reward: str | None = None) -> CodeFiles:
    return read_code(read_reference(text, reward))


@pytest.mark.parametrize(
    ("path", "record"),
    [
        ("tasks.json", True), ("tasks.jsonl", True), ("tasks-hidden.jsonl", True), ("data/tasks.json", True),
        ("tasks/train.csv", True), ("hidden/x.txt", True), ("a/hidden/x.py", True), ("a/tasks/b/c.txt", True),
        ("environment.py", False), ("tasks.py", False), ("tasks/__init__.py", False), ("words.json", False),
        ("hidden", False), ("my_tasks.json", False),
    ],
)  # fmt: skip
def test_records_are_known_by_their_place(path: str, record: bool) -> None:
    assert is_record(path) == record


def test_clients_get_all_but_the_records() -> None:
    assert sorted(code().files) == ["data/prices.csv", "environment.py", "tasks.jsonl", "words.txt"]
    assert sorted(code().shared) == ["data/prices.csv", "environment.py", "words.txt"]


def test_the_tasks_that_a_function_judges_are_kept_from_clients_whatever_they_are_called(tmp_path: Path) -> None:
    write(tmp_path / "q", {"judge.py": "a", "questions.jsonl": '{"prompt": "?"}', "copy.txt": '{"prompt": "?"}'})
    assert sorted(code("q/questions.jsonl", "q/judge.py").files) == ["judge.py"]


def test_what_is_hidden_or_cached_stays_where_it_is(shop: Path) -> None:
    before = files_hash(code().files)
    write(shop, {".git/config": "x", ".env": "KEY=1", "__pycache__/environment.pyc": "x", "data/.cache/x": "x"})
    assert files_hash(code().files) == before


def test_the_hash_is_of_every_byte_that_is_copied(shop: Path) -> None:
    before = files_hash(code().files)
    (shop / "words.txt").write_bytes(b"b\r\n")
    assert files_hash(code().files) != before


def test_requirements_are_read(shop: Path) -> None:
    write(shop, {"requirements.txt": "numpy\n"})
    assert code().requirements == "numpy\n"


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo])
def test_what_is_no_file_is_refused_and_holds_nobody_up(shop: Path, make: Callable[[Path], None]) -> None:
    make(shop / "odd")
    with pytest.raises(BadEnvironment, match=r"shop, .*odd"):
        code()


@pytest.mark.parametrize(("limit", "value"), [("MOST_BYTES", 3), ("MOST_FILES", 3)])
def test_a_folder_that_is_too_large_is_refused(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_files, limit, value)
    with pytest.raises(BadEnvironment, match=rf"at most {value} "):
        code()


def test_a_module_here_is_copied_with_its_package(tmp_path: Path) -> None:
    write(tmp_path, {"worlds/__init__.py": "", "worlds/market.py": "x", "alone.py": "y", "other.py": "z"})
    assert sorted(code("worlds.market:Market").files) == ["worlds/__init__.py", "worlds/market.py"]
    assert code("alone:Market").files == {"alone.py": b"y"}


@pytest.mark.slow
def test_an_installed_package_is_copied_without_being_imported_and_names_its_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    write(site, {
        "offered_worlds/__init__.py": "raise RuntimeError('imported')",
        "offering-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n"
        "Requires-Dist: numpy>=1\nRequires-Dist: ajet\nRequires-Dist: pytest; extra == 'dev'\n",
        "offering-1.0.dist-info/top_level.txt": "offered_worlds\n",
    })  # fmt: skip
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    found = code("offered_worlds:World")
    assert list(found.files) == ["offered_worlds/__init__.py"]
    assert found.requirements == "numpy>=1\n"


@pytest.mark.parametrize("text", ["no_such_module_here:X", "sys:X", "os:X"])
def test_a_module_without_files_is_refused(text: str) -> None:
    with pytest.raises(BadEnvironment, match=f"{text[:-2]} of {text}"):
        code(text)


def test_an_adapter_brings_no_code_but_names_its_package() -> None:
    found = code("textarena:Wordle-v0")
    assert (dict(found.files), found.requirements.partition("==")[0]) == ({}, "textarena")
