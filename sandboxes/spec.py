"""The interface of all sandboxes: what is to run, its folder, and what can be asked of it.

A sandbox launches by name, exactly once: running a name that exists adopts what was launched before, so a controller
killed between deciding and launching just launches again. What runs outlives the controller. Its folder holds JSON
files, some written once, and a lock; it must not be shared over a network.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from filelock import FileLock, Timeout

from sandboxes.shim import write_atomic

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e"
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0"
    "\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Control characters but tab and line feed, what turns the direction of text, and what Unicode has drawn as nothing
(Default_Ignorable_Code_Point, tags among it, which language models read) but the two marks of emoji."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Of a sandbox, which is the name of its folder, and of a result."""
_ANCHOR = 256
_CUT = "\N{REPLACEMENT CHARACTER}"
_OFTEN: Mapping[str, str] = {
    "SIGKILL": ": is the machine short of memory?",
    "SIGSEGV": ": a library of C crashed",
    "SIGABRT": ": a library of C gave up",
    "SIGXFSZ": ": it wrote a file larger than it may",
}
"""What most often sends a signal that nobody asked for."""


def escape_control(text: str) -> str:
    """Return `text` with each character that could steer a terminal or a reader's eye written as an escape."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def escape_line(text: str) -> str:
    return " ".join(escape_control(text).split())


def last_lines(text: str, lines: int, most: int) -> str:
    """Return the end of `text` on one line of at most `most` characters; empty when there is none."""
    end = " | ".join(escape_control(text).strip().splitlines()[-lines:])
    return end if len(end) <= most else "…" + end[-most + 1 :]


def added_text(before: str, after: str) -> str:
    """Return what `after` adds to `before`, ends of one growing text: all, where they share under 256 characters."""
    after = after.lstrip(_CUT)  # of a character that the window cut in two
    head = after[: min(_ANCHOR, len(before))]
    start = before.find(head)
    while start >= 0 and not after.startswith(before[start:]):
        start = before.find(head, start + 1)
    return after if start < 0 else after[len(before) - start :]


def describe_exit(code: int) -> str:
    """Return how code ended its process before its work was done, by the exit code, negative for a signal."""
    if code >= 0:
        return f"by itself, with exit code {code} (os._exit, or a library's exit)"
    return f"by {describe_signal(-code)}"


def describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # one that Python has no name for
        return f"signal {number}"
    return f"signal {number} ({name}{_OFTEN.get(name, '')})"


ExitReason = Literal["finished", "error", "timeout", "stopped", "lost", "out_of_memory", "killed"]


class SandboxError(Exception):
    """A sandbox could not do what was asked; the message says what was expected, found, and what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a container may take of the machine; a process sandbox bounds its output only."""

    memory_bytes: int = 1 << 30
    """Memory, its workspace and other RAM file systems included; there is no swap."""
    cpus: float = 1.0
    processes: int = 256
    """Processes and threads at once."""
    open_files: int = 1024
    file_bytes: int = 64 << 20
    """Size of any one file it writes."""
    workspace_bytes: int = 64 << 20
    """Size of `/workspace`, and of `/tmp`: the two places it may fill."""
    output_bytes: int = 4 << 20
    """What is kept of its output: so much from the beginning, and the last 64 KiB."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to run. `name` is unique in an installation; `command` is started with `directory` as its folder.

    `environment` is added to a minimal inherited one. `trusted` says that the code is the project's own: a
    sandbox that does not isolate refuses anything else. `time_limit_s` None means no limit.

    The fields from `image` on are for containers, which start in `/workspace` instead of `directory` and see
    nothing of this machine: `files` (contents by path) lie read-only in `/input`; a file the
    command leaves at `/workspace/results/NAME` is collected if `results` names it, up to so many bytes; port P of
    the container's own loopback, its only network, leads to the Unix socket `exchange / ports[P]`, where a
    `sandboxes.gateway.gateway.Gateway` decides what is behind it.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: float | None = None
    trusted: bool = False
    limits: Limits = field(default_factory=Limits)
    image: str | None = None
    """Id of a client image (`sandboxes.images`)."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    results: Mapping[str, int] = field(default_factory=dict)
    exchange: Path | None = None
    ports: Mapping[int, str] = field(default_factory=dict)
    tied: bool = False
    """It ends once nobody has served its first port's socket for some seconds: with the process of its gateway."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs it may use."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended.

    `finished` and `error`: the command ended by itself, with code 0 or another. `timeout`, `out_of_memory`: it
    reached a limit. `stopped`: somebody asked for it through `Handle.stop`. `killed`: a container was ended by
    nobody's request to us, from outside or by what ran in it, and says no more. `lost`: it vanished, and nobody saw
    its exit code.
    """

    reason: ExitReason
    code: int | None


class Handle(Protocol):
    """A launched sandbox, by this controller or an earlier one."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    def run_times(self) -> tuple[float, float | None]:
        """Return when it was launched and when it ended (Unix s; None: it runs); SandboxError if it was removed."""

    def poll(self) -> Exit | None:
        """Return how it ended, or None while it runs."""

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait until it ends; None when the time is over first."""

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        """Return the end of its standard output and error, decoded with replacement."""

    def stop(self, grace_s: float = 5.0) -> Exit:
        """End it and every process it started: terminate, then kill after `grace_s`; idempotent."""


class Sandbox(Protocol):
    """Launches and finds sandboxes of one kind."""

    def run(self, spec: SandboxSpec) -> Handle:
        """Launch `spec`, or adopt what was launched under its name; raise SandboxError when it must not run."""

    def adopt(self, name: str) -> Handle | None:
        """Return the handle of what was launched under `name`, or None if nothing was."""

    def list(self) -> list[Handle]:
        """Return handles of all sandboxes, oldest first."""


LOCK_WAIT_S = 120.0
TICK_S = 0.02


def read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SandboxError(f"expected JSON in {path}; {error}. Restore it, or remove the sandbox's folder") from error
    return cast(dict[str, Any], value)


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
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FolderHandle(Handle):
    """A launched sandbox, as far as its folder tells of it."""

    tick_s = TICK_S

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        return self._folder.name

    @property
    def labels(self) -> Mapping[str, str]:
        return cast(Mapping[str, str], self._read("spec").get("labels", {}))

    def run_times(self) -> tuple[float, float | None]:
        ended, spec, end = self.poll(), self._read("spec"), self._read("exit")
        if not spec or (ended is not None and not end):
            raise SandboxError(f"expected the folder of sandbox {self.name}; it was removed meanwhile: {self._folder}")
        return float(spec["created_at"]), None if ended is None else float(end["ended_at"])

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        wait_until(lambda: self.poll() is not None, float("inf") if timeout_s is None else timeout_s, self.tick_s)
        return self.poll()

    def _read(self, name: str) -> dict[str, Any]:
        return read(self._folder / f"{name}.json") or {}

    def _exit(self) -> Exit | None:
        end = self._read("exit")
        return Exit(cast(ExitReason, end["reason"]), end["code"]) if end else None


def wait_until(condition: Callable[[], bool], timeout_s: float, tick_s: float = TICK_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(tick_s)
    return True


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
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
