"""A Ray of nodes started by hand, as docs/cluster.md says, is joined by its address, on one machine and on two."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(900)


def _command(place: Place, *arguments: str) -> list[str]:
    return [*place.prefix, sys.executable, "-m", "tests.swarm.backends.verl.whole.drivers", *arguments]


def _holds(said: dict[str, Any]) -> None:
    assert (len(said["ranks"]), len(said["replicas"])) == (2, 2)
    assert len(set(said["ranks"])) == len(set(said["replicas"])) == len({*said["ranks"], *said["replicas"]}) == 2
    assert max(said["gaps"]) < 1e-4


def test_ranks_and_replicas_are_spread_over_the_nodes_and_learn(tmp_path: Path) -> None:
    here = Place()
    with ray_of([here, here]) as (address, environment):
        command = _command(here, "join", address, str(tmp_path))
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        assert nodes(here, address, environment) == 2, "it does not go on"
    assert ran.returncode == 0, ran.stderr[-3000:]
    _holds(json.loads(ran.stdout.splitlines()[-1]))


def test_two_machines_learn_together_and_what_one_of_them_saved_goes_on_without_the_other(tmp_path: Path) -> None:
    if not can_make_machines():
        pytest.skip("network namespaces are made by root, with iproute2")
    with two_machines() as machines, ray_of(machines) as (address, environment):
        command = _command(machines[0], "lose", address, str(tmp_path))
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
        ) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            said = (json.loads(line) for line in driver.stdout if line.startswith("{"))  # Ray tells of nodes there too
            _holds(next(said))
            machines[1].cut_off()
            driver.stdin.write("\n")
            driver.stdin.flush()
            lost, after = said
            assert driver.wait(100) == 0
        assert nodes(machines[0], address, environment) == 1
    assert lost["error"].startswith("rank ")
    assert lost["error"].endswith("the server again")
    assert lost["seconds"] < 120
    assert after["version"] == 2
    assert max(after["gaps"]) < 1e-4


def _printed(driver: str, *arguments: str) -> Any:
    ran = subprocess.run(_command(Place(), driver, *arguments), capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def test_a_ray_without_its_head_is_told_of_leaves_nobody_behind_and_another_one_serves(tmp_path: Path) -> None:
    (printed,) = _printed("headless", str(tmp_path))
    assert printed["failure"].startswith("Ray's head is gone")
    assert printed["left"] == []
    assert max(printed["gaps"]) < 1e-4


def test_a_second_ray_of_a_process_names_all_that_is_asked_apart_and_none_begins_by_the_way() -> None:
    assert _printed("again") == [{"asked": 8, "named": 8, "waited": "RaySystemError", "begun": False}]


def test_a_pair_sees_one_gpu_and_who_is_apart_another_and_what_is_reserved_is_nobody_else_s() -> None:
    pairs, apart = _printed("bundled")
    assert sorted(pairs["ranks"]) == ["0", "1"]
    assert pairs["ranks"] == pairs["replicas"]
    assert sorted(apart["ranks"] + apart["replicas"]) == ["0", "1"]
    for each in (pairs, apart):
        assert each["refused"].startswith("expected 1 GPUs that are free")


UP_S = 120.0
"""Seconds that a node may take to come up, and to be let go."""


@dataclass(frozen=True)
class Place:
    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine(Place):
    name: str = ""

    def cut_off(self) -> None:
        """Take the cable out: nothing is told that anything ended."""
        _ip("-n", self.name, "link", "set", "cable", "down")


def can_make_machines() -> bool:
    """Return whether this process may: it takes root, with all that root may, and Debian's iproute2."""
    if shutil.which("ip") is None:
        return False
    name = f"ajet-{os.getpid()}-tried"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=UP_S).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=UP_S)
    return made


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    names = [f"ajet-{os.getpid()}-{end}" for end in "ab"]
    first, second = (
        Machine(f"198.51.100.{end}", ("ip", "netns", "exec", name), name) for end, name in enumerate(names, 1)
    )
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("-n", first.name, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second.name)
        for machine in (first, second):
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "cable")
            for link in ("cable", "lo"):
                _ip("-n", machine.name, "link", "set", link, "up")
        yield first, second
    finally:
        for name in names:  # one may not have been made
            subprocess.run(["ip", "netns", "del", name], timeout=UP_S)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=UP_S)


@contextmanager
def ray_of(places: Sequence[Place]) -> Iterator[tuple[str, dict[str, str]]]:
    """Start a Ray with a node at each place; its address, and the environment in which its token is."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **token, "OMP_NUM_THREADS": "1"}
    head, port = places[0], _free_port()
    address = f"{head.address}:{port}"
    with ExitStack() as up:
        temporary = up.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp"))  # paths must be short
        for count, place in enumerate(places, 1):
            first = ("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", temporary)
            up.enter_context(_node(place, environment, *(first if count == 1 else ("--address", address))))
            wait_for(lambda count=count: nodes(head, address, environment) == count)
        yield address, environment


@contextmanager
def _node(place: Place, environment: dict[str, str], *options: str) -> Iterator[None]:
    store = ("--object-store-memory", "100000000", "--node-ip-address", place.address)
    ray = ("-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "2")
    command = [*place.prefix, sys.executable, *ray, *store, *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            _end(process.pid)


def _end(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        left = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for each in left:
                with suppress(psutil.NoSuchProcess):
                    end(each)
            left = psutil.wait_procs(left, UP_S)[1]


def nodes(place: Place, address: str, environment: dict[str, str]) -> int:
    code = (
        "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR'); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    command = [*place.prefix, sys.executable, "-c", code, address]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=UP_S)
    return int(found.stdout.split()[-1]) if found.returncode == 0 else 0


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UP_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _free_port() -> int:
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
