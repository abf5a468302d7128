"""What a container or a process of an agent is given is what was asked for."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from research.agents.files import AgentFiles
from research.agents.launch import container_spec, in_process
from research.agents.request import AgentRequest, Confinement, PlayedServer
from sandboxes.docker.archive import check
from sandboxes.gateway.destinations import Destination
from swarm.environments import Task, registry
from tests.swarm.environments.test_brought import brought_in


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


async def test_a_process_is_handed_a_brought_environment_without_its_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
    known = brought_in(tmp_path / "installed")
    registry.admit(known)
    folder = tmp_path / "run"
    folder.mkdir()
    request = AgentRequest("play", None, known.name, tuple(known.tasks("train")))
    async with in_process(request, PlayedServer("http://127.0.0.1:9", "token"), folder, {}):
        held = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
        commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert any(f"--environments={folder / 'environments'}" in command for command in commands)
    own = f"environments/{known.name}"
    assert set(held) == {"tasks.json", f"{own}/manifest.json", f"{own}/code/environment.py"}
    assert not [path for path, content in held.items() if b"hidden-0" in content]
