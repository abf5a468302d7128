"""Read access to episodes: open ones come from memory, closed ones from the store, texts from the renderer.

Promises that a record never says less than is known: while an engine runs, an open episode is shown as it is this
moment, every other one as it was written down, and every id with its text. While no engine runs, what was written
is shown without texts. Changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from swarm.backends.protocols import Renderer
from swarm.errors import EngineUnavailable, NotFound, ServerFailed
from swarm.server.episodes.episodes import LeasedEpisode
from swarm.server.service.core import SwarmServer
from swarm.server.service.token_texts import with_texts
from swarm.server.training.training import Training
from swarm.store import Kept
from swarm.timelines import Node
from swarm.wire import CallRecord, EpisodeList, EpisodeRecord, EpisodeSummary, TokenSpan

LISTED = 100
"""Episodes in a list that does not say how many."""
MOST_LISTED = 10_000
SummaryT = TypeVar("SummaryT", bound=EpisodeSummary)


class Inspection:
    """Episodes of one server."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    async def episodes(self, limit: int = LISTED) -> EpisodeList:
        """Return the newest episodes, the open ones as they are now."""
        training = self._training()
        live = {episode.id: episode for episode in training.rollout.leases} if training is not None else {}
        written = (await self._server.written.episodes(limit + len(live))).episodes
        known = {summary.id for summary in written}
        unwritten = [summary_of(episode) for name, episode in live.items() if name not in known]
        merged = [summary_of(live[old.id]) if old.id in live else self._with_refusals(old) for old in written]
        return EpisodeList(episodes=tuple([*reversed(unwritten), *merged][:limit]))

    async def episode(self, name: str) -> EpisodeRecord:
        """Return one episode with every token; NotFound if there is none of this name."""
        record, renderer = await self._record(name), self.renderer
        return record if renderer is None else await asyncio.to_thread(with_texts, record, renderer)

    @property
    def renderer(self) -> Renderer | None:
        """What knows the text of ids; None while no engine runs."""
        training = self._training()
        return None if training is None else training.rollout.ledger.renderer

    async def kept(self) -> Kept:
        """Return which episodes can be exported, the open ones that are not written last."""
        training, written = self._training(), await self._server.written.kept()
        known = set(written.names)
        live = (episode.id for episode in training.rollout.leases) if training is not None else ()
        return written._replace(names=[*written.names, *(name for name in live if name not in known)])

    async def tokens(self, name: str) -> EpisodeRecord:
        """Return one episode with every id, without texts."""
        return await self._record(name)

    async def _record(self, name: str) -> EpisodeRecord:
        training = self._training()
        for episode in training.rollout.leases if training is not None else ():
            if episode.id == name:
                return record_of(episode)
        found = await self._server.written.episode(name)
        if found is None:
            raise NotFound(f"there is no episode {name[:80]!r}; GET /episodes lists those that are known")
        return self._with_refusals(found)

    def _with_refusals(self, found: SummaryT) -> SummaryT:
        """Add what the server remembers of a closed episode's refused calls."""
        training = self._training()
        refusals, refusal = ({}, None) if training is None else training.rollout.leases.refusals_of(found.id)
        return found.model_copy(update={"refusals": refusals, "refusal": refusal}) if refusals else found

    def _training(self) -> Training | None:
        try:
            return self._server.training
        except (EngineUnavailable, ServerFailed):
            return None


def summary_of(episode: LeasedEpisode) -> EpisodeSummary:
    """Return an open episode as a line of a list."""
    return EpisodeSummary(
        id=episode.id,
        task_id=episode.task_id,
        stream=episode.stream,
        kind=episode.kind,
        owner=episode.owner,
        state="open",
        calls=len(episode.tree.nodes),
        tokens=sum(len(node.sampled) for node in episode.tree.nodes),
        code=episode.code,
        refusals=episode.refusals,
        refusal=episode.refusal,
    )


def record_of(episode: LeasedEpisode) -> EpisodeRecord:
    """Return an open episode with every id, without texts."""
    calls = tuple(call_of(node) for node in list(episode.tree.nodes))
    return EpisodeRecord(**summary_of(episode).model_dump(), record=calls)


def call_of(node: Node) -> CallRecord:
    """Return a call's ids."""
    return CallRecord(
        index=node.index,
        parent=None if node.parent is None else node.parent.index,
        drift=str(node.drift),
        context=TokenSpan(ids=node.context, texts=()),
        sampled=TokenSpan(ids=node.sampled, texts=(), logprobs=node.logprobs, versions=node.versions),
        trained=node.trained,
        agent=node.agent or None,
    )
