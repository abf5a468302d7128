from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from research.cli.app import app, run
from research.cli.lazy import LazyGroup


@dataclass(frozen=True)
class Ended:
    """How the command ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of an error; fails if there is more than one, or a traceback."""
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err

    def refused(self, *names: str, code: int = 2) -> str:
        """Return the one line of a refusal, which names all of these."""
        assert (self.code, [name for name in names if name not in self.line]) == (code, []), self
        return self.line


Ajet = Callable[..., Ended]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of its own, and no settings from outside."""
    for name in [name for name in os.environ if name.startswith(("AJET_", "OPENAI_", "PREFECT_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AJET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AJET_SANDBOX", "process")
    monkeypatch.setenv("WANDB_MODE", "offline")  # whoever runs the tests may be logged in
    return tmp_path / "home"


@pytest.fixture
def ajet(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ajet:
    """Run the command line in this process."""

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["ajet", *arguments])
        with pytest.raises(SystemExit) as stopped:
            run()
        out, err = capfd.readouterr()
        return Ended(int(stopped.value.code or 0), out, err)

    return call


def every_command() -> dict[str, Any]:
    """Return each command of the command line, groups too, by its words."""
    found: dict[str, Any] = {}

    def take(command: Any, path: str) -> None:
        found[path] = command
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                loaded = command.lazy[name].load(name) if isinstance(command, LazyGroup) else command.commands[name]
                take(loaded, f"{path} {name}")

    take(typer.main.get_command(app), "ajet")
    return found
