"""Unix sockets of an exchange folder: who may reach them, and how they appear under a name of any length.

A socket may be written to by every user, for the container's user is not ours, so the way to it must not be open to
the other users of this machine: some folder above it has to be its owner's alone. In a container the folder is
mounted by itself, so what lies above it does not matter there.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxes.spec import SandboxError

QUEUE = 1024
MOST_PATH_BYTES = 100
"""Kernels take 104 to 108 bytes."""


def prepare(folder: Path) -> None:
    """Make a folder for sockets. Raises SandboxError when other users of this machine could reach into it."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    if not any(_private(above) for above in folder.absolute().parents):
        raise SandboxError(
            f"expected a folder above {folder} that only its owner may enter; found none, so every user of this "
            f"machine could speak through its sockets; run: chmod 700 {folder.absolute().parent}"
        )


def _private(folder: Path) -> bool:
    return not folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`, in place of whoever did before; inside, and only inside, connections are taken."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        draft.unlink(missing_ok=True)
        with name_of(draft) as name:
            sock.bind(name)
        draft.chmod(0o666)
        sock.listen(QUEUE)
        sock.setblocking(False)
        mine = draft.stat().st_ino
        os.replace(draft, path)  # at no time is there none
        try:
            yield sock
        finally:
            _remove(path, mine)
    finally:
        sock.close()


@contextmanager
def name_of(path: Path) -> Iterator[str]:
    """Give a name to bind or connect to for a path, which may be longer than kernels take if its last part is not."""
    if len(os.fsencode(path)) <= MOST_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _remove(path: Path, inode: int) -> None:
    """Remove our socket, unless a successor's stands in its place."""
    try:
        if path.stat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        return
