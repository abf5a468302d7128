"""The results a container's command left: plain files of its workspace, read as if an enemy had put them there.

Read by PID 1 when nothing else lives in the container any more, so that nothing changes under its hands. Standard
library only, Python 3.9 or newer.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Any

CHUNK_BYTES = 9_000
"""So much of a result in one frame: with its base64 below the 16 KiB at which the engine cuts a line."""


class NotAResult(Exception):
    """A file is no result; the message says why."""


def open_result(workspace: int, name: str, most_bytes: int) -> int:
    """Return a descriptor of the result `name`; raise Refused when it is no plain file of at most so many bytes."""
    # Not blocking: a pipe would wait for a writer for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        folder = os.open("results", flags | os.O_DIRECTORY, dir_fd=workspace)
        try:
            file = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise NotAResult(why_not_opened(error)) from error
    try:
        check_result(os.fstat(file), os.fstat(workspace).st_dev, most_bytes)
    except NotAResult:
        os.close(file)
        raise
    return file


def why_not_opened(error: OSError) -> str:
    """Return the reason in words."""
    words = {errno.ENOENT: "missing", errno.ELOOP: "a symbolic link", errno.ENOTDIR: "its folder is not a folder"}
    return words.get(error.errno or 0, f"cannot be opened: {error.strerror}")


def check_result(found: os.stat_result, device: int, most_bytes: int) -> None:
    """Raise Refused unless this is a file that can be a result."""
    if not stat.S_ISREG(found.st_mode):
        raise NotAResult("not a regular file")
    if found.st_nlink != 1:
        raise NotAResult("has a second name (a hard link)")
    if found.st_dev != device:
        raise NotAResult("not in the workspace")
    if found.st_size > most_bytes:
        raise NotAResult(f"too large: {found.st_size} bytes; at most {most_bytes}")


def collect(workspace: int, name: str, most_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the frames of one result."""
    digest = hashlib.sha256()
    try:
        file = open_result(workspace, name, most_bytes)
        while chunk := os.read(file, CHUNK_BYTES):
            digest.update(chunk)
            yield {"result": name, "data": base64.b64encode(chunk).decode("ascii")}
    except (NotAResult, OSError) as error:
        yield {"result": name, "refused": str(error)}
        return
    os.close(file)
    yield {"result": name, "sha256": digest.hexdigest()}
