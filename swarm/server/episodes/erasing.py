"""Erasing: the tokens of an owner's episodes are deleted on request, whatever has become of the episodes.

An open episode is aborted, one that waits for its batch is dropped (`drop_erased`), and what was captured of them, and
of those that are over, is deleted from the store. Left for a later request are those that would have to be learned
again after a crash: of a batch that is settled and in no checkpoint yet. The rows stay, with their numbers of calls and
tokens, so that the balance adds up; weights that learned of an episode stay as they are.

Who may ask knows the secret whose fingerprint is in the owner's name, as for `release`.
"""

from __future__ import annotations

import logging

from swarm.server.episodes.ledger import Ledger
from swarm.store import Erased
from swarm.wire import EraseRequest, Erasure, fingerprint

log = logging.getLogger(__name__)


class Erasing:
    """Erases episodes of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def erase(self, request: EraseRequest) -> Erasure:
        """Erase what can be erased now; raise StoreUnavailable where the store takes nothing: ask again."""
        self._ledger.require_recovered()
        mark = fingerprint(request.secret)
        asked = tuple(dict.fromkeys(request.episodes))
        await self._ledger.store.write()  # what was noted before is there to be read
        own = [episode for episode in asked if await self._belongs(episode, mark)]
        self._give_up(own)
        if own:
            await self._ledger.store.write(*map(Erased, own))
        left = [episode for episode in own if await self._has_tokens(episode)]
        log.info("event=erased episodes=%d left=%d", len(own) - len(left), len(left))
        return Erasure(
            erased=tuple(episode for episode in own if episode not in left),
            left=tuple(left),
            unknown=tuple(episode for episode in asked if episode not in own),
        )

    async def _belongs(self, episode: str, mark: str) -> bool:
        found = await self._ledger.store.episode(episode)
        return found is not None and mark in found.owner.split(":")

    async def _has_tokens(self, episode: str) -> bool:
        found = await self._ledger.store.episode(episode)
        return found is not None and (bool(found.record) or found.state in ("open", "prepared"))

    def _give_up(self, own: list[str]) -> None:
        ledger = self._ledger
        for episode in [e for e in ledger.leases if e.id in own and e.settling is None]:
            ledger.give_up(episode, "aborted", "erased")
        for episode_id in own:
            ledger.drop(ledger.groups.drop_ended(episode_id), "erased")
        ledger.store.note(*ledger.groups.streams.moved())
        ledger.notify()
