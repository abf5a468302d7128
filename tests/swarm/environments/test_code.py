"""Code from a file is loaded, or refused in one line; its hash changes with it, and not with what an agent writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.environments import user_code as module
from swarm.environments.user_code import call, code_files, code_hash, load
from swarm.errors import InvalidRequest


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refusal(place: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        load(place, "agent", takes="episode")
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_function_is_found_by_its_name_in_a_file_that_finds_what_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "WORTH = 3\n", "beside.py")
    place = written(
        tmp_path, "from beside import WORTH\ndef agent(e):\n    return 1\ndef other(e):\n    return WORTH\n"
    )
    assert load(place, "agent", takes="episode")(None) == 1
    assert load(place + ":other", "agent", takes="episode")(None) == 3


def test_a_file_named_like_a_known_module_does_not_take_its_place(tmp_path: Path) -> None:
    place = written(tmp_path, "def agent(episode):\n    return 4\n", "json.py")
    assert load(place, "agent", takes="episode")(None) == 4
    import json

    assert json.loads("4") == 4


@pytest.mark.parametrize(("text", "expected"), [
    ("def agent(episode:\n    return 1\n", ("line 1", "never closed")),
    ("import no_such_package_here\n", ("'no_such_package_here'", "--requirements")),
    ("from no_such_package_here.sub import x\n", ("'no_such_package_here'", "--requirements")),
    ("x = 1\ny = x / 0\n", ("ZeroDivisionError", "mine.py, line 2")),
    ("import sys\nsys.exit(3)\n", ("SystemExit: 3", "line 2")),
    ("def play(episode):\n    return 1\n", ("`agent`", "found play", "mine.py:NAME")),
    ("agent = 3\n", ("`agent`", "found none")),
    ("def agent():\n    return 1\n", ("expected agent(episode)", "found agent()")),
    ("def agent(episode, tools):\n    return 1\n", ("found agent(episode, tools)",)),
    ("def agent(*, episode):\n    return 1\n", ("found agent(*, episode)",)),
])  # fmt: skip
def test_what_cannot_be_played_is_refused_with_its_place(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    message = refusal(written(tmp_path, text))
    for words in expected:
        assert words in message


@pytest.mark.parametrize("place", ["missing.py", "agent.txt", "", ".", "mine.py:not a name"])
def test_what_is_no_file_of_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "def agent(episode):\n    return 1\n")
    assert repr(place) in refusal(place)


@pytest.mark.parametrize("error", [SystemExit(0), StopIteration(1), KeyboardInterrupt()])
async def test_what_would_end_the_process_ends_its_call_only(error: BaseException) -> None:
    def bad() -> None:
        raise error

    async def later() -> None:
        sys.exit(5)

    for function, named in ((bad, type(error).__name__), (later, "SystemExit")):
        with pytest.raises(RuntimeError, match=named):
            await call(function)


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
    before = code_hash(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("something else\n")
    assert code_hash(folder) == before


def test_it_is_of_contents_and_names_not_time_or_place(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
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
