"""Episodes as people inspect them, and their export as JSON lines.

A record never says less than is known: while an engine runs, an open episode is shown as it is this moment, every other
one as it was written down, and every id with its text; else what was written, without texts. Texts of ids joined are
the text of the whole span, whatever the tokenizer does with spaces at the beginning of a text and with characters whose
bytes are spread over several ids.

An export has a record a line, the oldest first, each read when it is sent: memory holds one. One episode that is not
there, or has no tokens, is refused before the first byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TypeVar

from swarm.errors import EngineUnavailable, NotFound, ServerFailed
from swarm.rendering.messages import Renderer
from swarm.rollout.episodes import LeasedEpisode
from swarm.server.service import SwarmServer
from swarm.store.reading import call_record
from swarm.training.loop import Training
from swarm.wire import CallRecord, EpisodeList, EpisodeRecord, EpisodeSummary, ExportCounts, TokenSpan

_BROKEN = "�"
_LONGEST = 4
"""UTF-8 takes at most so many bytes a character, so that so many ids at most wait for it to be whole."""


def with_texts(record: EpisodeRecord, renderer: Renderer) -> EpisodeRecord:
    """Return the record with the text of every id, its special tokens marked and its cut answers told."""
    tails: dict[int, tuple[int, ...]] = {}
    calls: list[CallRecord] = []
    for call in record.record:  # parents come before children
        before = tails[call.parent] if call.parent is not None else ()
        context = _add_span_texts(call.context, renderer, before)
        before = (before + call.context.ids)[-_LONGEST:]
        sampled = _add_span_texts(call.sampled, renderer, before)
        tails[call.index] = (before + call.sampled.ids)[-_LONGEST:]
        cut = not call.sampled.ids or call.sampled.ids[-1] not in renderer.stop_ids
        calls.append(call.model_copy(update={"context": context, "sampled": sampled, "truncated": cut}))
    return record.model_copy(update={"record": tuple(calls)})


def token_texts(renderer: Renderer, ids: Sequence[int], before: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the text of each id; `before` are the ids in front of them (a few are enough). The last id of a character
    has it, the ids before have "". Bytes that are no character come out as U+FFFD."""
    decode = partial(renderer.decode, special=True)
    window = list(before[-1:])  # some tokenizers drop the space of the first id they decode
    shown, texts, held = decode(window), [], 0
    for token in ids:
        window.append(token)
        text = decode(window)
        held += 1
        if text.endswith(_BROKEN) and held < _LONGEST:
            texts.append("")
            continue
        texts.append(text[len(shown) :])
        window, held = window[-held:], 0
        shown = decode(window)
    if held:
        texts[-1] = decode(window)[len(shown) :]
    return tuple(texts)


def _add_span_texts(span: TokenSpan, renderer: Renderer, before: Sequence[int]) -> TokenSpan:
    texts = token_texts(renderer, span.ids, before)
    hidden = {
        token: not renderer.decode([token]) and bool(renderer.decode([token], special=True)) for token in set(span.ids)
    }
    special = tuple(place for place, token in enumerate(span.ids) if hidden[token])
    return span.model_copy(update={"texts": texts, "special": special})


LISTED = 100
"""Episodes in a list that does not say how many."""
MOST_LISTED = 10_000
SummaryT = TypeVar("SummaryT", bound=EpisodeSummary)


class Inspection:
    """Episodes of one server."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    async def episodes(self, limit: int = LISTED) -> EpisodeList:
        training = self._training()
        live = {episode.id: episode for episode in training.rollout.leases} if training is not None else {}
        written = (await self._server.written.episodes(limit + len(live))).episodes
        known = {summary.id for summary in written}
        unwritten = [summary_of(episode) for name, episode in live.items() if name not in known]
        merged = [summary_of(live[old.id]) if old.id in live else self._with_memory(old) for old in written]
        return EpisodeList(episodes=tuple([*reversed(unwritten), *merged][:limit]))

    async def episode(self, name: str) -> EpisodeRecord:
        record, training = await self.tokens(name), self._training()
        renderer = None if training is None else training.rollout.renderer
        return record if renderer is None else await asyncio.to_thread(with_texts, record, renderer)

    async def export(self, name: str | None) -> tuple[ExportCounts, AsyncIterator[bytes]]:
        """Return what an export of one episode, or of all, holds, and its lines. Raises NotFound for one without a
        token."""
        if name is not None:
            record = await self.tokens(name)
            if not has_tokens(record):
                raise NotFound(f"episode {name} has no tokens: it made no call, or they went with an old checkpoint")
            return ExportCounts(episodes=1), self._lines([name])
        training, written = self._training(), await self._server.written.list_exportable()
        live = [episode.id for episode in training.rollout.leases] if training is not None else []
        names = list(dict.fromkeys([*written.names, *live]))
        counts = ExportCounts(episodes=len(names), pruned=written.pruned, no_tokens=written.no_tokens)
        return counts, self._lines(names)

    async def _lines(self, names: Sequence[str]) -> AsyncIterator[bytes]:
        for name in names:
            try:
                record = await self.episode(name)
            except NotFound:  # it was given up meanwhile, as the lines that are missing tell
                continue
            if has_tokens(record):
                yield record.model_dump_json().encode() + b"\n"

    async def tokens(self, name: str) -> EpisodeRecord:
        training = self._training()
        for episode in training.rollout.leases if training is not None else ():
            if episode.id == name:
                calls = tuple(call_record(node) for node in list(episode.tree.nodes))
                return EpisodeRecord(**summary_of(episode).model_dump(), record=calls)
        found = await self._server.written.episode(name)
        if found is None:
            raise NotFound(f"there is no episode {name[:80]!r}; GET /episodes lists those that are known")
        return self._with_memory(found)

    def _with_memory(self, found: SummaryT) -> SummaryT:
        """Add what the server remembers of a closed episode: refused calls, and its end where that is not written."""
        training = self._training()
        closed = None if training is None else training.rollout.leases.closed.get(found.id)
        if closed is None:
            return found
        state = {"state": closed.state, "reason": closed.reason} if found.state in ("open", "prepared") else {}
        return found.model_copy(update={**state, "refusals": closed.refusals, "refusal": closed.refusal})

    def _training(self) -> Training | None:
        try:
            return self._server.training
        except (EngineUnavailable, ServerFailed):
            return None


def summary_of(episode: LeasedEpisode) -> EpisodeSummary:
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


def has_tokens(record: EpisodeRecord) -> bool:
    return any(call.sampled.ids for call in record.record)
