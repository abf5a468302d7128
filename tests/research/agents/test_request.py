"""What is asked of `ajet client run` becomes a command and files, or one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.agents import request as agent_files
from research.agents.request import (
    AgentFiles,
    AgentRequest,
    check_evaluated,
    parse_memory,
    parse_stream,
    parse_variables,
)
from research.errors import BadInput
from research.installation.home import Home
from research.installation.servers import connect_server
from swarm.environments import Task
from swarm.job import Job
from swarm.server import Keys


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("2g", 2 << 30), ("1.5G", 3 << 29), ("65536k", 64 << 20), ("1GiB", 1 << 30)]
)
def test_memory_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_memory(text) == size


def variables(text: str) -> None:
    parse_variables([text], contained=False)


@pytest.mark.parametrize(
    ("read", "text", "named"),
    [
        *(
            (parse_memory, text, "64m")
            for text in ("", "1", "63m", "-1g", "1t", "much", "1e9g", "16385g", "9" * 400 + "g")
        ),
        *((parse_stream, text, "--stream") for text in ("", "a\nb", "x" * 129)),
        *((variables, text, "NAME=VALUE") for text in ("A", "=x", "1A=x", "A B=x", "")),
        *((variables, f"{n}=x", n) for n in ("AJET_TOKEN", "PYTHONPATH", "PYTHONHOME", "https_proxy", "HOME")),
    ],
)
def test_an_option_that_means_nothing_is_refused(read: Callable[[str], object], text: str, named: str) -> None:
    with pytest.raises(BadInput, match=named):
        read(text)


def test_names_of_streams_and_variables_are_taken_with_everything_after_the_first_equals_sign() -> None:
    assert parse_stream("math") == "math"
    assert parse_variables(["A=1", "B=x=y", "C="], contained=True) == {"A": "1", "B": "x=y", "C": ""}


@given(st.sampled_from(["API_KEY", "token", "DB_PASSWORD", "MY_SECRET", "AWS_CREDENTIALS"]), st.text(min_size=8))
def test_a_secret_stays_out_of_a_container_and_out_of_the_message(name: str, value: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_variables([f"{name}={value}"], contained=True)
    assert f"={value}" not in str(refused.value)
    assert "--allow 127.0.0.2:PORT" in str(refused.value)
    assert parse_variables([f"{name}={value}"], contained=False) == {name: value}


def test_an_order_names_what_is_played_and_leaves_out_what_is_not_asked_for() -> None:
    places = {"server": "http://s", "code": "/a", "tasks": "/t.json", "out": "/r.json", "environments": "/e"}
    words = AgentRequest("play", None, "arith", (Task("t"),), stream="--math", seed=-1).arguments(**places)
    assert words[:3] == ("-m", "swarm.environments", "play")
    assert {"--stream=--math", "--seed=-1"} <= set(words), "a value that looks like an option stays a value"
    assert not [word for word in words if word.startswith(("--agent", "--split", "--episodes", "--during"))]
    waited = AgentRequest("evaluate", None, "arith", (Task("t"),), split="search", episodes=7, during=True)
    words = waited.arguments(**places)
    assert words[-1] == "--during"
    assert not [word for word in words if word.startswith("--episodes")], "as many as training waits for"


def test_a_job_that_waits_for_no_evaluation_has_nobody_evaluate_whenever_it_does() -> None:
    with pytest.raises(BadInput, match="no eval_every"):
        check_evaluated(Job())
    check_evaluated(Job(eval_every=4))
    check_evaluated(Job(evaluate_after=(4,)))


def test_no_admin_s_key_stands_behind_code_that_plays(tmp_path: Path) -> None:
    chosen, home = "an operator's own words, forty characters", Home(tmp_path, "")
    keys = Keys(chosen)
    for key in (keys.role_key("admin"), keys.role_key("viewer"), chosen):
        with pytest.raises(BadInput, match="a client's token"):
            connect_server("http://far:1", role="client", environ={"AJET_TOKEN": key}, home=home)
    client = keys.role_key("client")
    found = connect_server("http://far:1", role="client", environ={"AJET_TOKEN": client}, home=home)
    assert found.token == client


CODE = "def agent(episode):\n    return 1.0\n"


def write_agent(folder: Path, **files: str) -> Path:
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
    write_agent(tmp_path, agent_py=CODE, other_py=CODE)
    assert AgentFiles.locate(f"{tmp_path}{typed}").locator_in("/input/agent") == f"/input/agent/{place}"


def test_the_whole_folder_is_packed_but_what_begins_with_a_dot(tmp_path: Path) -> None:
    write_agent(tmp_path, agent_py=CODE, tools__web_py="x = 1", data_json="{}")
    for name in (".env", ".git/config", "__pycache__/agent.pyc", "tools/.secret"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
    packed = AgentFiles.locate(str(tmp_path)).pack()
    assert packed == {"agent.py": CODE.encode(), "data.json": b"{}", "tools/web.py": b"x = 1"}


def test_a_folder_with_a_link_or_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_agent(tmp_path, agent_py=CODE, b_py=CODE, c_py=CODE)
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
    write_agent(tmp_path, **({"agent_txt": CODE} if text is None else {"agent_py": text}))
    with pytest.raises(BadInput, match=named):
        AgentFiles.locate(typed)
