"""What a container or a process of an agent is given, and when one that died is started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchfiles import Change

from research.agents import supervisor
from research.agents.launch import container_spec, run_in_process
from research.agents.request import AgentFiles, AgentRequest, Confinement
from research.agents.run import write_output
from research.agents.supervisor import (
    FIRST_WAIT_S,
    MOST_IN_VAIN,
    MOST_WAIT_S,
    RestartPolicy,
    restart_reason,
)
from research.installation.servers import ServerConnection
from sandboxes import Exit
from sandboxes.docker.archive import check
from sandboxes.gateway.egress import Destination
from swarm.environments import Task, registry
from swarm.environments.user_code import code_hash
from tests.swarm.environments.test_custom import brought_in


def test_a_container_gets_its_files_and_tasks_and_a_way_out_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def agent(episode):\n    return 1.0\n")
    agent = AgentFiles.locate(str(tmp_path))
    request = AgentRequest("play", agent, None, (Task("q", {"n": 1}),), time_limit_s=60.0)
    folder = tmp_path / "run"
    closed = container_spec(request, Confinement(), folder, "sha256:x", {"MODE": "fast"})
    assert closed.environment == {"MODE": "fast", "AJET_TOKEN": "sandbox"}
    assert (closed.ports, closed.time_limit_s, closed.trusted) == ({8000: "server.sock"}, 60.0, False)
    assert closed.archive is not None
    assert sorted(check(closed.archive)) == ["agent/agent.py", "tasks.json"]
    opened = container_spec(
        request, Confinement(allow=(Destination.parse("example.com:443"),), gpus=("GPU-1",)), folder, "sha256:x", {}
    )
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
    request = AgentRequest("play", None, known.name, tuple(known.tasks("train")))
    start = mock.AsyncMock(wraps=asyncio.create_subprocess_exec)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    async with run_in_process(request, ServerConnection("http://127.0.0.1:9", "token"), folder, {}):
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
def test_pauses_are_bounded_and_only_clients_in_vain_are_counted(lives: list[tuple[float, int]]) -> None:
    policy, in_vain = RestartPolicy(), 0
    for lived_s, finished in lives:
        pause, in_vain = policy.pause(lived_s, finished), 0 if finished else in_vain + 1
        if in_vain >= MOST_IN_VAIN:
            assert pause is None
            return
        assert pause is not None
        assert FIRST_WAIT_S <= pause <= MOST_WAIT_S


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
            raise OSError("OS file watch limit reached.")
        yield set()

    monkeypatch.setattr(supervisor, "awatch", limited)
    (tmp_path / "agent.py").write_text("def agent(episode): ...\n")
    assert await supervisor.wait_for_save(tmp_path, "old") == code_hash(tmp_path)
    assert asked == [None, True]
