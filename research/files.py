"""Files written whole or not at all, and room on disk.

JSON is written in the records' one canonical form, so that equal values are equal bytes. An attempt that a full disk
ended costs its run no try, and nothing is launched until there is room again.
"""

import errno
import hashlib
import json
import os
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from sandboxes import SandboxError
from studies.records.base import JsonValue, canonical


def load_table(package: str | None, name: str) -> dict[str, Any]:
    """Return a table that lies as TOML beside the code of a package."""
    return tomllib.loads(resources.files(package or "").joinpath(name).read_text("utf-8"))


def write_json(path: Path, value: JsonValue, *, durable: bool = True) -> str:
    return write_bytes(path, canonical(value).encode(), durable=durable)


def write_bytes(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o666) -> str:
    """Write `data` under a temporary name and rename it; return its sha256. Raises OSError. `durable` makes it survive
    a power cut as well; `mode` and the umask say who may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, mode)) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:  # half of it would stay on a disk that is full
        draft.unlink(missing_ok=True)
        raise
    return hashlib.sha256(data).hexdigest()


def size_of(path: Path) -> int:
    return sum(each.lstat().st_size for each in (path, *path.rglob("*")) if not each.is_dir())


def read_json(path: Path) -> Any | None:
    """Return the JSON value in `path`, or None when there is no such file; raises ValueError for other content."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


FULL_EXIT = os.EX_TEMPFAIL
"""Exit code of an attempt that could not even write down that the disk is full."""
LEAST_ROOM = 1 << 20
"""Bytes below which a disk counts as full: an error with so little left is most likely due to it."""
LAUNCH_ROOM = 32 << 20
"""Bytes an attempt should find: store, logs and checkpoint of a tiny model."""


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that may still be written under a folder; None where its file system does not tell."""
    found = os.statvfs(folder)
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return free * found.f_frsize if found.f_blocks else None


def has_room(folder: Path, wanted: int = LEAST_ROOM) -> bool:
    """Whether so many bytes can be written under a folder, as far as its file system tells."""
    free = free_bytes(folder)
    return free is None or free >= wanted


def require_room(folder: Path, wanted: int = LEAST_ROOM) -> None:
    """Raise SandboxError, which is waited for, unless so many bytes can be written under a folder."""
    if not has_room(folder, wanted):
        raise SandboxError(
            f"expected {wanted >> 20} MiB of room on the disk of {folder}; found {(free_bytes(folder) or 0) >> 10} "
            "KiB. Free some space; what was begun goes on then"
        )


def ignore_disk_full(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what says a line, and drops it where the disk that it goes to is full: no work ends for what is said."""

    def say_line(line: str) -> None:
        try:
            say(line)
        except OSError as error:
            if not is_full(error):
                raise

    return say_line
