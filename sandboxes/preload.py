"""Processes forked from one that has imported what they need, where a new one would import it again.

A `Preloader` starts a process that imports modules, and then forks the shims of commands that run
one of them: such a shim forks its command too. A command may set forks of itself aside for the processes that it will
start, before it has threads, a loop or connections (`reserve`). What is forked has the session, group, folder, standard
streams, variables and command line that a new process would have, no descriptor of who forked it, and random numbers of
its own. Linux alone. Nothing depends on it: one that is gone, that cannot fork safely (threads, CUDA), or that began
with other variables than a command is given leaves a plain start.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

from sandboxes import shim

SWITCH: Final = "AJET_PRELOAD"
"""Names the variable that is 0 where each process is to import what it needs by itself."""
READY_S: Final = 120.0
"""For the modules to be imported, which a new process would do as well."""
_ROOM: Final = 4096
"""Bytes that a forked process has for its command line."""
_DESCRIPTORS: Final = 4096
_spare: list[Spare] = []
_forked = False


class Preloader:
    """Forks the shims of commands that have the environment it began with; ends with who holds it, and they do not."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.environment = dict(environment)
        self._channel, other = socket.socketpair()
        self._channel.settimeout(READY_S)
        main = "import sys; from sandboxes.preload import main; sys.exit(main())"  # no second copy of it as `__main__`
        command = [sys.executable, "-P", "-c", main, str(other.fileno()), *modules, "-" * _ROOM]
        with other, open(log, "wb") as output:
            self._process = subprocess.Popen(
                command, env=self.environment, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip
        self._replies = self._channel.makefile("r")
        self._ready = False

    def launch(self, folder: Path) -> bool:
        """Return whether a forked shim has started the command of a sandbox's folder; waits until it can be forked."""
        try:
            self._ready = self._ready or self._replies.readline() == "ready\n"
            if self._ready:
                self._channel.sendall(f"{folder}\n".encode())
                return self._replies.readline() == "0\n"
        except (OSError, ValueError):  # it is gone, was suspended, or is closed
            self.close()
        return False

    def close(self) -> None:
        self._ready = False
        self._replies.close()
        self._channel.close()
        self._process.kill()  # it has nothing to put in order
        self._process.wait()


class Spare:
    """A fork of this process that waits for what to run; it ends with this process."""

    def __init__(self) -> None:
        reading, self._order = os.pipe()
        self.process = subprocess.Popen(("spare",), preexec_fn=partial(_await_order, reading), pass_fds=[reading])
        os.close(reading)

    def begin(self, order: Mapping[str, Any]) -> bool:
        """Return whether it runs what the order says, as `run_module` takes it."""
        with suppress(OSError), open(self._order, "wb") as pipe:
            pipe.write(json.dumps(order).encode())
            pipe.flush()
            return self.process.poll() is None
        return False


class SpareProcess:
    """A spare that runs, as asyncio's own processes are."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._process, self._ended = process, loop.create_future()
        watched = os.pidfd_open(process.pid)

        def note_end() -> None:
            loop.remove_reader(watched)
            os.close(watched)
            self._ended.set_result(process.wait())

        loop.add_reader(watched, note_end)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return int(await asyncio.shield(self._ended))

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def reserve(count: int) -> None:
    """Set forks aside for processes of modules that are imported, where this process was forked itself."""
    if _forked and threading.active_count() == 1:
        _spare.extend(Spare() for _ in range(count))


def start_spare(
    module: str, arguments: Iterable[str], directory: Path, environment: Mapping[str, str], log: Path
) -> SpareProcess | None:
    """Run a module in a spare; None where there is none, or where Python itself would begin otherwise."""
    if _find(module) is None or any(
        os.environ.get(name) != environment.get(name)
        for name in (os.environ | environment)
        if name.startswith(("PYTHON", "OMP_", "MKL_", "LD_"))
    ):
        return None
    order = {
        "module": module, "arguments": [*arguments], "directory": str(directory), "environment": dict(environment),
        "log": str(log),
    }  # fmt: skip
    while _spare:
        if (spare := _spare.pop()).begin(order):
            return SpareProcess(spare.process)
    return None


def run_module(module: str, arguments: Sequence[str], directory: str, environment: Mapping[str, str]) -> NoReturn:
    """Be the process of `python -m module arguments`, in a fork: call its `main`, and end."""
    global _forked
    _forked = True
    code: Any = 1
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python begins, whatever `subprocess` has restored
        signal.signal(number, signal.SIG_IGN)
    try:
        main = _find(module)
        assert main is not None
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [str(main.__file__), *arguments]
        sys.modules["__main__"] = main
        _rename((sys.executable, "-m", module, *arguments))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(random.SystemRandom().getrandbits(32))
        code = main.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  -- as Python itself ends with it
        traceback.print_exc()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    with suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its forks
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _await_order(reading: int) -> NoReturn:
    """Wait, in a fork, for an order; end where none comes."""
    _close_all(but=reading)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    if not text:
        os._exit(0)
    order = json.loads(text)
    _redirect(order.pop("log"))
    run_module(**order)


def _redirect(log: str) -> None:
    with open(os.devnull, "rb") as nothing, open(log, "ab") as output:
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source.fileno(), target)


def _close_all(but: int = -1) -> None:
    """Close what a new process would not have been given; whoever forks waits for that."""
    for first, end in ((3, but), (but + 1, _DESCRIPTORS)) if but >= 0 else ((3, _DESCRIPTORS),):
        os.closerange(first, end)


def _find(module: str) -> Any:
    """Return the imported module that `python -m` runs, if it is one with a `main`."""
    found = sys.modules.get(f"{module}.__main__") or sys.modules.get(module)
    return found if hasattr(found, "main") else None


def _rename(command: Sequence[str]) -> None:
    """Show a command as this process's own, as far as there is room."""
    with open("/proc/self/stat") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[45:47])
    shown = "\0".join(command).encode()[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _fork_command(spec: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start a command in a fork of this shim, or by itself where it is not of an imported module."""
    python, flag, module, *arguments = [*spec["command"], "", ""]
    if (python, flag) != (sys.executable, "-m") or _find(module) is None:
        return shim.start_command(spec)

    def run() -> NoReturn:
        _close_all()
        run_module(module, arguments[:-2], spec["directory"], spec["environment"])

    return shim.start_command(spec, preexec_fn=run)


def _serve(channel: int) -> Path | None:
    """Fork a shim for each folder that is asked for; return one in the fork, None once nobody asks any more."""
    os.write(channel, b"ready\n")
    while folder := os.read(channel, _ROOM).decode().rstrip("\n"):  # asked for one at a time
        if (child := os.fork()) == 0:
            return Path(folder)
        os.write(channel, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return None


def main() -> int:
    channel, *modules, _ = sys.argv[1:]
    for module in modules:
        import_module(module)
    torch = sys.modules.get("torch")
    if len(os.listdir("/proc/self/task")) > 1 or (torch is not None and torch.version.cuda is not None):
        sys.stderr.write("expected one thread and no CUDA, so that it can be forked; found others\n")
        return 1
    gc.collect()
    gc.freeze()  # the forks share what is not collected
    if (folder := _serve(int(channel))) is None:
        return 0
    _close_all()
    os.chdir(folder)
    _redirect("shim.log")
    _rename((sys.executable, "-I", "-S", shim.__file__, str(folder)))
    return shim.main(folder, _fork_command)
