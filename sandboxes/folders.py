"""The folder of a sandbox: JSON files that any controller reads, some written once, and a lock.

They work on one machine: the folder must not be shared over a network.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from sandboxes.shim import write_atomic
from sandboxes.spec import Exit, SandboxError

LOCK_WAIT_S = 120.0
TICK_S = 0.02


def read(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`, or None when there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SandboxError(f"expected JSON in {path}; {error}. Restore it, or remove the sandbox's folder") from error
    return cast(dict[str, Any], value)


def launched_and_ended(folder: Path, ended: Exit | None) -> tuple[float, float | None]:
    """Return when the sandbox of a folder was launched and when it ended, if it has, in Unix seconds.

    Raises SandboxError for a folder that was removed meanwhile.
    """
    spec, end = read(folder / "spec.json"), read(folder / "exit.json")
    if spec is None or (ended is not None and end is None):
        raise SandboxError(f"expected the folder of sandbox {folder.name}; it was removed meanwhile: {folder}")
    return float(spec["created_at"]), None if ended is None or end is None else float(end["ended_at"])


def write_once(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` unless `path` exists already; whoever comes first wins, whole, and survives a power cut."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    write_atomic(draft, value)
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Have the disk keep which files there are in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def until(condition: Callable[[], bool], timeout_s: float, tick_s: float = TICK_S) -> bool:
    """Wait for the condition; return whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(tick_s)
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; raise SandboxError when somebody else does for minutes."""
    lock = FileLock(folder / "lock", timeout=LOCK_WAIT_S, poll_interval=TICK_S, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise SandboxError(
            f"sandbox {folder.name}: another process has held {folder / 'lock'} for {LOCK_WAIT_S:.0f} s; "
            "see what it does (`fuser` names it), and try again"
        ) from error
    try:
        yield
    finally:
        lock.release()
