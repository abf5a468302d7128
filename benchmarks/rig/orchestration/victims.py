"""Who of an installation may be killed: its living processes, by kind, and the attempt at a run that each works on.

A process is the installation's where its command line, working folder or environment names the installation's folder;
so no other process of the machine is ever met, whatever runs beside. Kinds are told by command lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

Command = Sequence[str]
_ATTEMPT: Final = re.compile(r"([0-9a-f]{16})-a(\d+)\b")
_HOMES: Final = ("AJET_HOME", "PREFECT_HOME")


def _runs(module: str, *words: str) -> Callable[[Command], bool]:
    """Tell whether a command is `python -m module`, with these words."""
    return lambda command: command[1:3] == ["-m", module] and all(word in command for word in words)


MAKER: Final = "maker of tiny models"
CONTROLLER: Final = "controller"
BRINGING_BACK: Final = ("Prefect's worker", "Prefect's server", "supervisor")
"""Those without whom a controller that was killed has no successor."""
OF_A_RUN: Final = ("evaluator", "client", "swarm server", "attempt", "shim")
"""Those whose death costs a run one of its tries."""
KINDS: Final[dict[str, Callable[[Command], bool]]] = {
    MAKER: _runs("swarm.backends.tiny_model"),
    "evaluator": _runs("swarm.environments", "evaluate"),
    "client": _runs("swarm.environments", "play"),
    "swarm server": _runs("swarm.server"),
    "attempt": _runs("research.runs.attempt"),
    "shim": lambda command: any(word.endswith("/sandboxes/shim.py") for word in command),
    CONTROLLER: _runs("research.orchestration.flow"),
    BRINGING_BACK[0]: _runs("prefect", "worker"),
    BRINGING_BACK[1]: _runs("prefect", "server"),
    BRINGING_BACK[2]: _runs("research", "up", "--work"),
}
"""By name, those that live shortest first: how a command line of the kind is told."""


@dataclass(frozen=True)
class Victim:
    """A living process; `run` and `attempt` are what it works on, empty and 0 where it is none's."""

    process: psutil.Process
    kind: str
    run: str = ""
    attempt: int = 0


def victims(home: Path) -> Iterator[Victim]:
    """Yield the processes of an installation that are of a known kind."""
    for process, command, where in _processes_of(home):
        for kind, is_of in KINDS.items():
            if is_of(command):
                found = _ATTEMPT.search(where)
                yield Victim(process, kind, *((found[1], int(found[2])) if found else ()))


def left(home: Path) -> list[str]:
    """Return the command lines of all processes of an installation, of whatever kind."""
    return [" ".join(command) for _, command, _ in _processes_of(home)]


def _processes_of(home: Path) -> Iterator[tuple[psutil.Process, list[str], str]]:
    """Yield each process with its command and where it works, in one text."""
    for process in psutil.process_iter():
        try:
            command = process.cmdline()  # empty for one that has ended and waits for its parent
            where = " ".join([*command, process.cwd()])
            if command and (f"{home}/" in f"{where}/" or _lives_in(home, process)):
                yield process, command, where
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _lives_in(home: Path, process: psutil.Process) -> bool:
    environment = process.environ()
    return any(f"{environment.get(name, '')}/".startswith(f"{home}/") for name in _HOMES)
