"""PID 1 of a container: runs the command, and writes down how it ended and what it left.

Run as `python3 -I -S /opt/ajet/init.py CONFIG` (JSON of `sandboxes.docker.launch.init_config`); standard library of
Python 3.9 alone.
- Nobody else can write to its standard error: it is not dumpable before the command exists, and the command has its own
  pipes. The command can neither starve it nor make sockets outside a network namespace (`sandboxes.inside.seccomp`).
- The time limit, a SIGTERM from outside (a second one at once) or the death of whoever serves the tied socket end the
  command: terminated, then killed after the grace. A gateway that is only stopped or busy does not count as dead.
- Frames on standard error, one JSON object a line: {"exit", "code", "dropped", "oom_kills"}, then for each result, read
  when nothing else lives, {"result", "data"} ... {"result", "sha256"} or {"result", "refused"}.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import hashlib
import importlib
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

TAIL_BYTES = 65_536
SHORT_LINE = 32
"""Lines shorter than this are charged as if they were so long: every line costs the engine's log a hundred bytes."""
OUTPUT_WAIT_S = 5.0
CHUNK_BYTES = 9_000
"""So much of a result in one frame: with its base64 below the 16 KiB at which the engine cuts a line."""
LOOK_S = 1.0
GONE_S = 5.0
"""How long nobody may serve the socket: as long as the relay lets connections wait for one that is started anew."""
_NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED})
WORKSPACE = "/workspace"
FOLDERS = ("home", "tmp", "results")
SOCKET_WAIT_S = 10.0
EMPTY_WAIT_S = 10.0
REAPED_AT_ONCE = 1_000
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
SI_USER = 0
_PR_SET_DUMPABLE = 4
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class Output:
    """The command's output on its way out: its beginning up to a bound, the rest counted, its end kept for last."""

    def __init__(self, write: Callable[[bytes], None], most_bytes: int) -> None:
        self._write = write
        self._bytes_left = most_bytes
        self._lines_left = most_bytes // SHORT_LINE
        self._cut = False
        self._dropped = 0
        self._tail = bytearray()
        self._taking = False

    @property
    def dropped(self) -> int:
        return self._dropped - len(self._tail)

    def take(self, pipe: int) -> None:
        """Take all that comes out of `pipe`, until the last process that could write any is gone."""
        while data := os.read(pipe, 1 << 16):
            self._taking = True
            self.feed(data)
            self._taking = False

    def settle(self, taker: threading.Thread) -> None:
        """Wait for the emptied container's output: for a slow engine, not for a pipe that is held outside."""
        taker.join(OUTPUT_WAIT_S)
        while taker.is_alive() and self._taking:
            taker.join(OUTPUT_WAIT_S)

    def feed(self, data: bytes) -> None:
        head = b"" if self._cut else data[: self._bytes_left]
        if head.count(b"\n") > self._lines_left:
            beyond = head.split(b"\n", self._lines_left)[-1]
            head = head[: len(head) - len(beyond)]
        self._bytes_left -= len(head)
        self._lines_left -= head.count(b"\n")
        self._cut = self._cut or len(head) < len(data)
        self._dropped += len(data) - len(head)
        self._tail += data[len(head) :]
        del self._tail[:-TAIL_BYTES]
        self._emit(head)

    def finish(self) -> None:
        if self._dropped:
            note = f"\n[{self.dropped} bytes of output were dropped here; the last {len(self._tail)} follow]\n"
            self._emit(note.encode() + bytes(self._tail))

    def _emit(self, data: bytes) -> None:
        try:
            self._write(data)
        except OSError:
            # Nobody reads any more. The command must not block on that: its output is dropped, and counted.
            self._cut = True
            self._dropped += len(data)


def open_result(workspace: int, name: str, most_bytes: int) -> int:
    """Return a descriptor of the result `name`; raise ValueError when it is no plain file of at most so many bytes."""
    # Not blocking: a pipe would wait for a writer for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        folder = os.open("results", flags | os.O_DIRECTORY, dir_fd=workspace)
        try:
            file = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        words = {errno.ENOENT: "missing", errno.ELOOP: "a symbolic link", errno.ENOTDIR: "its folder is not a folder"}
        raise ValueError(words.get(error.errno or 0, f"cannot be opened: {error.strerror}")) from error
    try:
        check_result(os.fstat(file), os.fstat(workspace).st_dev, most_bytes)
    except ValueError:
        os.close(file)
        raise
    return file


def check_result(found: os.stat_result, device: int, most_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("not a regular file")
    if found.st_nlink != 1:
        raise ValueError("has a second name (a hard link)")
    if found.st_dev != device:
        raise ValueError("not in the workspace")
    if found.st_size > most_bytes:
        raise ValueError(f"too large: {found.st_size} bytes; at most {most_bytes}")


def collect(workspace: int, name: str, most_bytes: int) -> Iterator[dict[str, Any]]:
    digest = hashlib.sha256()
    try:
        file = open_result(workspace, name, most_bytes)
        while chunk := os.read(file, CHUNK_BYTES):
            digest.update(chunk)
            yield {"result": name, "data": base64.b64encode(chunk).decode("ascii")}
    except (ValueError, OSError) as error:
        yield {"result": name, "refused": str(error)}
        return
    os.close(file)
    yield {"result": name, "sha256": digest.hexdigest()}


class ParentWatchdog:
    """A tie to the socket at `path`; it holds from the beginning. `clock` is in seconds."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._served_at = self._look_at = clock()

    def is_parent_gone(self) -> bool:
        """Look, once every LOOK_S; return whether nobody has served the socket for GONE_S."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            if is_served(self._path):
                self._served_at = now
        return now - self._served_at >= GONE_S


def is_served(path: str) -> bool:
    """Return whether somebody listens at a Unix socket, even if connections have to wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) not in _NOBODY


class Watch:
    """The running command: its end, its time limit, requests to stop it, and the orphans it leaves."""

    def __init__(
        self, child: int, time_limit_s: float | None, grace_s: float, watchdog: ParentWatchdog | None = None
    ) -> None:
        self._child = child
        self._watchdog = watchdog
        self._status: int | None = None
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._grace_s = grace_s
        self._kill_at: float | None = None
        self._asked: str | None = None

    def wait(self) -> tuple[str, int]:
        """Return the reason and code once the command has ended and nothing else is left."""
        while self._status is None:
            now = time.monotonic()
            if self._deadline is not None and now >= self._deadline:
                self._terminate("timeout")
            if self._watchdog is not None and self._asked is None and self._watchdog.is_parent_gone():
                self._terminate("stopped")
            if self._kill_at is not None and now >= self._kill_at:
                kill_all()
            ends = [end for end in (self._deadline if self._asked is None else None, self._kill_at) if end is not None]
            wait_s = 60.0 if self._watchdog is None else 1.0
            if ends:
                wait_s = min(max(0.0, min(ends) - time.monotonic()), wait_s)
            if is_stop_request(signal.sigtimedwait(HEARD, wait_s)):
                if self._asked is not None:
                    self._kill_at = time.monotonic()
                self._terminate("stopped")
            self._reap()
        deadline = time.monotonic() + EMPTY_WAIT_S
        kill_all()
        while self._reap() and time.monotonic() < deadline:
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)
            kill_all()
        code = os.waitstatus_to_exitcode(self._status)
        return self._asked or ("error" if code else "finished"), code

    def _terminate(self, reason: str) -> None:
        if self._asked is None:
            self._asked = reason
            self._kill_at = time.monotonic() + self._grace_s
            with suppress(ProcessLookupError):  # the group is empty
                os.killpg(self._child, signal.SIGTERM)

    def _reap(self) -> bool:
        for _ in range(REAPED_AT_ONCE):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._status = status
                return True
        # More may be waiting, and the signal that told of them is used up.
        signal.raise_signal(signal.SIGCHLD)
        return True


def is_stop_request(heard: signal.struct_siginfo | None) -> bool:
    """Return whether that was a request from outside the container: the kernel fills in the sender of a kill(), 0 when
    it is in no process of ours; other kinds of signal bear whatever number their sender likes."""
    return (
        heard is not None
        and heard.si_signo in (signal.SIGTERM, signal.SIGINT)
        and heard.si_code == SI_USER
        and heard.si_pid == 0
    )


def kill_all() -> None:
    with suppress(ProcessLookupError):  # there is none
        os.kill(-1, signal.SIGKILL)


def spawn(command: list[str], output: int, oom_score: int) -> int:
    """Start the command in a process group of its own; it is what the kernel kills first when memory is short."""
    os.write(oom_score, b"500")
    try:
        pipes = [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        return os.posix_spawnp(
            command[0], command, os.environ, setpgroup=0, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), *pipes],
        )  # fmt: skip
    finally:
        os.write(oom_score, b"0")


def serve_ports(ports: Mapping[int, str], output: Output) -> bool:
    """Have the relay listen, once the sockets it leads to exist; return whether the command may still start."""
    if not ports:
        return True
    deadline = time.monotonic() + SOCKET_WAIT_S
    while missing := [path for path in ports.values() if not os.path.exists(path)]:
        if is_stop_request(signal.sigtimedwait(HEARD, 0.02)):
            return False
        if time.monotonic() >= deadline:
            output.feed(f"[no socket at {', '.join(missing)} after {SOCKET_WAIT_S:.0f} s]\n".encode())
            break
    import_sibling("relay").serve(ports)
    return True


def import_sibling(module: str) -> Any:
    folder = os.path.dirname(os.path.abspath(__file__))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def oom_kills() -> int:
    """Return how many processes of this container the kernel killed for want of memory, as far as can be seen."""
    for path in _OOM_COUNTERS:
        try:
            with open(path, encoding="ascii") as file:
                counts = dict(line.split() for line in file)
        except (OSError, ValueError):
            continue
        return int(counts.get("oom_kill", 0))
    return 0


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def emit(frame: Mapping[str, Any]) -> None:
    write_all(2, json.dumps(frame, separators=(",", ":")).encode() + b"\n")


def watch(config: Mapping[str, Any], output: Output, oom_score: int) -> tuple[str, int]:
    if not serve_ports({int(port): path for port, path in config["ports"].items()}, output):
        return "stopped", -signal.SIGTERM
    inward, outward = os.pipe()
    pumping = threading.Thread(target=output.take, args=(inward,), daemon=True)
    pumping.start()
    try:
        child = spawn(config["command"], outward, oom_score)
    except (OSError, ValueError) as error:
        output.feed(f"cannot start {config['command']}: {error}\n".encode(errors="replace"))
        return "error", 127
    os.close(outward)
    tied = config.get("tied")
    tie = None if tied is None else ParentWatchdog(tied)
    ending = Watch(child, config["time_limit_s"], config["grace_s"], tie).wait()
    output.settle(pumping)
    return ending


def main(config: Mapping[str, Any], folder: str = WORKSPACE) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    oom_score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)  # cannot be opened once inspection is forbidden
    # no process of the same user traces this one, or opens what /proc shows of it
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")
    import_sibling("seccomp").install()
    os.chdir(folder)
    workspace = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    for name in FOLDERS:
        os.makedirs(name, mode=0o700, exist_ok=True)
    output = Output(lambda data: write_all(1, data), config["output_bytes"])
    reason, code = watch(config, output, oom_score)
    output.finish()
    emit({"exit": reason, "code": code, "dropped": output.dropped, "oom_kills": oom_kills()})
    for name, most_bytes in config["results"].items():
        for frame in collect(workspace, name, most_bytes):
            emit(frame)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if os.getpid() != 1:
        sys.exit("this is PID 1 of a container: it kills every other process it can; found another PID")
    # At once: a thread that still relays must not hold up the end.
    os._exit(main(json.loads(sys.argv[1])))
