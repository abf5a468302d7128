"""Real processes of an installation's folder are met by kind; those of another folder never."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from rig.orchestration.victims import left, victims

SLEEPS = "import sys; sys.stdin.read()"


@contextmanager
def running(*words: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python that waits, with these words in its command line."""
    command = [sys.executable, "-c", SLEEPS, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        yield process
        process.kill()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_shim_is_met_in_its_home_alone_with_the_attempt_it_watches(tmp_path: Path, stack: ExitStack) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    name = "sandboxes/ajet-study-0123456789abcdef-a2"
    processes = [stack.enter_context(running("/x/sandboxes/shim.py", str(home / name))) for home in (mine, other)]
    (found,) = victims(mine)
    assert (found.process.pid, found.kind) == (processes[0].pid, "shim")
    assert (found.run, found.attempt) == ("0123456789abcdef", 2)
    assert len(left(other)) == 1


def test_a_process_belongs_to_the_home_that_its_environment_names(tmp_path: Path, stack: ExitStack) -> None:
    stack.enter_context(running("alone", environment={"AJET_HOME": str(tmp_path)}))
    (command,) = left(tmp_path)
    assert command.endswith("alone")
    assert list(victims(tmp_path)) == [], "of no kind that is killed"
