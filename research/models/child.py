"""A process that does the heavy part, watched: its lines go to whoever waits, its end is told in words."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from research.installation.tiny_model import Note, ended_by


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    error: str
    """What it wrote on its standard error."""

    @property
    def last(self) -> str:
        """The last line of its standard error."""
        return next((line.strip() for line in reversed(self.error.splitlines()) if line.strip()), "")

    @property
    def why(self) -> str:
        """Why it failed, in one line."""
        said = self.last if self.code >= 0 else ""
        return said or f"its process {ended_by(self.code)}"


def watched(command: Sequence[str], note: Note, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end and note each line of its output."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            text=True, errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                note(line.strip())
        errors.seek(0)
        return Ended(process.returncode, errors.read())
