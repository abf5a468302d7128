"""The processes an attempt starts: each with its log, all ended when their group is left, however that happens.

They are plain children, in the attempt's own session and process group: whoever ends that group, as the shim
does when the attempt dies, ends them too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from sandboxes.shown import signal_named

TAIL_BYTES = 2000
GRACE_S = 20.0
DIED = "died"
"""How a worker failed that ended by itself."""


class ManagedProcess:
    """One process of a group."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def runs(self) -> bool:
        """Whether it has not ended, as far as was noticed."""
        return self._process.returncode is None

    @property
    def failure(self) -> str:
        """How it failed, in a word."""
        return DIED

    async def ended(self) -> int:
        """Wait until it ends; return its exit code, negative for a signal."""
        return await self._process.wait()

    def last_words(self) -> str:
        """Return how it ended and the end of what it said, in one line."""
        with open(self._log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return f"{_ending(self._process.returncode)}; it last said: {' | '.join(lines[-3:]) or 'nothing'}"

    async def stop(self) -> None:
        """Terminate it, and kill it after a grace."""
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended(), GRACE_S)
        except TimeoutError:
            self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it still runs."""
        if self._process.returncode is None:
            self._process.send_signal(number)


def _ending(code: int | None) -> str:
    if code is None:
        return "still running"
    return f"killed by {signal_named(-code)}" if code < 0 else f"exit code {code}"


class ProcessGroup:
    """Starts processes; leaving its context ends those that still run, the last started first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._members: list[ManagedProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in reversed(self._members):
            await self.end(member)

    async def start(
        self,
        name: str,
        module: str,
        *arguments: str,
        log: Path,
        directory: Path | None = None,
        python: str = sys.executable,
        **environment: str,
    ) -> ManagedProcess:
        """Start `python -m module arguments` with its output in `log`; `environment` is added to this process's own.

        It works in `directory`, else in the group's.
        """
        with _opened(log) as output:
            process = await asyncio.create_subprocess_exec(
                python, "-m", module, *arguments,
                cwd=directory or self._directory, env=_environment(environment),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        member = ManagedProcess(name, process, log)
        self._members.append(member)
        return member

    async def end(self, member: ManagedProcess) -> int:
        """Terminate a member, kill it after a grace, and return its exit code."""
        await member.stop()
        return await member.ended()


def _opened(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return open(log, "wb")


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process: one thread each, for those of many processes slow one another down."""
    return {"OMP_NUM_THREADS": "1", "WANDB_SILENT": "true", **os.environ, **added}
