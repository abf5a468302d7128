"""The members of a team: a client of one server for each role, and how an episode of one task begins at all of them.

One member leads: its server chooses the task, of its stream's list, and so holds the place at which a rollout that was
interrupted goes on; the others begin that very task by name. A leader whose job is finished hands the lead to the next
member. A member whose job is finished plays on in evaluation episodes, with the weights it came to: for the others the
game goes on as it was, and none of them is cut short because another one has fewer steps.

Servers may take batches of different sizes: what the leader hands out before another one has room waits there. That is
withdrawn when a play was lost meanwhile, as the room may be kept for that one, and after WITHDRAW_S in any case.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from swarm.client.asynchronous import AsyncSwarmClient
from swarm.client.episode import Episode, HasId
from swarm.client.rollout import GOODBYE_S, WAIT_S, carried_out
from swarm.client.stream_tasks import StreamTasks
from swarm.errors import InvalidRequest, JobFinished, Throttled
from swarm.wire import EVALUATION_STREAM, Status

log = logging.getLogger(__name__)

WITHDRAW_S = 30.0
"""How long a leader's episode waits for the others' room before it is given back."""
_LONGEST_WAIT_S = 2.0
_ANSWER_S = 0.5
"""How long a cancelled begin is waited for."""


class TeamMembers:
    """Begins the episodes of teams. `lost` counts the plays that were lost so far; `leader` chooses first."""

    def __init__(
        self,
        clients: Mapping[str, AsyncSwarmClient],
        tasks: Sequence[HasId],
        stream: str,
        timeout_s: float,
        *,
        leader: str | None = None,
        lost: Callable[[], int] = lambda: 0,
    ) -> None:
        first = leader or next(iter(clients))
        self.clients = clients
        self.finished: set[str] = set()
        """Roles whose jobs are finished, as far as is known."""
        self._order = [first, *(role for role in clients if role != first)]
        self._tasks = tasks
        self._stream = stream
        self._timeout_s = timeout_s
        self._lost = lost
        self._named: dict[str, StreamTasks[HasId]] = {}

    async def begin_next(self) -> dict[str, Episode[Any]]:
        """Begin an episode of the leader's next task at every member, or at none; the leader's comes first.

        Raises JobFinished once all jobs are finished, Throttled where a member has no room, and what a member's server
        says.
        """
        begun: dict[str, Episode[Any]] = {}
        try:
            leader = await self._lead(begun)
            await self._all(self._follow(begun, role, leader) for role in self._order if role not in begun)
        except BaseException:
            await _give_back(begun.values())
            raise
        return begun

    async def begin_evaluation(self, task: HasId) -> dict[str, Episode[Any]]:
        """Begin an evaluation episode of a task at every member, or at none."""
        begun: dict[str, Episode[Any]] = {}
        try:
            await self._all(self._evaluate(begun, role, task) for role in self._order)
        except BaseException:
            await _give_back(begun.values())
            raise
        return begun

    async def _lead(self, begun: dict[str, Episode[Any]]) -> Episode[Any]:
        for role in self._order:
            if role in self.finished:
                continue
            try:
                begun[role] = await self._next_of(role)
            except JobFinished:
                self._finish(role)
            else:
                return begun[role]
        raise JobFinished("the jobs of all members are finished")

    async def _next_of(self, role: str) -> Episode[Any]:
        client = self.clients[role]
        if role not in self._named:
            self._named[role] = await client.name_tasks(self._tasks, self._stream)
        allowed = self._timeout_s + GOODBYE_S + WITHDRAW_S
        return await _kept(client.begin_next(self._named[role], wait_s=WAIT_S, timeout_s=allowed))

    async def _follow(self, begun: dict[str, Episode[Any]], role: str, leader: Episode[Any]) -> None:
        if role not in self.finished:
            try:
                begun[role] = await self._joined(begun, role, leader)
            except JobFinished:
                self._finish(role)
            else:
                return
        await self._evaluate(begun, role, leader.task, self._stream)  # of no evaluation: its partners still learn

    async def _joined(self, begun: dict[str, Episode[Any]], role: str, leader: Episode[Any]) -> Episode[Any]:
        """Begin the leader's task at another member, and keep the leases of those begun until there is room."""
        deadline, lost = time.monotonic() + WITHDRAW_S, self._lost()
        wait_s, allowed = min(_LONGEST_WAIT_S, leader.ttl_s / 3), self._timeout_s + GOODBYE_S
        while True:
            try:
                return await _kept(
                    self.clients[role].begin(leader.task, stream=self._stream, wait_s=wait_s, timeout_s=allowed)
                )
            except Throttled:
                if self._lost() != lost or time.monotonic() > deadline:
                    raise
            others = [each for each in begun.values() if each is not leader]
            await asyncio.gather(leader.heartbeat(), *(each.heartbeat() for each in others))

    async def _evaluate(
        self, begun: dict[str, Episode[Any]], role: str, task: HasId, stream: str = EVALUATION_STREAM
    ) -> None:
        allowed = self._timeout_s + GOODBYE_S
        begun[role] = await _kept(
            self.clients[role].begin(task, kind="eval", stream=stream, wait_s=WAIT_S, timeout_s=allowed)
        )

    def _finish(self, role: str) -> None:
        if role not in self.finished:
            self.finished.add(role)
            log.info("event=member_finished role=%r: it plays on as it is, untrained, for the others", role)

    async def _all(self, begins: Iterable[Any]) -> None:
        """Wait for all begins; raise the first refusal once each of them has an answer, so that none is forgotten."""
        for answer in await asyncio.gather(*begins, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer


async def require_members(clients: Mapping[str, AsyncSwarmClient], leader: str | None = None) -> None:
    """Raise InvalidRequest for clients that can be no team, before anything is begun.

    There must be one at least, each of a server of its own that has a job, and of those that train the group sizes must
    be equal: each task is played as often at one as at the other.
    """
    if not clients:
        raise InvalidRequest("expected a client for each role of the team, found none")
    if leader is not None and leader not in clients:
        raise InvalidRequest(f"expected a decider among {sorted(clients)}, found {leader!r}")
    _require_own_servers(clients)
    statuses = dict(zip(clients, await asyncio.gather(*(c.status() for c in clients.values())), strict=True))
    _require_jobs(statuses)
    sizes = {role: status.group_size for role, status in statuses.items() if not status.finished}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{role} {size}" for role, size in sizes.items())
        raise InvalidRequest(
            f"expected one group_size in the jobs of all members, as a team plays each task equally often at every "
            f"server; found {said}; give their jobs the same (episodes_per_step may differ)"
        )


def _require_own_servers(clients: Mapping[str, AsyncSwarmClient]) -> None:
    of: dict[str, str] = {}
    for role, client in clients.items():
        if (other := of.setdefault(client.url, role)) != role:
            raise InvalidRequest(
                f"expected a server of its own for each role, found {other} and {role} both at {client.url}; start "
                "another server, or, where one model plays both, let one agent make all calls in one episode "
                "(client.rollout)"
            )


def _require_jobs(statuses: Mapping[str, Status]) -> None:
    for role, status in statuses.items():
        if status.group_size is None:
            raise InvalidRequest(f"the server of {role} has no job yet; call ensure_training(job) of its client first")


async def _kept(begin: Coroutine[Any, Any, Episode[Any]]) -> Episode[Any]:
    """Return what is begun; one that is begun while its wait is cancelled is given back, and not left to its lease."""
    beginning = asyncio.create_task(begin)
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({beginning}, timeout=_ANSWER_S)
        beginning.cancel()  # one that still waits for room leaves the line
        if done and not beginning.cancelled() and beginning.exception() is None:
            await _give_back([beginning.result()])
        raise


async def _give_back(episodes: Iterable[Episode[Any]]) -> None:
    """Give up what was begun for a team that lacks a member."""
    reason = "another member of its team had no room, or could not begin"
    await carried_out(*(episode.abort(reason) for episode in episodes))
