"""Sockets whose paths are longer than kernels take."""

from __future__ import annotations

import socket
from pathlib import Path

from sandboxes.gateway.listening import listening, name_of


def test_who_listens_at_a_long_path_is_reached_there(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    with (
        listening(folder / "a.sock") as listener,
        socket.socket(socket.AF_UNIX) as caller,
        name_of(folder / "a.sock") as name,
    ):
        caller.connect(name)
        listener.accept()[0].close()
