from __future__ import annotations

import array
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from sandboxes.spec import Exit, SandboxError, wait_until
from tests.sandboxes.attacks.conftest import WAIT_S, Attackers, door
from tests.sandboxes.containing import refused_results


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_SIGPENDING"])
def test_pid_1_cannot_be_limited_from_inside(attackers: Attackers, limit: str) -> None:
    attack = attackers.run("pid1.py", "prlimit", limit, "0", "0")
    assert attack.ended() == Exit("error", 7), attack.handle.logs()
    assert "refused: EPERM" in attack.handle.logs()
    assert refused_results(attack.handle) == {"report.json": "missing"}  # it still could look


def test_a_sender_lost_for_want_of_room_does_not_pose_as_the_engine(attackers: Attackers) -> None:
    attack = attackers.run("pid1.py", "pose_without_room")
    assert attack.ended() == Exit("error", 7), attack.handle.logs()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "PATH"])
def test_no_variable_brings_code_into_pid_1(attackers: Attackers, name: str) -> None:
    with pytest.raises(SandboxError, match=f"loader.*'{name}'"):
        attackers.run("pid1.py", "forge", environment={name: "/input"})


def test_forged_words_stay_output(attackers: Attackers) -> None:
    attack = attackers.run("pid1.py", "forge", results={"score.json": 100, "report.json": 100})
    assert attack.ended() == Exit("error", 3)
    assert attack.handle.results() == {}
    assert refused_results(attack.handle) == {"score.json": "missing", "report.json": "missing"}
    assert '"sha256": "0000' in attack.handle.logs()


def test_deaf_processes_end_when_they_are_stopped(attackers: Attackers) -> None:
    attack = attackers.run("pid1.py", "survive")
    assert wait_until(lambda: "deaf" in attack.handle.logs(), WAIT_S)
    assert attack.handle.stop(grace_s=0.3).reason == "stopped"


def test_output_left_with_somebody_outside_does_not_keep_the_container(attackers: Attackers, tmp_path: Path) -> None:
    """A descriptor travels through a Unix socket: whoever takes it, or never reads it, holds the output open."""
    with door(tmp_path) as (listener, fields):
        attack = attackers.run("pid1.py", "leave_output", **fields)
        held, _ = listener.accept()
        with held:
            assert attack.ended() == Exit("error", 7)


def test_descriptors_that_come_through_a_door_are_of_the_container_alone(attackers: Attackers, tmp_path: Path) -> None:
    """What the gateway reads with recv() drops descriptors; were it to take them, they would be of no file outside."""
    taken: list[str] = []
    with door(tmp_path) as (listener, fields):
        listener.settimeout(WAIT_S)

        def take() -> None:
            connection, _ = listener.accept()
            with connection:
                _, fds, _, _ = socket.recv_fds(connection, 10, 4)
                taken.extend(os.readlink(f"/proc/self/fd/{fd}") for fd in fds)
                for fd in array.array("i", fds):
                    os.close(fd)

        thread = threading.Thread(target=take)
        thread.start()
        attackers.run("pid1.py", "leave_output", **fields).ended()
        thread.join()
    assert taken
    assert all(name.startswith("pipe:") for name in taken)


def test_all_connections_of_the_relay_taken_do_not_keep_the_container(attackers: Attackers, tmp_path: Path) -> None:
    with door(tmp_path, 2000) as (_, fields):
        attack = attackers.run("pid1.py", "hold", "[8000]", "900", **fields)
        assert attack.ended() == Exit("error", 7)
    assert int(json.loads(attack.handle.logs())) > 300
