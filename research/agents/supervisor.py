"""Runs of a user's agent, with --restart and --reload.

With --restart each client is a process, or a container, of its own. What a dead one left open is given up at once, so
that the next one begins with those very places. Bad input ends it, and so does the job's end.

With --reload a save ends the client, once what the old code has open is fenced (`code_changed`), and the new code plays
in the next one. Nothing of the old code is trained after that unless it had ended before. An edit that cannot be loaded
plays nothing until the next save.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from watchfiles import Change, awatch

from research.agents.run import (
    AgentResult,
    AgentRun,
    Restart,
    cancel_on_signals,
    play,
    read_status,
    write_output,
)
from sandboxes import Exit
from swarm.environments.user_code import SUFFIXES, code_hash

FIRST_WAIT_S: Final = 0.5
MOST_WAIT_S: Final = 30.0
"""Before a restart, at the least and the most; it doubles with each client that was not healthy."""
HEALTHY_S: Final = 5.0
"""A client that lived for so long and finished an episode was healthy: the next pause is the first one again."""
MOST_IN_VAIN: Final = 8
"""Clients in a row that finish no episode, after which none is started again: about a minute of pauses."""
BAD_INPUT: Final = 2
LOST: Final = 3
"""Exit code of a client whose server is lost or refuses, or whose agent failed again and again."""


class RestartPolicy:
    """Decides on each end of a client."""

    def __init__(self) -> None:
        self._unhealthy = 0
        self._in_vain = 0

    def pause(self, lived_s: float, finished: int) -> float | None:
        """Return the seconds to wait before the next client, None where no further one is started."""
        self._in_vain = 0 if finished else self._in_vain + 1
        self._unhealthy = 0 if finished and lived_s >= HEALTHY_S else self._unhealthy + 1
        pause = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** max(0, self._unhealthy - 1))
        return None if self._in_vain >= MOST_IN_VAIN else pause


def restart_reason(ended: Exit) -> str | None:
    """Return why a client that ended so, with steps left to train, is to be started again; None: it is not."""
    code = ended.code
    if ended.reason == "timeout" or (ended.reason == "error" and code == BAD_INPUT):
        return None
    if ended.reason == "error":
        if code is not None and code < 0:
            return f"it was killed by signal {-code}"
        lost = "the server was lost, the disk was full, or the agent failed again and again"
        return f"it ended with exit code {code}" + (f": {lost}" if code == LOST else "")
    return {
        "finished": "it ended before the job was finished",
        "out_of_memory": "it used up its memory",
        "stopped": "it was stopped",
        "killed": "it was killed",
        "lost": "its container is gone",
    }[ended.reason]


SETTLED_MS: Final = 50
"""Files that do not change for so long were saved whole."""
LOOK_MS: Final = 1000
"""Files are looked at so often, too, for not every file system tells of changes."""
JOB_LOOK_S: Final = 2.0


async def wait_for_save(folder: Path, code: str) -> str:
    """Return the sha256 of the files in a folder once it is another than `code`, and they are whole."""

    def may_be_code(_: Change, path: str) -> bool:
        return Path(path).suffix in SUFFIXES or Path(path).is_dir()

    for polling in (None, True):  # where the system watches no more files, they are looked at
        changes = awatch(
            folder, watch_filter=may_be_code, step=SETTLED_MS, rust_timeout=LOOK_MS, yield_on_timeout=True,
            force_polling=polling, ignore_permission_denied=True,
        )  # fmt: skip
        try:
            async for _ in changes:
                found = await asyncio.to_thread(code_hash, folder)
                if found != code:
                    return found
        except (OSError, RuntimeError):
            if polling:
                raise
    raise AssertionError  # it watches until it is cancelled


async def perform(run: AgentRun) -> AgentResult:
    """Run an agent to its end; only the log of its connections is kept of its folder."""
    try:
        async with cancel_on_signals():
            if run.restart or run.reload:
                ended = await Supervisor(run).play()
            else:
                once = await play(run)
                assert once is not None
                ended = once
    finally:
        run.clear()
    return replace(ended, status=await read_status(run))


class Supervisor:
    """Runs one client of an agent after the other."""

    def __init__(self, run: AgentRun) -> None:
        limit_s = run.request.time_limit_s
        self._run = run
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        self._policy = RestartPolicy()
        self._restarts: list[Restart] = []
        self._reloads = 0
        self._saved: asyncio.Task[str] | None = None

    async def play(self) -> AgentResult:
        run = self._run
        if run.reload and run.request.code is not None:
            folder = run.request.code.folder
            self._saved = asyncio.create_task(wait_for_save(folder, code_hash(folder)))
        try:
            while True:
                began, number = time.monotonic(), len(self._restarts) + self._reloads
                left_s = None if self._deadline == float("inf") else max(0.001, self._deadline - began)
                ended = await play(run.next_client(number, left_s), self._saved)
                if ended is not None:
                    ended = replace(ended, restarts=tuple(self._restarts), reloads=self._reloads)
                    ended = await self._handle_end(ended, time.monotonic() - began)
                if ended is not None:
                    return ended
                if self._saved is not None and self._saved.done() and run.request.code is not None:
                    self._reloads += 1
                    write_output(f"ajet: code {self._saved.result()[:12]} from here on\n")
                    self._saved = asyncio.create_task(wait_for_save(run.request.code.folder, self._saved.result()))
        finally:
            if self._saved is not None:
                self._saved.cancel()
                await asyncio.gather(self._saved, return_exceptions=True)

    async def _handle_end(self, ended: AgentResult, lived_s: float) -> AgentResult | None:
        """Return the run's end, or None once another client is to be started."""
        bad_input = ended.exit.reason == "error" and ended.exit.code == BAD_INPUT
        failed = ended.exit.reason not in ("finished", "timeout") and ended.exit.code != LOST
        if self._saved is not None and (bad_input or (failed and not self._run.restart)):
            return await self._wait_for_save(ended)
        if not self._run.restart:
            return ended
        status = await read_status(self._run)
        if status is not None and status.finished:  # whatever became of this one: others may have played the rest
            return replace(ended, exit=Exit("finished", 0))
        if (reason := restart_reason(ended.exit)) is None:
            return ended
        pause_s = self._policy.pause(lived_s, ended.finished)
        if pause_s is None:
            write_output(f"ajet: {reason}; not started again: {MOST_IN_VAIN} clients in a row finished no episode\n")
            return ended
        self._restarts.append(Restart(reason, round(lived_s, 3), ended.finished, pause_s))
        write_output(
            f"ajet: restart {len(self._restarts)} in {pause_s:g} s: {reason}, after {lived_s:.1f} s and "
            f"{ended.finished} episodes\n"
        )
        if self._saved is None:
            await asyncio.sleep(pause_s)
        else:
            await asyncio.wait({self._saved}, timeout=pause_s)
        return None

    async def _wait_for_save(self, ended: AgentResult) -> AgentResult | None:
        """Wait for the next save; return the end where others finish the job meanwhile, or the time is over."""
        assert self._saved is not None
        write_output("ajet: nothing is played by this client until the next save\n")
        while not self._saved.done():
            status = await read_status(self._run)
            if status is not None and status.finished:
                return replace(ended, exit=Exit("finished", 0))
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                return replace(ended, exit=Exit("timeout", None))
            await asyncio.wait({self._saved}, timeout=min(left_s, JOB_LOOK_S))
        return None
