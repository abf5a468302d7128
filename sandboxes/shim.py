"""The shim: a small detached process that runs one sandboxed command and records its end.

Run by path, with the sandbox's folder as its only argument; standard library alone. It isolates nothing.
- It belongs to nobody: the launched process forks it, waits until the command is started, and ends.
- At most one command is ever started in a folder: a lock held for the shim's life, and `started.json` before the spawn.
  The lock is free once the shim is dead, as the command does not inherit it.
- A full disk delays its word of the end and loses output, never the command; output is bounded to two files.
- The time limit and SIGTERM end the process group: terminated, then killed after a grace. Nothing of it runs any more
  when `exit.json` appears.
"""

import errno
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

LOCK_WAIT_S = 10.0
GRACE_S = 5.0
DRAIN_S = 1.0
ROOM_WAIT_S = 0.5
LOG_BYTES = 1 << 19
"""Size at which the log is turned over; the folder holds two of them."""


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the whole of it or none, and a power cut after the return loses nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomic(path: Path, value: Mapping[str, Any]) -> None:
    write_durably(path, json.dumps(value).encode())


def write_retrying(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON as `write_atomic` does, as soon as the disk takes it: without it the end would look like a kill."""
    while True:
        try:
            return write_atomic(path, value)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            time.sleep(ROOM_WAIT_S)


def take_lock(folder: Path) -> int | None:
    """Return the folder's lock, or None if another shim has it (tried again: looks hold it) or it was started."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if (folder / "started.json").exists():
                break
            time.sleep(0.01)
    os.close(lock)
    return None


class BoundedLog:
    """Appends bytes to `output.log`, turned over to `output.1.log` at `LOG_BYTES`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = open(folder / "output.log", "wb", buffering=0)  # noqa: SIM115 - lives as long as the shim

    def write(self, data: bytes) -> None:
        """Append `data`; what a full disk does not take is lost."""
        try:
            self._file.write(data)
            if self._file.tell() >= LOG_BYTES:
                self._file.close()
                os.replace(self._folder / "output.log", self._folder / "output.1.log")
                self._file = open(self._folder / "output.log", "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            print(f"output lost: {error}", file=sys.stderr)  # noqa: T201 - goes to shim.log


class CommandWatch:
    """One command under watch: its output, its end, its time limit, and requests to stop."""

    def __init__(self, folder: Path, log: BoundedLog, child: subprocess.Popen[bytes], limit_s: float | None) -> None:
        self._child = child
        self._log = log
        self._folder = folder
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self._kill_at: float | None = None
        self._reason: str | None = None
        self._selector = selectors.DefaultSelector()
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self._pipe = child.stdout.fileno()
        self._open = True
        self._selector.register(self._pipe, selectors.EVENT_READ)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self._terminate("stopped")

    def wait(self) -> dict[str, Any]:
        """Return {reason, code, ended_at} once the command has ended and its process group is empty."""
        while self._child.poll() is None:
            self._read(0.05)
            now = time.monotonic()
            if self._deadline is not None and now >= self._deadline:
                self._terminate("timeout")
            if self._kill_at is not None and now >= self._kill_at:
                self._signal(signal.SIGKILL)
        self._signal(signal.SIGKILL)
        deadline = time.monotonic() + DRAIN_S  # a process that left the group may hold the pipe open
        while self._open and time.monotonic() < deadline and self._read(0.05):
            pass
        code = self._child.returncode
        asked = self._reason or ("stopped" if (self._folder / "stop.json").exists() else None)
        reason = asked or ("finished" if code == 0 else "error")
        return {"reason": reason, "code": code, "ended_at": time.time()}

    def _terminate(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._kill_at = time.monotonic() + GRACE_S
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._child.pid, number)
        except (ProcessLookupError, PermissionError):
            # The group is empty already (macOS says "not permitted" when only zombies are left in it).
            return

    def _read(self, wait_s: float) -> bool:
        if not self._open:
            time.sleep(wait_s)
            return False
        if not self._selector.select(wait_s):
            return False
        data = os.read(self._pipe, 1 << 16)
        if data:
            self._log.write(data)
        else:
            self._open = False
            self._selector.unregister(self._pipe)
        return bool(data)


def start_command(spec: Mapping[str, Any], preexec_fn: Callable[[], object] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        spec["command"], cwd=spec["directory"], env=spec["environment"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, process_group=0, preexec_fn=preexec_fn,
    )  # fmt: skip


Start = Callable[[Mapping[str, Any]], "subprocess.Popen[bytes]"]


def supervise(folder: Path, start: Start) -> None:
    since = time.time()
    if take_lock(folder) is None or has_started(folder):
        return
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    log = BoundedLog(folder)
    write_atomic(folder / "started.json", {"shim_pid": os.getpid(), "started_at": since})
    try:
        child = start(spec)
    except OSError as error:
        log.write(f"cannot start {spec['command']}: {error}\n".encode())
        write_retrying(folder / "exit.json", {"reason": "error", "code": 127, "ended_at": time.time()})
        return
    watch = CommandWatch(folder, log, child, spec["time_limit_s"])
    signal.signal(signal.SIGTERM, watch.request_stop)
    write_retrying(folder / "exit.json", watch.wait())


def has_started(folder: Path) -> bool:
    """Return whether the folder's command was started, or never will be."""
    return (folder / "started.json").exists() or (folder / "exit.json").exists()


def main(folder: Path, start: Start = start_command) -> int:
    """Tend the folder in a session of its own; return 0 once its command was started by whichever shim."""
    child = os.fork()
    if child == 0:
        os.setsid()
        supervise(folder, start)
        return 0
    while not has_started(folder):
        if os.waitpid(child, os.WNOHANG)[0]:
            return 0 if has_started(folder) else 1
        time.sleep(0.005)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
