"""What an environment needs is installed apart, once for each text, or refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from research.environments.install import how_to_install_apart, python_path
from research.errors import BadEnvironment, HomeError
from research.installation.home import Home
from swarm.environments.custom import CodeSource
from tests.research.environments.written import wheel_in
from tests.research.factories import make_home

FOLDER = CodeSource(kind="folder", place="environment.py")
NAME = "small_need_of_a_test"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, which is all that pip looks at."""
    folder = wheel_in(tmp_path / "wheels", NAME)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
def test_what_a_text_names_is_installed_once_and_apart(home: Home, wheels: Path) -> None:
    notes: list[str] = []
    (folder,) = python_path(home, FOLDER, f"{NAME}\n", notes.append)
    assert (folder / f"{NAME}.py").read_text() == "VALUE = 7\n"
    assert NAME not in subprocess.run([sys.executable, "-m", "pip", "list"], capture_output=True, text=True).stdout
    (wheels / f"{NAME}-1.0-py3-none-any.whl").unlink()
    assert python_path(home, FOLDER, f"{NAME}\n", notes.append) == (folder,)
    assert len(notes) == 1, "the second time nothing is installed"
    assert [path.name for path in home.packages.iterdir()] == [folder.name]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["surely-not-there==3\n", "not a requirement\n", "-r ../no-such-file.txt\n"])
def test_what_pip_cannot_bring_is_told_in_a_line_and_leaves_nothing(text: str, home: Home, wheels: Path) -> None:
    with pytest.raises(BadEnvironment, match=r"requirements\.txt names; .*: \S") as refused:
        python_path(home, FOLDER, text, lambda _: None)
    assert "\n" not in str(refused.value)
    assert list(home.packages.iterdir()) == []


def test_a_python_without_pip_is_told_as_that(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '/usr/bin/python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(BadEnvironment, match=r"/usr/bin/python: No module .*pip$"):
        python_path(home, FOLDER, "x\n", lambda _: None)


def test_a_folder_that_cannot_be_made_is_the_installations_fault(home: Home) -> None:
    home.packages.touch()
    with pytest.raises(HomeError, match="can be written"):
        python_path(home, FOLDER, "x\n", lambda _: None)


@pytest.mark.parametrize("text", ["", " \n"])
def test_nothing_is_installed_where_nothing_is_named(text: str, home: Home) -> None:
    assert python_path(home, FOLDER, text, lambda _: None) == ()
    assert python_path(home, CodeSource(kind="module", place="x"), "numpy\n", lambda _: None) == ()
    assert not home.packages.exists()


def test_the_package_of_an_adapter_is_found_where_its_line_puts_it(home: Home) -> None:
    address = "textarena:Wordle-v0"
    source = CodeSource(kind="adapter", place=address)
    assert python_path(home, source, "", lambda _: None) == ()
    (home.packages / "textarena").mkdir(parents=True)
    assert python_path(home, source, "", lambda _: None) == (home.packages / "textarena",)
    assert f"pip install --target {home.packages / 'textarena'} 'textarena==" in how_to_install_apart(home, address)
