"""What a server does, in twelve lines."""

from __future__ import annotations

from dataclasses import replace

from research.cli.swarm.watching.status_lines import status_lines
from swarm.snapshot import Snapshot
from swarm.wire import ServerState, Status
from tests.research.cli.swarm.watching.frames import RISING, frame


def test_a_training_is_twelve_lines() -> None:
    lines = dict(status_lines(frame(), "http://127.0.0.1:8700 (pid 7)"))
    assert len(lines) == 12
    assert lines["server"] == "http://127.0.0.1:8700 (pid 7)"
    assert lines["state"] == "ROLLING"
    assert lines["job"] == "guess, tiny (2 layers of 64), grpo"
    assert lines["step"] == "40 of 100, about 2 min 5 s left"
    assert lines["reward"] == "0.4 at step 40, 0.01 at step 1"
    assert lines["success"] == "0.2 at step 40, 0.005 at step 1"
    assert lines["evaluation"] == "success 0.5 at step 40 (64 episodes), best 0.625 at step 30"
    assert lines["episodes"] == "7 open, 20 of 64 collected, 3 in line, the first for 12 s"
    assert lines["waits for"].startswith("44 episodes")
    assert "hard (nobody plays); 8 episodes" in lines["waits for"]
    assert lines["drops"] == "13: 9 constant_group, 4 lease_expired"
    assert "ajet swarm top" in lines["more"]


def test_so_are_a_server_without_a_job_and_one_of_an_earlier_release() -> None:
    """Of the latter nothing is known but its status."""
    off = replace(frame(), snapshot=Snapshot(at=0.0, status=Status(state=ServerState.OFFLINE)), first=None, steps=())
    assert len(status_lines(off, "http://127.0.0.1:8700 (pid 7)")) == 12
    assert dict(status_lines(off, "http://127.0.0.1:8700 (pid 7)"))["step"] == "-"


def test_the_first_step_is_not_told_twice_and_a_new_training_beside_others_is_one_line_more() -> None:
    first = replace(frame(), steps=RISING[:1])
    assert dict(status_lines(first, ""))["reward"] == "0.01 at step 1"
    status = Status(state=ServerState.ROLLING, fresh_start="begins at step 0 beside others")
    assert len(status_lines(frame(status=status), "")) == 13
