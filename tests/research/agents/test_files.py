"""An agent is found by what was typed; its folder is packed whole, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.agents import request as agent_files
from research.agents.request import AgentFiles
from research.errors import BadInput

CODE = "def agent(episode):\n    return 1.0\n"


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("", "agent.py:agent"),
        (":play", "agent.py:play"),
        ("/other.py", "other.py:agent"),
        ("/other.py:go", "other.py:go"),
    ],
)
def test_an_agent_is_a_file_or_a_folder_with_one(tmp_path: Path, typed: str, place: str) -> None:
    written(tmp_path, agent_py=CODE, other_py=CODE)
    assert AgentFiles.locate(f"{tmp_path}{typed}").locator_in("/input/agent") == f"/input/agent/{place}"


def test_the_whole_folder_is_packed_but_what_begins_with_a_dot(tmp_path: Path) -> None:
    written(tmp_path, agent_py=CODE, tools__web_py="x = 1", data_json="{}")
    for name in (".env", ".git/config", "__pycache__/agent.pyc", "tools/.secret"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
    packed = AgentFiles.locate(str(tmp_path)).pack()
    assert packed == {"agent.py": CODE.encode(), "data.json": b"{}", "tools/web.py": b"x = 1"}


def test_a_folder_with_a_link_or_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, agent_py=CODE, b_py=CODE, c_py=CODE)
    agent = AgentFiles.locate(str(tmp_path))
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(BadInput, match=r"symbolic link.*its own"):
        agent.pack()
    (tmp_path / "link").unlink()
    monkeypatch.setattr(agent_files, "MOST_FILES", 2)
    with pytest.raises(BadInput, match=r"at most 2.*its own"):
        agent.pack()


@pytest.mark.parametrize(
    ("typed", "text", "named"),
    [
        *((f".{name}", CODE, "after the colon") for name in (":9x", ":play it", ":a.b", ":play:go")),
        (".", "def agent(:\n", "line 1"),
        (".", "x = 1\n  y = 2\n", "line 2"),
        (".", "\0", r"agent\.py: source code"),
        (".", f"x = {'-' * 100_000}1\n", "mend it"),
        *((typed, None, r"FILE\.py") for typed in ("nothing", "nothing.py", "", "agent.txt")),
    ],
)
def test_what_is_not_there_or_no_python_or_names_no_function_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, text: str | None, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, **({"agent_txt": CODE} if text is None else {"agent_py": text}))
    with pytest.raises(BadInput, match=named):
        AgentFiles.locate(typed)
