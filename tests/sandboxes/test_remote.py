"""Engines on other machines: a second one on this machine, over TLS and over ssh, plays episodes of a server."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from sandboxes import DockerSandbox, Exit, SandboxSpec
from sandboxes.docker.engine import ContainerEngine, NoEngine, connect
from sandboxes.docker.ssh import SESSIONS, SshSocket
from sandboxes.gateway.gateway import PLACEHOLDER, PORTS, SERVER_PORT, Gateway, Upstream
from sandboxes.images import Image
from tests.sandboxes.conftest import no_engine
from tests.sandboxes.far_engine import FarEngine, copied, far_engine, far_ssh, missing
from tests.swarm.server.support import serving

T = TypeVar("T")
EPISODES = 4


@dataclass(frozen=True, slots=True)
class Far:
    """The second engine with the client image in it."""

    engine: FarEngine
    image: Image


@pytest.fixture(scope="module")
def far(engine: ContainerEngine, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    if (why := missing("dockerd", "openssl")) is not None:
        no_engine(f"no second engine can be started: {why}")
    with far_engine(tmp_path_factory.mktemp("far")) as started:
        yield Far(started, copied(image, engine, connect(started.environ)))


@pytest.fixture(scope="module")
def ways(far: Far, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Mapping[str, str]]]:
    """Return what leads to the second engine: `tls`, or `ssh` where an ssh server can be started."""
    with ExitStack() as stack:

        def way(name: str) -> Mapping[str, str]:
            if name == "tls":
                return far.engine.environ
            if (why := missing("sshd", "ssh", "docker")) is not None:
                no_engine(f"no ssh server can be started: {why}")
            return stack.enter_context(far_ssh(tmp_path_factory.mktemp("ways") / "ssh", far.engine.socket))

        yield way


async def in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


@pytest.mark.parametrize("way", ["tls", "ssh"])
async def test_a_container_of_another_machine_plays_episodes_and_its_log_and_results_come_back(
    far: Far, ways: Callable[[str], Mapping[str, str]], way: str, tmp_path: Path
) -> None:
    engine = await in_thread(lambda: connect(ways(way)))
    assert (engine.local, engine.lacks) == (False, ())
    assert engine.host.startswith({"tls": "tcp://127.0.0.1:", "ssh": "ssh://127.0.0.1:"}[way])
    sandbox, exchange = DockerSandbox(tmp_path / "sandboxes", engine), tmp_path / "exchange"
    spec = SandboxSpec(
        name="far",
        command=(
            "python3", "-m", "swarm.environments", "evaluate", "--environment", "guess", "--server",
            f"http://127.0.0.1:{SERVER_PORT}", "--split", "search", "--episodes", str(EPISODES), "--out",
            "/workspace/results/evaluation.json",
        ),
        directory=tmp_path,
        environment={"AJET_TOKEN": PLACEHOLDER},
        time_limit_s=90.0,
        image=far.image.id,
        results={"evaluation.json": 1 << 20},
        exchange=exchange,
        ports={SERVER_PORT: PORTS[SERVER_PORT]},
    )  # fmt: skip
    try:
        async with serving(tmp_path / "server") as served:
            upstream = Upstream(served.url, served.admin, lambda _: None)
            async with Gateway(exchange, upstream=upstream, log=tmp_path / "egress.jsonl") as gateway:
                handle = await in_thread(lambda: sandbox.run(spec))
                ended = await in_thread(lambda: handle.wait(100))
        assert ended == Exit("finished", 0), handle.logs()
        assert gateway.counts["forwarded"] >= 3 * EPISODES
        evaluation = json.loads(handle.results()["evaluation.json"].path.read_text())
        assert len(evaluation["episodes"]) == EPISODES
    finally:
        await in_thread(lambda: sandbox.reap({}))
    assert engine.client.containers.list(all=True) == []


def test_more_connections_are_carried_than_an_ssh_server_takes_over_one(
    ways: Callable[[str], Mapping[str, str]],
) -> None:
    environ = ways("ssh")
    door = SshSocket(urlsplit(environ["DOCKER_HOST"]), environ)
    with ExitStack() as stack:
        stack.callback(door.close)
        asked = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(SESSIONS + 4)]
        for sock in asked:
            sock.settimeout(60)
            sock.connect(str(door.socket))
            sock.sendall(b"GET /_ping HTTP/1.1\r\nhost: engine\r\n\r\n")
        assert {sock.recv(15) for sock in asked} == {b"HTTP/1.1 200 OK"}, door.complaint()


def test_an_engine_of_another_authority_is_not_spoken_to(far: Far, tmp_path: Path) -> None:
    """Whoever answers at the address must show a certificate of the authority that was named."""
    other = tmp_path / "other"
    shutil.copytree(far.engine.certificates, other)
    (other / "ca.pem").unlink()
    shutil.copy(other / "server.pem", other / "ca.pem")
    with pytest.raises(NoEngine, match="CERTIFICATE_VERIFY_FAILED"):
        connect({**far.engine.environ, "DOCKER_CERT_PATH": str(other)})
