"""Sweeps: the timeouts of a rollout, checked several times a second.

Leases expire. An episode that a full batch waits for is fenced once its own time is over, or once it is a straggler
whose client is silent; prepared episodes that hold the batch up lose their places. Groups that nobody completes are
dropped. Places that streams without a share have left are dealt out anew.

Stragglers are the open episodes that a full batch waits for, once half of the batch has ended; before that there are
none, and each episode has the time that its client gave it.

Everything it does is a verb of the ledger, which counts and writes it. Knows no learner and no HTTP.
"""

from __future__ import annotations

import logging
import math

from swarm.server.batches.group import Group
from swarm.server.episodes.episodes import LeasedEpisode
from swarm.server.episodes.ledger import Ledger
from swarm.server.episodes.teams import Teams
from swarm.wire import ServerState

log = logging.getLogger(__name__)

HEARTBEATS_ONLY_S = 600.0
"""Seconds after its last call for which heartbeats keep a straggler whose client did not say how long it may take."""
DEAD_END_S = 3.0
"""Seconds for which nothing is played, and those in line fit nowhere, before an orphaned group makes room for them."""


class Sweeps:
    """The sweeps of one ledger."""

    def __init__(self, ledger: Ledger, teams: Teams) -> None:
        self._ledger = ledger
        self._teams = teams
        self._straggling_since: float | None = None
        self._dead_end_since: float | None = None

    def sweep(self) -> None:
        """Do once what is due."""
        ledger = self._ledger
        for episode in ledger.leases.expired():
            ledger.fence(episode, "lease_expired")
        if ledger.awaited:  # the batch stands: nobody holds it up, and no group could be completed
            self._straggling_since = self._dead_end_since = None
            self._teams.sweep()
            return
        for episode in self._stuck():
            ledger.fence(episode, "held_up_batch")
        for group in (*ledger.groups.drop_idle(), *self._dead_end()):
            log.warning("event=drop_group group=%r episodes=%d", group.name, len(group.ended))
            ledger.drop(group.ended, "failed_task" if group.skipped else "partial_group")
        ledger.groups.streams.reclaim(ledger.groups.taken)
        self._teams.sweep()

    def _stuck(self) -> list[LeasedEpisode]:
        """Return the episodes that block a full batch: those whose time is over, and silent stragglers."""
        ledger, now = self._ledger, self._ledger.clock()
        if ledger.full_since is None:
            self._straggling_since = None
            return []
        silent_since = self._silent_since(now)
        playing = [e for e in ledger.leases if e.settling is None]
        stuck = [
            e for e in playing
            if _time_is_over(e, now, waited_for=len(ledger.line) > 0) or (not e.calls and e.heard_at <= silent_since)
        ]  # fmt: skip
        awaited = ledger.groups.awaited if stuck else set()
        return [e for e in stuck if e.id in awaited]

    def _silent_since(self, now: float) -> float:
        """Return before when a straggler was last heard of that is given up now; none is before half has ended."""
        ledger = self._ledger
        if 2 * ledger.groups.collected < ledger.job.episodes_per_step:
            self._straggling_since = None
            return -math.inf
        if self._straggling_since is None:
            self._straggling_since = now
        before = now - ledger.job.drain_timeout_s
        return before if self._straggling_since <= before else -math.inf

    def _dead_end(self) -> list[Group]:
        """Drop and return the oldest orphaned group where only its place can help those who wait for one."""
        ledger = self._ledger
        orphaned, now = ledger.groups.orphaned, ledger.clock()
        played = ledger.leases.prepared or any(episode.kind == "train" for episode in ledger.leases)
        moves = ledger.machine.state is not ServerState.ROLLING or ledger.groups.learning  # there may be room soon
        if moves or played or not orphaned or not len(ledger.line):
            self._dead_end_since = None
            return []
        if self._dead_end_since is None:
            self._dead_end_since = now
        if now - self._dead_end_since < DEAD_END_S:
            return []
        self._dead_end_since = None
        return [ledger.groups.drop(orphaned[0])]


def _time_is_over(episode: LeasedEpisode, now: float, *, waited_for: bool) -> bool:
    """Return whether its client gave it no more time; where it gave none, heartbeats alone give HEARTBEATS_ONLY_S.

    They give no more where no call was made while others wait for its place: one client could hold all for a week.
    """
    if episode.due_at is not None and (episode.due_at <= now or episode.tree.nodes or not waited_for):
        return episode.due_at <= now
    return not episode.calls and episode.active_at <= now - HEARTBEATS_ONLY_S
