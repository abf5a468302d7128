"""Finding a session's processes: only those that are sure to be of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from sandboxes.process import sessions

LEADER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


@pytest.fixture
def leader() -> Iterator[int]:
    """The pid of a session's leader that has one child."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    yield process.pid
    process.communicate(b"\n")


def pids(leader: int, began: float, *, leader_lives: bool = True) -> set[int]:
    return {process.pid for process in sessions.members(leader, began, leader_lives=leader_lives)}


def test_leader_and_child_are_members_and_we_are_not(leader: int) -> None:
    began = psutil.Process(leader).create_time()
    children = {child.pid for child in psutil.Process(leader).children()}
    assert pids(leader, began) == {leader} | children
    assert os.getpid() not in pids(leader, began)


def test_a_process_older_than_the_session_is_of_an_earlier_one(leader: int) -> None:
    later = psutil.Process(leader).create_time() + 100
    assert pids(leader, later) == {leader}


def test_a_living_process_with_a_dead_leaders_number_ends_the_search(leader: int) -> None:
    assert pids(leader, psutil.Process(leader).create_time(), leader_lives=False) == set()


def test_nothing_outlives_a_reboot(leader: int) -> None:
    assert pids(leader, psutil.boot_time() - 100) == set()
