"""Processes forked from one that has imported what they need, where a new one would import it again.

A `Preloader` starts a process that imports modules and then forks the shims of commands; such a shim forks a command
that is `python -m` one of these modules. The command may set forks of itself aside for processes that it will start,
before it has threads, a loop or connections (`reserve`, `start_spare`). What is forked has the session, group, folder,
streams, variables and command line that a new process would have, none of who forked it but what was imported, and
random numbers of its own. Where nothing can be forked (it is gone, has threads or CUDA, began with other variables, the
system is not Linux) a process is started as ever.
"""

import asyncio
import atexit
import ctypes
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

from sandboxes import shim

SWITCH: Final = "AJET_PRELOAD"
"""Names the variable that is 0 where each process is to import what it needs by itself."""
READY_S: Final = 120.0
"""For modules to be imported, which a new process would do as well."""
_ROOM: Final = 4096
"""Bytes that a forked process has for its command line."""
_READ_AT_START: Final = ("PYTHON", "OMP_", "MKL_", "LD_")
"""How variables begin that count for Python and its libraries as they start."""
_spares: list[tuple[subprocess.Popen[bytes], int]] = []
"""Forks of this process, and the pipes on which they wait for what to run."""
_forked = False


class Preloader:
    """Forks the shims of commands that have the environment it began with; ends with its holder, and they do not."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.environment = dict(environment)
        self._channel, other = socket.socketpair()
        self._channel.settimeout(READY_S)
        main = "import sys; from sandboxes.preload import main; sys.exit(main())"  # no second copy of it as `__main__`
        with other, open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", main, str(other.fileno()), *modules, "-" * _ROOM],
                env=self.environment, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._ready = False
        self.close = weakref.finalize(self, _end, self._channel, process)

    def launch(self, folder: Path) -> bool:
        """Return whether a forked shim has started the command of a sandbox's folder; waits until it can be forked."""
        try:
            self._ready = self._ready or self._channel.recv(_ROOM) == b"ready\n"
            if self._ready:
                self._channel.sendall(f"{folder}\n".encode())
                return self._channel.recv(_ROOM) == b"0\n"
        except OSError:  # it is gone, or was suspended
            self.close()
        return False


def _end(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    process.kill()  # it has nothing to put in order
    process.wait()


def reserve(count: int) -> None:
    """Set forks aside for processes of imported modules, where this process was forked itself; they end with it."""
    with suppress(OSError):  # of a machine that has no room for them
        for _ in range(count if _forked and threading.active_count() == 1 else 0):
            reading, writing = os.pipe()
            wait = partial(_await_order, reading)
            _spares.append((subprocess.Popen(("spare",), preexec_fn=wait, pass_fds=[reading]), writing))
            os.close(reading)


def start_spare(
    module: str, arguments: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path
) -> tuple[subprocess.Popen[bytes], asyncio.Future[int]] | None:
    """Run a module in a spare, and return it with its exit code to come; None where there is none, or where Python
    would begin otherwise in that environment."""
    counts = [name for name in {*os.environ, *environment} if name.startswith(_READ_AT_START)]
    if any(os.environ.get(name) != environment.get(name) for name in counts):
        return None
    order = [str(log), module, list(arguments), str(directory), dict(environment)]
    while _spares and _find(module):
        process, pipe = _spares.pop()
        with suppress(OSError):  # of one that was killed, or where no pidfd is to be had
            ended = _end_of(process)  # before the order, which is given once
            with open(pipe, "wb") as file:
                file.write(json.dumps(order).encode())
            return process, ended
    return None


def _end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    loop, watched = asyncio.get_running_loop(), os.pidfd_open(process.pid)
    ended = loop.create_future()

    def note_end() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        ended.set_result(process.wait())

    loop.add_reader(watched, note_end)
    return ended


def _await_order(reading: int) -> NoReturn:
    _close_all(but=reading)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    if not text:
        os._exit(0)
    log, *what = json.loads(text)
    _redirect(log)
    _run(*what)


def _run(module: str, arguments: Sequence[str], directory: str, environment: Mapping[str, str]) -> NoReturn:
    """Be the process of `python -m module arguments`: call its `main`, and end."""
    global _forked
    _forked = True
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python begins, whatever `subprocess` has restored
        signal.signal(number, signal.SIG_IGN)
    code: Any = 1
    try:
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.modules["__main__"] = main = _find(module)
        sys.argv = [main.__file__, *arguments]
        _rename((sys.executable, "-m", module, *arguments))
        if "numpy" in sys.modules:  # `random` is seeded anew by Python, torch as it always begins
            sys.modules["numpy"].random.seed(random.SystemRandom().getrandbits(32))
        code = main.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  -- Python ends with any of them
        traceback.print_exc()
    with suppress(Exception):  # as multiprocessing ends its forks
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _find(module: str) -> Any:
    """Return the imported module that `python -m module` runs, if it is one with a `main`."""
    found = sys.modules.get(f"{module}.__main__") or sys.modules.get(module)
    return found if hasattr(found, "main") else None


def _close_all(but: int = 2) -> None:
    """Close what a new process would not have been given: `subprocess` waits for its own, others for a lock."""
    os.closerange(3, but)
    os.closerange(but + 1, _ROOM)


def _redirect(log: str) -> None:
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def _rename(command: Sequence[str]) -> None:
    """Show a command as this process's own, as far as there is room."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    shown = "\0".join(command).encode()[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _fork_command(spec: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start a command in a fork of this shim, or by itself where it is not of an imported module."""
    words: list[str] = spec["command"]
    python, flag, module, *arguments = (*words, "", "")

    def run() -> NoReturn:
        _close_all()
        _run(module, arguments[:-2], spec["directory"], spec["environment"])

    if (python, flag) == (sys.executable, "-m") and _find(module) is not None:
        with suppress(OSError):  # of a machine that has no room for a fork of all that was imported
            return shim.start_command(spec, preexec_fn=run)
    return shim.start_command(spec)


def main() -> int:
    channel, *modules, _ = sys.argv[1:]
    for module in modules:
        import_module(module)
    torch = sys.modules.get("torch")
    if len(os.listdir("/proc/self/task")) > 1 or (torch is not None and torch.version.cuda is not None):
        sys.stderr.write("expected one thread and no CUDA, so that it can be forked; found others\n")
        return 1
    gc.collect()
    gc.freeze()  # its forks share what is not collected
    os.write(int(channel), b"ready\n")
    while folder := os.read(int(channel), _ROOM).decode().rstrip("\n"):  # shims are asked for one at a time
        if (child := os.fork()) == 0:
            break
        os.write(int(channel), b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        return 0  # nobody asks any more
    _close_all()
    os.chdir(folder)
    _redirect("shim.log")
    _rename((sys.executable, "-I", "-S", shim.__file__, folder))
    return shim.main(Path(folder), _fork_command)
