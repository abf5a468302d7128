"""The process sandbox: detached processes that outlive their controller; isolates nothing.

A command in it can do whatever its user can, so untrusted code is refused. A sandbox is a folder that any later
controller reads the same: spec.json (written once), lock (held by `sandboxes.shim` as long as it lives), started.json
(the command will never be started again), stop.json, exit.json (written once), output.log and output.1.log, shim.log. A
started sandbox whose lock is free and that has no exit.json was killed with its shim: it is `lost`, and `stop` ends
what it left running. One machine only: the folder must not be shared over a network.

A session is named by its leader's pid, and such numbers are reused: nothing is signalled unless it is sure to be of the
session meant. Processes that made a session of their own are not found.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from sandboxes.preload import Preloader
from sandboxes.shim import has_started
from sandboxes.spec import (
    NAME,
    Exit,
    ExitReason,
    FolderHandle,
    Handle,
    SandboxError,
    SandboxSpec,
    read,
    wait_until,
    write_once,
)

ROUNDING_S = 1.0
"""How far a process's start time may be off: kernels count it in ticks."""


def session_members(leader: int, began: float, *, leader_lives: bool) -> list[psutil.Process]:
    """Return the living (no zombies) of `leader`'s session begun at `began` (Unix s); none if its pid was reused."""
    if psutil.boot_time() > began + ROUNDING_S:
        return []
    with suppress(psutil.NoSuchProcess):
        if not leader_lives and psutil.Process(leader).status() != psutil.STATUS_ZOMBIE:
            return []
    return [process for process in psutil.process_iter() if _is_member(process, leader, began)]


def _is_member(process: psutil.Process, leader: int, began: float) -> bool:
    try:
        if os.getsid(process.pid) != leader or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.create_time() >= began - ROUNDING_S or process.pid == leader
    except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
        return False


def send(signal_number: int, processes: Iterable[psutil.Process]) -> None:
    """Signal each that still lives (psutil refuses a pid that was used again)."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)


START_WAIT_S = 20.0
FINAL_WAIT_S = 2.0
INHERITED = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH",
    "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME", "AJET_MODEL_CACHE",
)  # fmt: skip
"""All that a command inherits of the controller's environment: nothing secret, no API key, no token."""


class ProcessHandle(FolderHandle):
    """A process sandbox that was launched, seen through its folder."""

    def poll(self) -> Exit | None:
        if (ended := self._exit()) is not None:
            return ended
        with self._try_lock() as free:
            # The shim may have ended since the first look, and left its word just before.
            if not free or (ended := self._exit()) is not None or not self._has_started():
                return ended
            self._conclude("lost")
        return self._exit()

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        text = b""
        for name in ("output.1.log", "output.log"):
            try:
                text += (self._folder / name).read_bytes()
            except FileNotFoundError:
                continue
        return text[-tail_bytes:].decode(errors="replace") if tail_bytes > 0 else ""

    def stop(self, grace_s: float = 5.0) -> Exit:
        """End its session, also what a dead shim left; idempotent. On a full disk OSError, though it is ended."""

        def is_decided() -> bool:
            with self._try_lock() as free:
                if free and not self._has_started():
                    self._conclude("stopped")
            return self._has_started() or self._exit() is not None

        if not wait_until(is_decided, START_WAIT_S):  # for a shim that is starting it
            raise SandboxError(
                f"sandbox {self.name}: its shim neither started the command nor ended; see {self._folder}"
            )
        if self._has_started():  # else it never will be
            with suppress(OSError):  # the shim is asked by a signal, too
                write_once(self._folder / "stop.json", {"asked_at": time.time()})
            send(signal.SIGTERM, self._members())
            wait_until(lambda: not self._members(), grace_s)
            # The shim writes the end once the command is gone: it is given a moment, and killed last.
            send(signal.SIGKILL, (process for process in self._members() if process.pid != self._leader()))
            wait_until(lambda: not self._members(), FINAL_WAIT_S)
            send(signal.SIGKILL, self._members())
            wait_until(lambda: not self._members(), FINAL_WAIT_S)
            if not wait_until(self._is_free, FINAL_WAIT_S):  # it runs, whatever was found of its processes
                raise SandboxError(
                    f"sandbox {self.name}: expected to end its processes; its shim lives on (was the clock set since?)."
                    f" End it: kill {self._leader()}"
                )
        self._conclude("stopped")
        ended = self._exit()
        assert ended is not None
        return ended

    def _members(self) -> list[Any]:
        leader, began = self._leader(), float(self._read("started").get("started_at", 0.0))
        return session_members(leader, began, leader_lives=not self._is_free()) if leader else []

    def _is_free(self) -> bool:
        with self._try_lock() as free:
            return free

    def _leader(self) -> int:
        return int(self._read("started").get("shim_pid", 0))

    def _has_started(self) -> bool:
        return (self._folder / "started.json").exists()

    def _conclude(self, reason: ExitReason) -> None:
        write_once(self._folder / "exit.json", {"reason": reason, "code": None, "ended_at": time.time()})

    @contextmanager
    def _try_lock(self) -> Iterator[bool]:
        """Yield whether the lock was free, then held inside. No `filelock`: shims have the standard library only."""
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            free = True
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                free = False
            yield free
        finally:
            os.close(lock)


class ProcessSandbox:
    """Launches trusted commands as detached processes under `root`, exactly once by name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._preloader: Preloader | None = None

    def preload(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Begin to import modules in a process that commands with this environment are forked from, if it can begin."""
        with suppress(OSError):
            if self._preloader is None:
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._preloader = Preloader(modules, {**_inherited(), **environment}, self._root / "preload.log")

    def run(self, spec: SandboxSpec) -> Handle:
        if not spec.trusted:
            raise SandboxError(
                f"sandbox {spec.name}: a process sandbox does not isolate, so it runs the project's own code only "
                "(trusted=True); found untrusted code. Run it in a Docker sandbox."
            )
        if not NAME.fullmatch(spec.name):
            raise SandboxError(f"a sandbox's name must match {NAME.pattern}; found {spec.name!r}")
        if not spec.command:
            raise SandboxError(f"sandbox {spec.name}: expected a command to run; found none")
        value = {
            "name": spec.name, "command": list(spec.command),
            "directory": str(spec.directory.absolute()), "environment": {**_inherited(), **spec.environment},
            "labels": dict(spec.labels), "time_limit_s": spec.time_limit_s, "created_at": time.time(),
        }  # fmt: skip
        folder = self._root / spec.name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_once(folder / "spec.json", value)
            if (handle := self.adopt(spec.name)) is not None:
                return handle
            forks, written = self._preloader, read(folder / "spec.json") or value  # which a killed controller may have
            if forks and forks.environment == written["environment"] and forks.launch(folder.absolute()):
                return ProcessHandle(folder)
            return _launch(folder)
        except OSError as error:
            raise SandboxError(f"cannot launch sandbox {spec.name} in {folder}: {error}") from error

    def adopt(self, name: str) -> Handle | None:
        folder = self._root / name
        return ProcessHandle(folder) if has_started(folder) else None

    def list(self) -> list[Handle]:
        """Return handles of all that were started, oldest first."""
        specs = ((read(path), path.parent) for path in self._root.glob("*/spec.json"))
        started = sorted((spec["created_at"], folder) for spec, folder in specs if spec and has_started(folder))
        return [ProcessHandle(folder) for _, folder in started]


def _inherited() -> dict[str, str]:
    return {key: os.environ[key] for key in INHERITED if key in os.environ}


def _launch(folder: Path) -> ProcessHandle:
    shim = Path(__file__).with_name("shim.py").absolute()
    with open(folder / "shim.log", "ab") as log:
        command = [sys.executable, "-I", "-S", str(shim), str(folder.absolute())]
        code = subprocess.call(
            command, cwd=folder, env={}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    if code == 0:
        return ProcessHandle(folder)
    said = (folder / "shim.log").read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    raise SandboxError(
        f"sandbox {folder.name}: expected its shim to start the command; it ended with code {code}: {said[0]}. "
        "Nothing was started; see that the disk is writable, and run it again."
    )
