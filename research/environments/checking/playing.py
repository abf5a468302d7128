"""Plays an environment without a model, in a process of its own that is bounded in time and memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from research.environments.bring import MODULE, path_with
from research.environments.checking.findings import Player
from research.errors import BadEnvironment
from research.installation.home import Home
from research.installation.tiny_model import Note
from sandboxes.shown import how_it_ended, last_lines
from swarm.environments.bringing.memory import MOST_BYTES
from swarm.environments.brought import CODE

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_HUNG: Final = "Timeout ("
"""How the stacks begin that a play which hangs leaves behind."""


@dataclass(frozen=True, slots=True)
class PlayBounds:
    """How much is played, and what it may take."""

    plays: int = 64
    """Of each player."""
    play_s: float = 20.0
    """Seconds of one play."""
    answers: int = 200
    """In one play; plays with a model are bounded by its context and the episode's timeout."""
    seconds: float = 600.0
    """For all."""
    memory: int = MOST_BYTES
    """Bytes of address space."""


@dataclass(frozen=True, slots=True)
class Plays:
    """What playing came to."""

    players: Mapping[str, Player]
    faults: tuple[str, ...]
    example: Mapping[str, Any] | None
    """The first play whole: `player`, `task`, `messages`, `tools`, `reward`, `success`, `facts`."""


def play_alone(name: str, home: Home, packages: Sequence[Path], bounds: PlayBounds, note: Note) -> Plays:
    """Play an environment by players that need no model; raises BadEnvironment where its code cannot be loaded."""
    command = [
        sys.executable, "-m", MODULE, "measure", "--environment", name, "--environments", str(home.environments),
        "--plays", str(bounds.plays), "--seconds", str(bounds.play_s), "--answers", str(bounds.answers),
        "--memory", str(bounds.memory),
    ]  # fmt: skip
    variables = {**os.environ, **path_with(packages), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, env=variables, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=errors, text=True,
        ) as process,
    ):  # fmt: skip
        found = _Found(note)
        late = threading.Timer(bounds.seconds, _end_late, (process.pid, found))
        late.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                found.take(json.loads(line))
            process.wait()
        finally:
            late.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return _plays(found, process.returncode, _read(errors), home.environments / name / CODE, bounds)


def _end_late(pid: int, found: _Found) -> None:
    found.late = True
    os.killpg(pid, signal.SIGKILL)


class _Found:
    """What the process has told so far."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self.players: dict[str, Player] = {}
        self.faults: list[str] = []
        self.example: dict[str, Any] | None = None
        self.last = ""
        self.refused = ""
        self.whole = False
        self.late = False

    def take(self, told: dict[str, Any]) -> None:
        if "playing" in told:
            playing = told["playing"]
            self.last = f"{playing['player']}, task {playing['task']!r:.80}"
            self._note(f"playing: {playing['player']}")
        elif "example" in told:
            self.example = told["example"]
        elif "refused" in told:
            self.refused = told["refused"]
        elif "whole" in told:
            self.whole = told["whole"]
        elif "fault" in told:
            self.faults.append(told["fault"])
        else:
            self.players[told["player"]] = Player.model_validate(told)


def _plays(found: _Found, code: int, errors: str, folder: Path, bounds: PlayBounds) -> Plays:
    if found.refused:
        raise BadEnvironment(found.refused)
    faults, last = list(found.faults), found.last or "its code was loaded"
    if code and _HUNG in errors:
        where = _where(errors[errors.rindex(_HUNG) :].splitlines(), folder)
        faults.append(f"{last}: the play did not end within {bounds.play_s:g} s{where}")
    elif found.late:
        faults.append(f"{last}: all plays together did not end within {bounds.seconds:g} s")
    elif code or not found.whole:
        said = last_lines(errors, 1, 300) or "nothing"
        faults.append(f"{last}: its code ended its process {how_it_ended(code)}; it last said: {said}")
    return Plays(found.players, tuple(faults), found.example)


def _where(stacks: Iterable[str], folder: Path) -> str:
    """Return the place of the environment's own code in the stacks of a process that hung, innermost first."""
    for line in stacks:
        if (frame := _FRAME.search(line)) is not None and folder in Path(frame[1]).parents:
            return f" ({Path(frame[1]).name}, line {frame[2]})"
    return ""


def _read(errors: IO[str]) -> str:
    errors.seek(0)
    return errors.read()
