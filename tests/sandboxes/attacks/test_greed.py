from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxes.spec import Exit, Limits
from tests.sandboxes.attacks.conftest import Attackers

MIB = 1 << 20
SMALL = Limits(memory_bytes=96 * MIB, workspace_bytes=16 * MIB, processes=64)
MEMORY_BOMBS = ("anonymous", "shared_mapping", "memory_file", "pipe_buffers", "page_tables")
"""Of these the kernel ends the one process that sets them off."""
WHOLE_BOMBS = ("memory_files", "system_v", "socket_buffers", "inodes")
"""Their memory belongs to no process, so that the kernel may end any; how each ends."""
BOUNDED = {0: "filled its place", 101: "was told no", -9: "was killed"}


def test_a_fork_bomb_is_contained_and_a_neighbour_goes_on(attackers: Attackers) -> None:
    bomb = attackers.run("bombs.py", "fork_bomb", limits=SMALL)
    neighbour = attackers.run("probing.py", "/workspace/results/report.json", "privileges")
    assert bomb.report()["alive"] <= SMALL.processes
    assert bomb.ended() == Exit("finished", 0)  # PID 1 lived to say so, and nothing forked on
    assert neighbour.ended() == Exit("finished", 0)


def test_memory_is_bounded_whatever_it_is_taken_as(attackers: Attackers) -> None:
    attack = attackers.run("bombs.py", "memory", *MEMORY_BOMBS, limits=SMALL)
    ends = attack.report()["ends"]
    assert set(ends) == set(MEMORY_BOMBS)
    assert set(ends.values()) <= set(BOUNDED), ends
    assert ends["anonymous"] == -9
    assert attack.ended() == Exit("finished", 0)


@pytest.mark.parametrize("bomb", WHOLE_BOMBS)
def test_memory_of_no_process_is_bounded_too(attackers: Attackers, bomb: str) -> None:
    attack = attackers.run("bombs.py", "memory", bomb, limits=replace(SMALL, memory_bytes=64 * MIB))
    ended = attack.ended()
    assert ended.reason in ("out_of_memory", "finished"), ended
    if ended.reason == "finished":
        assert attack.report()["ends"][bomb] in BOUNDED


def test_a_command_killed_for_want_of_memory_is_said_to_be(attackers: Attackers) -> None:
    attack = attackers.run("bombs.py", "anonymous", limits=SMALL)
    assert attack.ended() == Exit("out_of_memory", -9)


def test_the_disk_cannot_be_filled(attackers: Attackers) -> None:
    limits = Limits(memory_bytes=256 * MIB, workspace_bytes=16 * MIB, file_bytes=8 * MIB)
    report = attackers.run("bombs.py", "fill_the_disk", limits=limits).report()
    filled = report["filled"]
    assert {place for place, size in filled.items() if size} == {"/workspace", "/tmp", "/dev/shm"}
    assert all(size <= 16 * MIB for size in filled.values())
    assert report["sparse"] == 27  # a file larger than one may be is refused (EFBIG), sparse or not
    assert report["core"] == []


@pytest.mark.parametrize(
    ("piece", "total"), [("x", 1100 * MIB), (r"\n", 128 * MIB), (r"\x00", 32 * MIB), (r"\xff", 32 * MIB)]
)
def test_shouting_costs_the_engine_a_bounded_log_and_what_is_dropped_is_counted(
    attackers: Attackers, piece: str, total: int
) -> None:
    limits = replace(attackers.spec.limits, output_bytes=MIB)
    attack = attackers.run("bombs.py", "shout", piece, str(total), limits=limits)
    assert attack.ended() == Exit("finished", 0)  # what PID 1 said after all of it was not lost
    kept = total - attack.handle._read("exit")["dropped_bytes"]
    assert 0 < kept <= MIB + 65_536
    output = attackers.root / attack.spec.name / "output.log"
    assert output.stat().st_size <= 3 * (MIB + 65_536) + 200  # broken UTF-8 is three bytes a byte


def test_time_is_taken_back_from_who_starves_pid_1(attackers: Attackers) -> None:
    attack = attackers.run("pid1.py", "starve", time_limit_s=2.0)
    assert attack.ended().reason == "timeout"
