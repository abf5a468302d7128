"""PID 1 of a container: starts the command, watches it, and writes down how it ended and what it left.

Run as `python3 -I -S /opt/ajet/init.py CONFIG`, where CONFIG is the JSON of `sandboxes.docker.options.init_config`.
The standard library of Python 3.9 is all it needs. It promises:

- what it writes to its standard error can be written by nobody else: it is not dumpable before the command exists,
  so that code of the same user can neither trace it nor open its files, and the command has pipes of its own;
- the command can neither starve nor limit it, nor make sockets that no network namespace holds (`filter.py`);
- of the command's output the first `output_bytes` go to its standard output, the rest is counted, and the last
  64 KiB of it follow when the command has ended; so that the engine's log of it has a bound (`output.py`);
- the time limit, and a SIGTERM from outside the container (code inside cannot pose as the engine), end the command:
  terminated, then killed after the grace, or at once by a second SIGTERM; so does the death of whoever holds the door
  of a container that is tied to it (`tie.py`);
- orphans are reaped, and nothing but this process lives any more when the results are read;
- a result is a regular file of the workspace with one name; anything else is refused with the reason (`results.py`).

Frames, one JSON object a line on standard error: {"exit": reason, "code", "dropped", "oom_kills"}, for every result
{"result": name, "data": base64} ... {"result": name, "sha256"} or {"result": name, "refused": why}. They lie
in the engine's log until somebody collects them; it does not know who or when.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandboxes.inside.output import Output
    from sandboxes.inside.tie import Tie

WORKSPACE = "/workspace"
FOLDERS = ("home", "tmp", "results")
SOCKET_WAIT_S = 10.0
EMPTY_WAIT_S = 10.0
REAPED_AT_ONCE = 1_000
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
SI_USER = 0
_PR_SET_DUMPABLE = 4
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class Watch:
    """The running command: its end, its time limit, requests to stop it, and the orphans it leaves."""

    def __init__(self, child: int, time_limit_s: float | None, grace_s: float, tie: Tie | None = None) -> None:
        self._child = child
        self._tie = tie
        self._status: int | None = None
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._grace_s = grace_s
        self._kill_at: float | None = None
        self._asked: str | None = None

    def to_end(self) -> tuple[str, int]:
        """Return the reason and code once the command has ended and nothing else is left."""
        while self._status is None:
            self._enforce()
            self._hear(self._patience_s())
            self._reap()
        self._sweep()
        code = os.waitstatus_to_exitcode(self._status)
        return self._asked or ("error" if code else "finished"), code

    def _patience_s(self) -> float:
        ends = [end for end in (self._deadline if self._asked is None else None, self._kill_at) if end is not None]
        most_s = 60.0 if self._tie is None else 1.0
        return min(max(0.0, min(ends) - time.monotonic()), most_s) if ends else most_s

    def _hear(self, timeout_s: float) -> None:
        if asked_to_stop(signal.sigtimedwait(HEARD, timeout_s)):
            if self._asked is not None:
                self._kill_at = time.monotonic()
            self._end("stopped")

    def _enforce(self) -> None:
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            self._end("timeout")
        if self._tie is not None and self._asked is None and self._tie.broken():
            self._end("stopped")
        if self._kill_at is not None and now >= self._kill_at:
            kill_all()

    def _end(self, reason: str) -> None:
        if self._asked is None:
            self._asked = reason
            self._kill_at = time.monotonic() + self._grace_s
            signal_group(self._child, signal.SIGTERM)

    def _reap(self) -> bool:
        """Bury the dead; return whether anybody lives."""
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

    def _sweep(self) -> None:
        """Kill everything left. The wait is bounded: what cannot die now does so when this process ends."""
        deadline = time.monotonic() + EMPTY_WAIT_S
        kill_all()
        while self._reap() and time.monotonic() < deadline:
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)
            kill_all()


def asked_to_stop(heard: signal.struct_siginfo | None) -> bool:
    """Return whether that was a request from outside the container.

    The kernel fills in the sender of a kill(): 0 when it is in no process of ours. Other kinds of signal bear
    whatever number their sender likes.
    """
    return (
        heard is not None
        and heard.si_signo in (signal.SIGTERM, signal.SIGINT)
        and heard.si_code == SI_USER
        and heard.si_pid == 0
    )


def signal_group(leader: int, number: int) -> None:
    """Signal the command's process group."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return  # it is empty


def kill_all() -> None:
    """Kill every process but this one."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return  # there is none


def forbid_inspection() -> None:
    """Keep processes of the same user from tracing this one and from opening what /proc shows of it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def spawn(command: list[str], output: int, oom_score: int) -> int:
    """Start the command in a process group of its own; it is what the kernel kills first when memory is short."""
    os.write(oom_score, b"500")
    try:
        return os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setpgroup=0,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    finally:
        os.write(oom_score, b"0")


def serve_ports(ports: Mapping[int, str], output: Output) -> bool:
    """Have the relay listen, once the sockets it leads to exist; return whether the command may still start."""
    if not ports:
        return True
    deadline = time.monotonic() + SOCKET_WAIT_S
    while missing := [path for path in ports.values() if not os.path.exists(path)]:
        if asked_to_stop(signal.sigtimedwait(HEARD, 0.02)):
            return False
        if time.monotonic() >= deadline:
            output.feed(f"[no socket at {', '.join(missing)} after {SOCKET_WAIT_S:.0f} s]\n".encode())
            break
    beside("relay").serve(ports)
    return True


def beside(module: str) -> Any:
    """Return a module that lies beside this file."""
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
    """Write all of `data`, however slowly it is taken."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def emit(frame: Mapping[str, Any]) -> None:
    """Write one frame."""
    write_all(2, json.dumps(frame, separators=(",", ":")).encode() + b"\n")


def watch(config: Mapping[str, Any], output: Output, oom_score: int) -> tuple[str, int]:
    """Run the ordered command to its end."""
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
    tie = None if tied is None else beside("tie").Tie(tied)
    ending = Watch(child, config["time_limit_s"], config["grace_s"], tie).to_end()
    output.settle(pumping)
    return ending


def main(config: Mapping[str, Any], folder: str = WORKSPACE) -> int:
    """Do as ordered; return the container's exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    oom_score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)  # cannot be opened once inspection is forbidden
    forbid_inspection()
    beside("filter").install()
    os.chdir(folder)
    workspace = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    for name in FOLDERS:
        os.makedirs(name, mode=0o700, exist_ok=True)
    output: Output = beside("output").Output(lambda data: write_all(1, data), config["output_bytes"])
    reason, code = watch(config, output, oom_score)
    output.finish()
    emit({"exit": reason, "code": code, "dropped": output.dropped, "oom_kills": oom_kills()})
    for name, most_bytes in config["results"].items():
        for frame in beside("results").collect(workspace, name, most_bytes):
            emit(frame)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if os.getpid() != 1:
        sys.exit("this is PID 1 of a container: it kills every other process it can; found another PID")
    # At once: a thread that still relays must not hold up the end.
    os._exit(main(json.loads(sys.argv[1])))
