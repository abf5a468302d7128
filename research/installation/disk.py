"""Room on a disk: required before writing, and how a full disk is told from other errors.

An attempt that a full disk ended costs its run no try, and nothing is launched until there is room again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from sandboxes import SandboxError

FULL_EXIT = os.EX_TEMPFAIL
"""Exit code of an attempt that could not even write down that the disk is full."""
LEAST_ROOM = 1 << 20
"""Bytes below which a disk counts as full: an error with so little left is most likely due to it."""
LAUNCH_ROOM = 32 << 20
"""Bytes an attempt should find: store, logs and checkpoint of a tiny model."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Whether an error says that a disk, or a quota of it, is used up."""
    return error.errno in _FULL


def room(folder: Path) -> int | None:
    """Return the bytes that may still be written under a folder; None where its file system does not tell."""
    found = os.statvfs(folder)
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return free * found.f_frsize if found.f_blocks else None


def has_room(folder: Path, wanted: int = LEAST_ROOM) -> bool:
    """Whether so many bytes can be written under a folder, as far as its file system tells."""
    free = room(folder)
    return free is None or free >= wanted


def require_room(folder: Path, wanted: int = LEAST_ROOM) -> None:
    """Raise SandboxError, which is waited for, unless so many bytes can be written under a folder."""
    if not has_room(folder, wanted):
        raise SandboxError(
            f"expected {wanted >> 20} MiB of room on the disk of {folder}; found {(room(folder) or 0) >> 10} KiB. "
            "Free some space; what was begun goes on then"
        )


def unless_full(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what says a line, and drops it where the disk that it goes to is full: no work ends for what is said."""

    def said(line: str) -> None:
        try:
            say(line)
        except OSError as error:
            if not is_full(error):
                raise

    return said
