"""What a container of an agent is given is what was asked for."""

from __future__ import annotations

from pathlib import Path

from research.agents.files import AgentFiles
from research.agents.launch import container_spec
from research.agents.request import AgentRequest, Confinement
from sandboxes.docker.archive import check
from sandboxes.gateway.destinations import Destination
from swarm.environments import Task


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
