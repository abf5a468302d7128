"""The step loop's side of a rollout: wait for a complete batch, wait until nothing generates, and take it."""

from __future__ import annotations

from collections.abc import Callable

from swarm.backends.protocols import BackendError
from swarm.server.batches.group import Group
from swarm.server.episodes.ledger import Ledger


class Drain:
    """Takes batches out of a ledger, for one waiter at a time: the step loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on groups and leases; raise BackendError once no batch can ever come."""
        while not condition():
            if self._ledger.groups.starved is not None:
                raise BackendError(self._ledger.groups.starved)
            self._ledger.changed.clear()
            await self._ledger.changed.wait()

    def begin(self) -> None:
        """Note that the batch is full: from now on, those who hold it up are fenced after `drain_timeout_s`."""
        self._ledger.full_since = self._ledger.clock()

    async def quiet(self) -> None:
        """Shut the gate and wait until nothing generates; a call longer than `drain_timeout_s` is fenced."""
        self._ledger.gate.shut()
        if await self._emptied():
            return
        for episode in self._ledger.leases:
            if any(call.generating for call in episode.calls):
                self._ledger.fence(episode, "held_up_update")
        if not await self._emptied():
            raise BackendError("the engine did not cancel its requests; no update is possible while they run")

    async def batch(self) -> tuple[Group, ...]:
        """Wait until a batch is there and nothing generates; return it and begin the next. The gate is shut then.

        A batch can fall apart while calls are waited for (its oldest dropped for bytes, shares changed): wait again.
        """
        while True:
            await self.until(lambda: self._ledger.groups.complete)
            await self.quiet()
            if self._ledger.groups.complete:
                return self.take()
            self._ledger.gate.open()

    def take(self) -> tuple[Group, ...]:
        """Return the complete batch's groups and begin the next. Where the streams stand then is written with it."""
        batch = self._ledger.groups.take()
        self._ledger.counts["trained"] += sum(len(group.ended) for group in batch)
        self._ledger.full_since = None
        self._ledger.outdate()
        return batch

    async def _emptied(self) -> bool:
        """Return whether nothing generates within `drain_timeout_s`, to which time the server stood still is added."""
        clock, gate, drain = self._ledger.clock, self._ledger.gate, self._ledger.job.drain_timeout_s
        began = clock()
        if await gate.emptied(drain):
            return True
        return clock() - began < drain / 2 and await gate.emptied(drain)
