"""Sweeps: what time alone does to a rollout, looked at again and again.

Leases run out. What a full batch waits for is fenced once its own time is over, as are stragglers whose clients are not
heard of, and prepared episodes that hold it up give their places away. Groups that nobody completes are dropped. Places
of streams that play nothing are lent.

Stragglers are the open episodes that a full batch waits for, once at least half as many episodes have ended as the
batch takes. Before that all are merely at work, as long as each was given.

Everything it does is a verb of the rollout, which counts and writes it. Knows no learner and no HTTP.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from swarm.server.episodes import Episode
from swarm.server.group import Group
from swarm.wire import ServerState

if TYPE_CHECKING:
    from swarm.server.rollout import Rollout

log = logging.getLogger(__name__)

HEARTBEATS_ONLY_S = 600.0
"""Seconds after its last call for which heartbeats keep a straggler whose client did not say how long it may take."""
DEAD_END_S = 3.0
"""Seconds for which nothing is played, and those in line fit nowhere, before an orphaned group makes room for them."""


class Sweeps:
    """The sweeps of one rollout; `full_since` is when the batch that is waited for was full, None before it is."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self.full_since: float | None = None
        self._straggling_since: float | None = None
        self._held_up_since: float | None = None
        self._dead_end_since: float | None = None

    def sweep(self) -> None:
        """Do once what is due."""
        rollout = self._rollout
        for episode in rollout.leases.expired():
            rollout.fence(episode, "lease_expired")
        for episode in self._stuck():
            rollout.fence(episode, "held_up_batch")
        for group in (*rollout.groups.drop_idle(), *self._dead_end()):
            log.warning("event=drop_group group=%r episodes=%d", group.name, len(group.ended))
            rollout.drop(group.ended, "partial_group")
        self._lend()
        rollout.teams.sweep(self.full_since)

    def _stuck(self) -> list[Episode]:
        """Return what a full batch waits for in vain: whose time is over, and stragglers that were not heard of."""
        rollout, now = self._rollout, self._rollout.clock()
        if self.full_since is None:
            self._straggling_since = None
            return []
        silent_since = self._silent_since(now)
        playing = [e for e in rollout.leases if e.settling is None]
        stuck = [e for e in playing if _time_is_over(e, now) or (not e.calls and e.heard_at <= silent_since)]
        awaited = rollout.groups.awaited if stuck else set()
        return [e for e in stuck if e.id in awaited]

    def _silent_since(self, now: float) -> float:
        """Return before when a straggler was last heard of that is given up now; none is before half has ended."""
        rollout = self._rollout
        if 2 * rollout.groups.collected < rollout.job.episodes_per_step:
            self._straggling_since = None
            return -math.inf
        if self._straggling_since is None:
            self._straggling_since = now
        before = now - rollout.job.drain_timeout_s
        return before if self._straggling_since <= before else -math.inf

    def _dead_end(self) -> list[Group]:
        """Drop and return the oldest orphaned group where only its place can help those who wait for one."""
        rollout = self._rollout
        orphaned, now = rollout.groups.orphaned, rollout.clock()
        played = rollout.leases.held or any(episode.kind == "train" for episode in rollout.leases)
        moves = rollout.machine.state is not ServerState.ROLLING or rollout.groups.learning  # there may be room soon
        if moves or played or not orphaned or not rollout.in_line:
            self._dead_end_since = None
            return []
        if self._dead_end_since is None:
            self._dead_end_since = now
        if now - self._dead_end_since < DEAD_END_S:
            return []
        self._dead_end_since = None
        return [rollout.groups.drop(orphaned[0])]

    def _lend(self) -> None:
        """Lend places of streams that play nothing, `drain_timeout_s` after all others are done."""
        rollout = self._rollout
        if not rollout.groups.held_up:
            self._held_up_since = None
            return
        if self._held_up_since is None:
            self._held_up_since = rollout.clock()
        if rollout.clock() - self._held_up_since >= rollout.job.drain_timeout_s:
            rollout.groups.lend()


def _time_is_over(episode: Episode, now: float) -> bool:
    """Return whether its client gave it no more time; where it gave none, heartbeats alone give HEARTBEATS_ONLY_S."""
    if episode.due_at is not None:
        return episode.due_at <= now
    return not episode.calls and episode.active_at <= now - HEARTBEATS_ONLY_S
