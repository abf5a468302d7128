"""A Ray of two nodes, started by hand with a token as docs/cluster.md says, is joined by its address and goes on."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(600)
_UP_S = 120.0
"""Seconds that a node may take to come up, and to be let go."""


@contextmanager
def node(environment: dict[str, str], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a node; end all its processes."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "2", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            left = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in left:
                each.terminate()
            for each in psutil.wait_procs(left, _UP_S)[1]:
                each.kill()


def free_port() -> int:
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _UP_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def two_nodes() -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a Ray of two nodes, and the environment in which its token is."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **token, "OMP_NUM_THREADS": "1"}
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:  # sockets' paths must be short
        head = ("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", temporary)
        address = f"127.0.0.1:{port}"
        store = ("--object-store-memory", "100000000", "--node-ip-address", "127.0.0.1")
        with node(environment, *head, *store):
            wait_for(lambda: nodes(address, environment) == 1)
            with node(environment, "--address", address, *store):
                wait_for(lambda: nodes(address, environment) == 2)
                yield address, environment
                assert nodes(address, environment) == 2, "a Ray that was joined goes on"


def nodes(address: str, environment: dict[str, str]) -> int:
    """Return how many nodes a Ray has, 0 where there is none yet."""
    code = "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR'); print(len(ray.nodes()))"
    found = subprocess.run(
        [sys.executable, "-c", code, address], env=environment, capture_output=True, text=True, timeout=_UP_S
    )
    return int(found.stdout.split()[-1]) if found.returncode == 0 else 0


def test_ranks_and_replicas_are_spread_over_the_nodes_and_learn(
    two_nodes: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, environment = two_nodes
    command = [sys.executable, "-m", "tests.swarm.backends.verl.whole.joined", address, str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert (len(said["ranks"]), len(said["replicas"])) == (2, 2)
    assert len({*said["ranks"], *said["replicas"]}) == 2
    assert max(said["gaps"]) < 1e-4
