"""A client that is started again where it dies: `ajet client run --restart`.

Each client is a process, or a container, of its own. What a dead one left open is given up at once, so that the next
one begins with those very places: its stream goes on from where it stands. Bad input ends it, and so does the job's
end; when to go on, and after which pause, is in `research.agents.restarts`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from research.agents.restarts import MOST_IN_VAIN, Restart, RestartPolicy, why_again
from research.agents.run import AgentResult, AgentRun, ended_by_signals, hear, play, status_of
from sandboxes import Exit


async def supervise(run: AgentRun) -> AgentResult:
    """Run clients of an agent one after the other until the job is finished, or none is to be started again."""
    try:
        async with ended_by_signals():
            ended = await _supervised(run)
    finally:
        run.clear()
    return replace(ended, status=await status_of(run))


async def _supervised(run: AgentRun) -> AgentResult:
    limit, policy, restarts = TimeLimit(run.request.time_limit_s), RestartPolicy(), list[Restart]()
    while True:
        began = time.monotonic()
        ended = replace(await play(run.again(len(restarts), limit.left_s())), restarts=tuple(restarts))
        ended, restart = await after(run, ended, policy, time.monotonic() - began)
        if restart is None:
            return ended
        restarts.append(restart)
        await asyncio.sleep(restart.pause_s)


async def after(
    run: AgentRun, ended: AgentResult, policy: RestartPolicy, lived_s: float
) -> tuple[AgentResult, Restart | None]:
    """Return how a client ended, seen with its job, and its restart, or None where there is none; says each."""
    status = await status_of(run)
    if status is not None and status.finished:  # whatever became of this one: others may have played the rest
        return replace(ended, exit=Exit("finished", 0)), None
    reason = why_again(ended.exit)
    if reason is None:
        return ended, None
    pause_s = policy.pause(lived_s, ended.finished)
    if pause_s is None:
        hear(f"ajet: {reason}; not started again: {MOST_IN_VAIN} clients in a row finished no episode\n")
        return ended, None
    restart = Restart(reason, round(lived_s, 3), ended.finished, pause_s)
    number = len(ended.restarts) + 1
    hear(f"ajet: restart {number} in {pause_s:g} s: {reason}, after {lived_s:.1f} s and {ended.finished} episodes\n")
    return ended, restart


class TimeLimit:
    """What is left of the time that all clients together may take; None: there is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def left_s(self) -> float | None:
        """Return the seconds that are left, at the least a moment."""
        return None if self._deadline is None else max(0.001, self._deadline - time.monotonic())
