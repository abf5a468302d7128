"""A Ray of two nodes that were started by hand is joined by its address, on one machine and on two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.swarm.backends.verl.whole.nodes import Place, can_make_machines, nodes, ray_of, two_machines

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


def _printed(driver: str) -> Any:
    ran = subprocess.run(_command(Place(), driver), capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_second_ray_of_a_process_names_all_that_is_asked_apart_and_none_begins_by_the_way() -> None:
    assert _printed("again") == {"asked": 8, "named": 8, "waited": "RaySystemError", "begun": False}


def test_a_pair_sees_one_gpu_and_the_same_and_no_other_pair_does() -> None:
    printed = _printed("bundled")
    assert sorted(printed["ranks"]) == ["0", "1"]
    assert printed["ranks"] == printed["replicas"]
    assert printed["refused"].startswith("verl.colocated: expected 1 GPUs")
