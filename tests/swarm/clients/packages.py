"""Packages that only some tests need, each set in a folder beside the project's: their versions contradict ours.

    python -m tests.swarm.clients.packages

installs every set that is not there yet, by the ordinary clients of the registries (pip; npm where it is found), and
returns 1 where one could not be. The tests use what is there and say what is missing; where AJET_TEST_CLIENTS is
`required` (.ci/run, after the line above succeeded) a missing one fails them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

HERE = Path(__file__).parent
_MOST_S = 900.0
_KEPT_S = 7 * 86_400.0


@dataclass(frozen=True)
class Packages:
    """One set: the file that pins it, and the command that installs it into a folder."""

    pins: str
    command: Callable[[Path], Sequence[str]]

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256((HERE / self.pins).read_bytes()).hexdigest()[:16]
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return caches / "ajet-ci" / f"clients-{digest}"

    def there(self) -> Path:
        """Return the folder; skip the test that needs it, or fail it where it is required."""
        if self.folder.is_dir():
            return self.folder
        missing = f"what {self.pins} names is not installed: python -m tests.swarm.clients.packages"
        if os.environ.get("AJET_TEST_CLIENTS") == "required":
            pytest.fail(missing)
        pytest.skip(missing)

    def install(self) -> None:
        """Make the folder, whole or not at all; raise CalledProcessError or OSError."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.folder}.lock"):
            if self.folder.is_dir():
                os.utime(self.folder)
                return
            scratch = Path(tempfile.mkdtemp(prefix=".clients-", dir=self.folder.parent))
            try:
                shutil.copy(HERE / self.pins, scratch)
                subprocess.run(self.command(scratch), cwd=scratch, check=True, timeout=_MOST_S)
                scratch.rename(self.folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)


def _pip(folder: Path) -> Sequence[str]:
    (pins,) = folder.glob("*.txt")
    return (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "-r", str(pins))


def _npm(folder: Path) -> Sequence[str]:
    return ("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder))


SWE_AGENT = Packages("mini-swe-agent.txt", _pip)
"""litellm, and mini-swe-agent on it; what they import, and no more of what they name."""
ADAPTED = Packages("adapted.txt", _pip)
"""The packages that `swarm.environments.adapters` translates, with what they import that the project has not."""
COMMAND_LINES = Packages("package.json", _npm)
"""Command lines that are agents: Claude Code, codex, opencode and qwen-code."""


def _forget_old() -> None:
    """Remove the sets that no version has used for a week."""
    for folder in SWE_AGENT.folder.parent.glob("clients-*"):
        if time.time() - folder.stat().st_mtime > _KEPT_S:
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def main() -> int:
    failed = 0
    for packages in (SWE_AGENT, ADAPTED, COMMAND_LINES):
        try:
            packages.install()
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"{packages.pins} could not be installed: {error}\n")
            failed = 1
    _forget_old()
    return failed


if __name__ == "__main__":
    sys.exit(main())
