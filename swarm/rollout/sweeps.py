"""What time does to a rollout: timeouts, stream liveness, the drain of a step.

Checked several times a second: leases expire; an episode that a full batch waits for is fenced once its own time is
over, or once it is a straggler whose client is silent; prepared episodes that hold the batch up lose their places;
groups that nobody completes are dropped; places that streams without a share have left are dealt out anew. Stragglers
are the open episodes that a full batch waits for, once half of the batch has ended; before that there are none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from swarm.rendering.messages import BackendError
from swarm.rollout.episodes import EpisodeRegistry, LeasedEpisode
from swarm.rollout.task_sampler import Group
from swarm.rollout.teams import Teams
from swarm.wire import ServerState


class Drain:
    """Takes batches out of a ledger, for one waiter at a time: the step loop."""

    def __init__(self, registry: EpisodeRegistry) -> None:
        self._registry = registry

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on groups and leases; raise BackendError once no batch can ever come."""
        while not condition():
            if self._registry.groups.starved is not None:
                raise BackendError(self._registry.groups.starved)
            self._registry.changed.clear()
            await self._registry.changed.wait()

    def begin(self) -> None:
        """Note that the batch is full: from now on, those who hold it up are fenced after `drain_timeout_s`."""
        self._registry.full_since = self._registry.clock()

    async def quiesce(self) -> None:
        """Shut the gate and wait until nothing generates; a call longer than `drain_timeout_s` is fenced."""
        self._registry.gate.shut()
        if await self._wait_until_idle():
            return
        for episode in self._registry.leases:
            if any(call.generating for call in episode.calls):
                self._registry.fence(episode, "held_up_update")
        if not await self._wait_until_idle():
            raise BackendError("the engine did not cancel its requests; no update is possible while they run")

    async def wait_for_batch(self) -> tuple[Group, ...]:
        """Wait until a batch is there and nothing generates; return it and begin the next. The gate is shut then. A
        batch can fall apart while calls are waited for (its oldest dropped for bytes, shares changed): wait again."""
        while True:
            await self.wait_until(lambda: self._registry.groups.complete)
            await self.quiesce()
            if self._registry.groups.complete:
                return self.take()
            self._registry.gate.open()

    def take(self) -> tuple[Group, ...]:
        """Return the complete batch's groups and begin the next. Where the streams stand then is written with it."""
        batch = self._registry.groups.take()
        self._registry.counts["trained"] += sum(len(group.ended) for group in batch)
        self._registry.full_since = None
        self._registry.drop_outdated()
        return batch

    async def _wait_until_idle(self) -> bool:
        """Return whether nothing generates within `drain_timeout_s`, to which time the server stood still is added."""
        clock, gate, drain = self._registry.clock, self._registry.gate, self._registry.job.drain_timeout_s
        began = clock()
        if await gate.wait_until_empty(drain):
            return True
        return clock() - began < drain / 2 and await gate.wait_until_empty(drain)


log = logging.getLogger(__name__)

HEARTBEATS_ONLY_S = 600.0
"""Seconds after its last call for which heartbeats keep a straggler whose client did not say how long it may take."""
DEAD_END_S = 3.0
"""Seconds for which nothing is played, and those in line fit nowhere, before an orphaned group makes room for them."""


class Sweeper:
    """The sweeps of one ledger."""

    def __init__(self, registry: EpisodeRegistry, teams: Teams) -> None:
        self._registry = registry
        self._teams = teams
        self._straggling_since: float | None = None
        self._dead_end_since: float | None = None

    def sweep(self) -> None:
        registry = self._registry
        for episode in registry.leases.find_expired():
            registry.fence(episode, "lease_expired")
        if registry.pending_evaluations:  # the batch stands: nobody holds it up, and no group could be completed
            self._straggling_since = self._dead_end_since = None
            self._teams.sweep()
            return
        for episode in self._find_stuck():
            registry.fence(episode, "held_up_batch")
        for group in (*registry.groups.drop_idle(), *self._drop_dead_end()):
            log.warning("event=drop_group group=%r episodes=%d", group.name, len(group.ended))
            registry.drop(group.ended, "failed_task" if group.skipped else "partial_group")
        registry.groups.streams.reclaim(registry.groups.taken)
        self._teams.sweep()

    def _find_stuck(self) -> list[LeasedEpisode]:
        registry, now = self._registry, self._registry.clock()
        if registry.full_since is None:
            self._straggling_since = None
            return []
        silent_since, waited_for = self._silence_limit(now), len(registry.admission) > 0
        stuck = []
        for episode in registry.leases:
            is_silent = not episode.calls and episode.heard_at <= silent_since
            if episode.settling is None and (is_silent or _time_is_over(episode, now, waited_for=waited_for)):
                stuck.append(episode)
        awaited = registry.groups.awaited if stuck else set()
        return [e for e in stuck if e.id in awaited]

    def _silence_limit(self, now: float) -> float:
        """Return before when a straggler was last heard of that is given up now; none is before half has ended."""
        registry = self._registry
        if 2 * registry.groups.collected < registry.job.episodes_per_step:
            self._straggling_since = None
            return -math.inf
        if self._straggling_since is None:
            self._straggling_since = now
        before = now - registry.job.drain_timeout_s
        return before if self._straggling_since <= before else -math.inf

    def _drop_dead_end(self) -> list[Group]:
        """Drop and return the oldest orphaned group where only its place can help those who wait for one."""
        registry = self._registry
        orphaned, now = registry.groups.orphaned, registry.clock()
        played = registry.leases.prepared or any(episode.kind == "train" for episode in registry.leases)
        moves = (
            registry.machine.state is not ServerState.ROLLING or registry.groups.ages.learning
        )  # there may be room soon
        if moves or played or not orphaned or not len(registry.admission):
            self._dead_end_since = None
            return []
        if self._dead_end_since is None:
            self._dead_end_since = now
        if now - self._dead_end_since < DEAD_END_S:
            return []
        self._dead_end_since = None
        return [registry.groups.drop(orphaned[0])]


def _time_is_over(episode: LeasedEpisode, now: float, *, waited_for: bool) -> bool:
    """Return whether its client gave it no more time; where it gave none, heartbeats alone give HEARTBEATS_ONLY_S. They
    give no more where no call was made while others wait for its place: one client could hold all for a week."""
    if episode.due_at is not None and (episode.due_at <= now or episode.tree.nodes or not waited_for):
        return episode.due_at <= now
    return not episode.calls and episode.active_at <= now - HEARTBEATS_ONLY_S
