"""The rollout: every verb on episodes, over leases, groups, the admission line and the gate of generation.

It promises the step loop complete batches of ended episodes, and clients a clear answer for every call. Every
episode that leaves without being trained is counted with its reason. It knows no learner and no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable

from swarm.backends.protocols import BackendError, Renderer
from swarm.errors import EngineUnavailable, JobFinished, ServerFailed, SwarmError, Throttled
from swarm.job import Job
from swarm.server.admission import Admission
from swarm.server.batch import Group, Groups
from swarm.server.episodes import Closing, Episode, Leases
from swarm.server.gate import Gate
from swarm.server.keys import Claims
from swarm.server.states import StateMachine
from swarm.timelines import Tree
from swarm.wire import Ack, BeginRequest, EndRequest, ServerState

log = logging.getLogger(__name__)

_ADMITTING = frozenset({ServerState.ROLLING, ServerState.ROLLING_POST})
_COMING = frozenset({ServerState.BOOTING, ServerState.WEIGHT_SYNCING})
RETRY_AFTER_S = 1.0


class Rollout:
    """Episodes of one loaded job, from begin to the batch. Lives on one event loop."""

    def __init__(self, job: Job, machine: StateMachine, clock: Callable[[], float] = time.monotonic) -> None:
        self.job = job
        self.machine = machine
        self.leases = Leases(job.lease_ttl_s, clock)
        self.groups = Groups(job.tasks_per_step, job.group_size, job.lease_ttl_s, clock)
        self.gate = Gate()
        self.finished = False
        self.counts: Counter[str] = Counter()
        """Since the start: begun, ended, aborted, fenced, throttled, calls, and drop_<reason>."""
        self.renderer: Renderer | None = None
        self._line: Admission[Episode] = Admission(lambda episode: self._give_up(episode, "aborted"))
        self._clock = clock
        self._full_since = 0.0
        self._changed = asyncio.Event()
        self._prefix = secrets.token_hex(3)

    async def begin(self, request: BeginRequest) -> Episode:
        """Admit an episode, waiting for room up to the request's `wait_s`; raise Throttled if there is none."""
        episode = await self._line.admit(lambda: self._try_begin(request), request.wait_s)
        if episode is not None:
            return episode
        self.counts["throttled"] += 1
        if self.machine.state is ServerState.BOOTING:
            raise EngineUnavailable("the engine is still booting; try again", retry_after=RETRY_AFTER_S)
        raise Throttled(
            f"no room for task {request.task_id!r} in the present step; try again, with a longer `wait_s`",
            retry_after=RETRY_AFTER_S,
        )

    def end(self, claims: Claims, request: EndRequest) -> Ack:
        """End an episode with its reward; the same end again changes nothing."""
        episode = self.leases.find(claims, repeats="ended")
        if episode is None:
            return Ack(episode_id=claims.episode, state="ended")
        episode.reward, episode.success = request.reward, request.success
        self.leases.close(episode, "ended")
        self.counts["ended"] += 1
        if episode.kind == "train":
            self._collect(episode)
        self.notify()
        return Ack(episode_id=episode.id, state="ended")

    def abort(self, claims: Claims, reason: str) -> Ack:
        """Give an episode up; the same abort again changes nothing."""
        episode = self.leases.find(claims, repeats="aborted")
        if episode is not None:
            log.info("event=abort episode=%s owner=%r reason=%r", episode.id, episode.owner, reason[:200])
            self._give_up(episode, "aborted")
            self.notify()
        return Ack(episode_id=claims.episode, state="aborted")

    def heartbeat(self, claims: Claims) -> Ack:
        """Renew a lease."""
        return Ack(episode_id=self.leases.holding(claims).id, state="open")

    def sweep(self) -> None:
        """Fence expired leases and those that hold up a full batch, and drop groups nobody completes."""
        for episode in self.leases.expired():
            self.fence(episode, "lease_expired")
        for episode in self._stuck():
            self.fence(episode, "held_up_batch")
        for group in self.groups.drop_idle():
            self.counts["drop_partial_group"] += len(group.ended)
            log.warning("event=drop_group group=%r episodes=%d reason=idle", group.name, len(group.ended))
        self.notify()

    def fence(self, episode: Episode, reason: str) -> None:
        """Take an episode from its owner; its place is free again."""
        self.counts[f"drop_{reason}"] += 1
        log.warning("event=fence episode=%s owner=%r reason=%s", episode.id, episode.owner, reason)
        self._give_up(episode, "fenced")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on groups and leases. One waiter at a time: the step loop."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def draining(self) -> None:
        """Note that the batch is full: from now on, those who hold it up are fenced after `drain_timeout_s`."""
        self._full_since = self._clock()

    async def quiet(self) -> None:
        """Shut the gate and wait until nothing generates; a call longer than `drain_timeout_s` is fenced."""
        self.gate.shut()
        if await self.gate.emptied(self.job.drain_timeout_s):
            return
        for episode in self.leases:
            if episode.calls:
                self.fence(episode, "held_up_update")
        if not await self.gate.emptied(self.job.drain_timeout_s):
            raise BackendError("the engine did not cancel its requests; no update is possible while they run")

    def take(self) -> tuple[Group, ...]:
        """Return the complete batch's groups and begin the next."""
        return self.groups.take()

    def notify(self) -> None:
        """Something changed that may admit a waiter or complete the batch."""
        self._line.pump()
        self._changed.set()

    def fail(self, error: SwarmError) -> None:
        """Answer everyone who waits, and every later call, with `error`."""
        self.gate.fail(error)
        for episode in self.leases:
            self.leases.interrupt(episode, error)
        self.notify()

    def _try_begin(self, request: BeginRequest) -> Episode | None:
        state = self.machine.state
        if state is ServerState.FAILED:
            raise ServerFailed(f"the server FAILED: {self.machine.reason}")
        if request.kind == "train" and self.finished:
            raise JobFinished(f"the job's {self.job.steps} steps are done; only evaluation episodes begin now")
        if state in _COMING:
            return None
        if state not in _ADMITTING:
            raise EngineUnavailable("the engine is off; POST /engine/start", retry_after=RETRY_AFTER_S)
        if request.kind == "eval":
            return self._open(request)
        group = self.groups.room(request.task_id)
        if group is None:
            return None
        episode = self._open(request)
        self.groups.join(group, episode)
        self._changed.set()
        return episode

    def _open(self, request: BeginRequest) -> Episode:
        if self.renderer is None:
            raise RuntimeError("episodes begin only after the backend started")
        self.counts["begun"] += 1
        return self.leases.begin(f"{self._prefix}-{self.counts['begun']:07d}", request, Tree(self.renderer))

    def _collect(self, episode: Episode) -> None:
        if episode.tree.nodes:
            self.groups.end(episode)
            return
        self.counts["drop_no_calls"] += 1
        log.warning("event=drop episode=%s owner=%r reason=no_calls", episode.id, episode.owner)
        self.groups.leave(episode)

    def _give_up(self, episode: Episode, state: Closing) -> None:
        self.counts[state] += 1
        self.leases.close(episode, state)
        if episode.kind == "train":
            self.groups.leave(episode)

    def _stuck(self) -> list[Episode]:
        """Return the open episodes of a full batch whose agents made no call for `drain_timeout_s`."""
        if self.machine.state is not ServerState.ROLLING_POST:
            return []
        before = self._clock() - self.job.drain_timeout_s
        if self._full_since > before:
            return []
        return [e for e in self.leases if e.kind == "train" and not e.calls and e.active_at <= before]
