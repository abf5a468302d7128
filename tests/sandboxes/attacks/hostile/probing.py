"""Runs attempts one by one, each in a process of its own, and reports which of them got anything.

An attempt returns what it got hold of (anything true is a success of the attacker), returns nothing, or raises.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

Attempt = Callable[[], Any]
ATTEMPT_S = 20.0
FACTS: dict[str, Any] = {}
"""What the attacker is told about the machine outside: more than it could find out."""

OWN: list[int] = []
"""The descriptors by which an attempt reports."""


def attempt(tried: str) -> Callable[[Attempt], Attempt]:
    """Mark a function as an attempt; `tried` says what it does, in the words of the table in docs/attacks.md."""

    def marked(function: Attempt) -> Attempt:
        function.tried = tried  # type: ignore[attr-defined]
        return function

    return marked


def trying(tried: str, *acts: Attempt | tuple[Any, ...]) -> Attempt:
    """Return the attempt that does the first act which is not refused; a tuple is a system call."""
    return attempt(tried)(lambda: first(*(partial(syscall, *act) if isinstance(act, tuple) else act for act in acts)))


def looking(tried: str, look: Attempt) -> Attempt:
    """Return the attempt that gets what a look shows; nothing is nothing."""
    return attempt(tried)(look)


def attempts(module: str) -> dict[str, Attempt]:
    """Return the attempts of a module beside this one, in the order they are written."""
    found = vars(importlib.import_module(module))
    return {name: value for name, value in found.items() if hasattr(value, "tried")}


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call; raise OSError as the kernel says."""
    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def first(*acts: Attempt) -> tuple[Attempt, Any]:
    """Return the first act that is not refused, with what it gave; raise the last refusal."""
    refusal = OSError("there was nothing to try")
    for act in acts:
        try:
            return act, act()
        except OSError as error:
            refusal = error
    raise refusal


def read(path: str) -> bytes:
    """Return the first bytes of a file; raise OSError where there are none."""
    with open(path, "rb") as file:
        if content := file.read(4):
            return content
    raise OSError("it is empty")


def one(function: Attempt) -> dict[str, Any]:
    """Run an attempt in a process of its own; return what it got and what it was told."""
    reader, writer = os.pipe()
    OWN[:] = [reader, writer]
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(_outcome(function))[:60_000].encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], ATTEMPT_S)
    said = os.read(reader, 65_536) if ready else b""
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        return dict(json.loads(said))
    return {"got": None, "said": "hung" if not ready else f"died of signal {os.WTERMSIG(status)}"}


def _outcome(function: Attempt) -> dict[str, Any]:
    try:
        got = function()
    except OSError as error:
        return {"got": None, "said": type(error).__name__ if error.errno is None else _name(error.errno)}
    except Exception as error:
        return {"got": None, "said": repr(error)[:200]}
    return {"got": None if not got else repr(got)[:400], "said": "nothing" if not got else ""}


def _name(code: int) -> str:
    import errno

    return errno.errorcode.get(code, str(code))


def listen() -> None:
    """Be a neighbour: take connections at the port that the attackers know."""
    import socket

    with socket.create_server(("0.0.0.0", FACTS["port"])) as listener:
        while True:
            listener.accept()[0].close()


def main(report: str, *modules: str) -> None:
    """Run all attempts of some modules; write the report to `report`, - being standard output."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "facts.json")) as file:
        FACTS.update(json.load(file))
    if report == "--listen":
        listen()
    found = {name: one(function) for module in modules for name, function in attempts(module).items()}
    if report == "-":
        print(json.dumps(found))
        return
    os.makedirs(os.path.dirname(report), exist_ok=True)
    with open(report, "w") as out:
        json.dump(found, out)


if __name__ == "__main__":
    sys.modules["probing"] = sys.modules["__main__"]
    main(*sys.argv[1:])
