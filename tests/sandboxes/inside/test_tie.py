"""A tie holds while anybody has the door, however busy, and breaks once it is nobody's for some seconds."""

from __future__ import annotations

import socket
from pathlib import Path

from sandboxes.inside.tie import GONE_S, LOOK_S, Tie, served


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(0)
    return listener


def test_a_door_that_takes_nobody_just_now_is_served_and_one_whose_holder_is_gone_is_not(tmp_path: Path) -> None:
    path = tmp_path / "door"
    assert not served(str(path))
    with listening(path):
        assert all(served(str(path)) for _ in range(20)), "its queue is full, and its holder may be stopped"
    assert not served(str(path))


def test_a_tie_breaks_only_where_nobody_came_back_in_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "door", Clock()
    tie = Tie(str(path), clock)
    for _ in range(3):
        clock.now += GONE_S - LOOK_S
        assert not tie.broken()
        with listening(path):
            clock.now += LOOK_S
            assert not tie.broken()
        path.unlink()
    clock.now += GONE_S
    assert tie.broken()
