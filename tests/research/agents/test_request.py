"""What is asked of `ajet client run` becomes a command and files, or one line; and when a client is started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from watchfiles import Change

from research.agents import request as agent_files
from research.agents import run as running
from research.agents.launch import AgentPlacement, container_spec, run_in_process
from research.agents.request import AgentFiles, AgentRequest, RunOptions, check_evaluated
from research.agents.run import (
    FIRST_WAIT_S,
    HEALTHY_S,
    MOST_IN_VAIN,
    MOST_WAIT_S,
    RestartPolicy,
    restart_reason,
    write_output,
)
from research.errors import BadInput
from research.installation.home import Home
from research.installation.servers import ServerConnection, connect_server
from sandboxes import Exit
from sandboxes.gateway.egress import Destination
from swarm.environments import Task, registry
from swarm.environments.user_code import code_hash
from swarm.job import Job
from swarm.server import Keys
from tests.swarm.environments.test_custom import brought_in


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("2g", 2 << 30), ("1.5G", 3 << 29), ("65536k", 64 << 20), ("1GiB", 1 << 30)]
)
def test_memory_is_read_as_people_write_it(text: str, size: int) -> None:
    assert RunOptions(memory=text).limits().memory_bytes == size


WRONG: dict[str, tuple[str, ...]] = {
    "memory": ("", "1", "63m", "-1g", "1t", "much", "1e9g", "16385g", "9" * 400 + "g"),
    "stream": ("", "a\nb", "x" * 129),
    "env": ("A", "=x", "1A=x", "A B=x", "", "AJET_TOKEN=x", "PYTHONPATH=x", "PYTHONHOME=x", "https_proxy=x", "HOME=x"),
}  # fmt: skip


@pytest.mark.parametrize(("option", "text"), [(option, text) for option, texts in WRONG.items() for text in texts])
def test_an_option_that_means_nothing_is_refused(option: str, text: str) -> None:
    asked = RunOptions(**{option: [text] if option == "env" else text})
    refuses = asked.check if option != "env" else partial(asked.variables, contained=False)
    with pytest.raises(BadInput, match=option):
        refuses()


@given(st.sampled_from(["API_KEY", "token", "DB_PASSWORD", "MY_SECRET", "AWS_CREDENTIALS"]), st.text(min_size=8))
def test_a_secret_stays_out_of_a_container_and_out_of_the_message(name: str, value: str) -> None:
    asked = RunOptions(env=[f"{name}={value}"])
    with pytest.raises(BadInput) as refused:
        asked.variables(contained=True)
    assert f"={value}" not in str(refused.value)
    assert "--allow 127.0.0.2:PORT" in str(refused.value)
    assert asked.variables(contained=False) == {name: value}


def test_an_order_names_what_is_played_and_leaves_out_what_is_not_asked_for() -> None:
    places = {"server": "http://s", "code": "/a", "tasks": "/t.json", "out": "/r.json", "environments": "/e"}
    words = AgentRequest(RunOptions(stream="--math", seed=-1), "arith", (Task("t"),)).arguments(**places)
    assert words[:3] == ("-m", "swarm.environments", "play")
    assert {"--stream=--math", "--seed=-1"} <= set(words)  # a value that looks like an option stays a value
    assert not [word for word in words if word.startswith(("--agent", "--split", "--episodes", "--during"))]
    waited = AgentRequest(RunOptions(evaluations=True), "arith", (Task("t"),), "search")
    words = waited.arguments(**places)
    assert words[-1] == "--during"
    assert not [word for word in words if word.startswith("--episodes")]  # as many as training waits for


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


def test_the_whole_folder_is_packed_but_what_begins_with_a_dot(tmp_path: Path) -> None:
    write_agent(tmp_path, agent_py=CODE, tools__web_py="x = 1", data_json="{}")
    for name in (".env", ".git/config", "__pycache__/agent.pyc", "tools/.secret"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
    packed = AgentFiles.locate(str(tmp_path)).read()
    assert packed == {"agent.py": CODE.encode(), "data.json": b"{}", "tools/web.py": b"x = 1"}


def test_a_folder_with_a_link_or_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_agent(tmp_path, agent_py=CODE, b_py=CODE, c_py=CODE)
    agent = AgentFiles.locate(str(tmp_path))
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(BadInput, match=r"symbolic link.*its own"):
        agent.read()
    (tmp_path / "link").unlink()
    monkeypatch.setattr(agent_files, "MOST_FILES", 2)
    with pytest.raises(BadInput, match=r"at most 2.*its own"):
        agent.read()


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


def test_a_container_gets_its_files_and_tasks_and_a_way_out_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def agent(episode):\n    return 1.0\n")
    agent = AgentFiles.locate(str(tmp_path))
    request = AgentRequest(RunOptions(), None, (Task("q", {"n": 1}),), agent=agent, time_limit_s=60.0)
    folder = tmp_path / "run"
    closed = container_spec(request, AgentPlacement(folder, {"MODE": "fast"}))
    assert closed.environment == {"MODE": "fast", "AJET_TOKEN": "sandbox"}
    assert (closed.ports, closed.time_limit_s, closed.trusted) == ({8000: "server.sock"}, 60.0, False)
    assert sorted(closed.files) == ["agent/agent.py", "tasks.json"]
    allow = (Destination.parse("example.com:443"),)
    opened = container_spec(request, AgentPlacement(folder, {}, allow=allow, gpus=("GPU-1",)))
    assert opened.ports == {8000: "server.sock", 3128: "egress.sock"}
    assert opened.environment["https_proxy"] == "http://127.0.0.1:3128"
    assert opened.environment["NO_PROXY"] == "127.0.0.1,localhost"
    assert opened.gpus == ("GPU-1",)


async def test_a_process_gets_an_environment_with_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
    known = brought_in(tmp_path / "installed")
    registry.admit(known)
    folder = tmp_path / "run"
    folder.mkdir()
    request = AgentRequest(RunOptions(), known.name, tuple(known.tasks("train")))
    start = mock.AsyncMock(wraps=asyncio.create_subprocess_exec)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    async with run_in_process(request, ServerConnection("http://127.0.0.1:9", "token"), AgentPlacement(folder, {})):
        held = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
    assert f"--environments={folder / 'environments'}" in start.mock_calls[0].args
    own = f"environments/{known.name}"
    assert set(held) == {"tasks.json", f"{own}/manifest.json", f"{own}/code/environment.py"}
    assert not [path for path, content in held.items() if b"hidden-0" in content]


@pytest.mark.parametrize(
    ("ended", "named"),
    [
        (Exit("error", -9), "signal 9"),
        (Exit("error", 3), "failed again"),
        (Exit("error", 1), "exit code 1"),
        (Exit("out_of_memory", None), "memory"),
        (Exit("lost", None), "container is gone"),
        (Exit("finished", 0), "before the job"),
        (Exit("error", 2), None),
        (Exit("timeout", None), None),
    ],
)
def test_only_bad_input_and_the_time_limit_are_not_started_again(ended: Exit, named: str | None) -> None:
    reason = restart_reason(ended)
    assert reason is None if named is None else named in (reason or "")


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 100)), max_size=60))
@example([(60.0, 0)] * MOST_IN_VAIN)
def test_pauses_grow_within_bounds_and_only_clients_in_vain_are_counted(lives: list[tuple[float, int]]) -> None:
    policy, in_vain, unhealthy = RestartPolicy(), 0, 0
    for lived_s, finished in lives:
        in_vain = 0 if finished else in_vain + 1
        unhealthy = 0 if finished and lived_s >= HEALTHY_S else unhealthy + 1
        usual = min(MOST_WAIT_S, FIRST_WAIT_S * 2 ** max(0, unhealthy - 1))
        assert policy.pause(lived_s, finished) == (usual if in_vain < MOST_IN_VAIN else None)


def test_what_a_container_says_steers_no_terminal_behind_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    write_output("\x1b[2Jgone\n", contained=True)
    write_output("\x1b[2Jmine\n")
    assert capsys.readouterr().err == "\\x1b[2Jgone\n\x1b[2Jmine\n"


async def test_a_save_is_found_where_the_system_watches_no_more_files_and_a_log_is_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool | None] = []

    async def limited(folder: Path, **options: Any) -> AsyncIterator[set[Any]]:
        asked.append(options["force_polling"])
        assert options["ignore_permission_denied"]
        names = ("agent.py", "prompt.md", "run.log")
        assert [options["watch_filter"](Change.modified, str(folder / name)) for name in names] == [True, True, False]
        if not options["force_polling"]:
            raise OSError("limit")
        yield set()

    monkeypatch.setattr(running, "awatch", limited)
    (tmp_path / "agent.py").write_text("def agent(episode): ...\n")
    assert await running.wait_for_save(tmp_path, "old") == code_hash(tmp_path)
    assert asked == [None, True]
