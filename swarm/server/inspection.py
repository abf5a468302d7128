"""Episodes as people inspect them, and their exports: JSON lines, OpenEnv traces, parquet.

A record never says less than is known: while an engine runs, an open episode is shown as it is this moment, every other
one as it was written down, and every id with its text; else what was written, without texts. Texts of ids joined are
the text of the whole span, whatever the tokenizer does with spaces at the beginning of a text and with characters whose
bytes are spread over several ids.

What makes an export impossible (no such episode, its tokens gone, a missing package) is refused before the first byte:
a file on disk is made first. Memory holds one episode, or a few for parquet. Only so many exports run at once.

OpenEnv (schema 1 of `openenv.core.harness.training`, openenv 0.10): one turn per call with the whole prompt; every
sampled id of a trained call is trained once; what has no field stands in each turn's `metadata`. Parquet (needs
pyarrow, the extra `export`): one row per call; nulls stand for what nobody said; `logprobs` are natural; `call_reward`
is null where it is the episode's. The metadata's `ajet_schema` is 5; version 4 lacked `message`, 3 also texts, 2 also
`code`, `call_reward` and `agent`, 1 also `trained` (all calls were).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import IO, Any, Literal, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from swarm.backends.protocols import NO_ROOM
from swarm.calls.generation import read_message
from swarm.errors import EngineUnavailable, InvalidRequest, NotFound, ServerFailed, StoreUnavailable, Throttled
from swarm.rendering.messages import Renderer
from swarm.rollout.episodes import LeasedEpisode
from swarm.server.service import SwarmServer
from swarm.store.reading import ExportableEpisodes, call_record
from swarm.training.loop import Training
from swarm.wire import EXPORT_HEADER, CallRecord, EpisodeList, EpisodeRecord, EpisodeSummary, ExportCounts, TokenSpan

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
        """Return the newest episodes, the open ones as they are now."""
        training = self._training()
        live = {episode.id: episode for episode in training.rollout.leases} if training is not None else {}
        written = (await self._server.written.episodes(limit + len(live))).episodes
        known = {summary.id for summary in written}
        unwritten = [summary_of(episode) for name, episode in live.items() if name not in known]
        merged = [summary_of(live[old.id]) if old.id in live else self._with_memory(old) for old in written]
        return EpisodeList(episodes=tuple([*reversed(unwritten), *merged][:limit]))

    async def episode(self, name: str) -> EpisodeRecord:
        record, renderer = await self.tokens(name), self.renderer
        return record if renderer is None else await asyncio.to_thread(with_texts, record, renderer)

    @property
    def renderer(self) -> Renderer | None:
        training = self._training()
        return None if training is None else training.rollout.renderer

    async def list_exportable(self) -> ExportableEpisodes:
        """Return which episodes can be exported, the open ones that are not written last."""
        training, written = self._training(), await self._server.written.list_exportable()
        known = set(written.names)
        live = (episode.id for episode in training.rollout.leases) if training is not None else ()
        return written._replace(names=[*written.names, *(name for name in live if name not in known)])

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


log = logging.getLogger(__name__)


def training_trace(record: EpisodeRecord, renderer: Renderer | None = None) -> dict[str, Any]:
    """Return the episode as a TrainingTrace, with words where there is a renderer to read ids; calls that sampled
    nothing go."""
    turns: list[dict[str, Any]] = [
        {
            "node_id": f"{record.id}/{call.index}",
            "prompt_token_ids": list(prompt),
            "completion_token_ids": list(call.sampled.ids),
            "per_token_logps": list(call.sampled.logprobs),
            "loss_mask": [0] * len(prompt) + [int(call.trained)] * len(call.sampled.ids),
            "metadata": {
                "episode": record.id,
                "parent": None if call.parent is None else f"{record.id}/{call.parent}",
                "drift": call.drift,
                "versions": list(call.sampled.versions),
                "trained": call.trained,
                **({} if call.reward is None else {"call_reward": call.reward}),
                **({} if call.agent is None else {"agent": call.agent}),
                **_decode_call(call, prompt, renderer),
                **record.model_dump(mode="json", include=_OF_THE_EPISODE),
            },
        }
        for call, prompt in prompts(record)
        if call.sampled.ids
    ]
    return {"schema_version": 1, "turns": turns}


def prompts(record: EpisodeRecord) -> Iterator[tuple[CallRecord, tuple[int, ...]]]:
    through: dict[int, tuple[int, ...]] = {}
    for call in record.record:  # parents come before children
        before = through[call.parent] if call.parent is not None else ()
        prompt = before + call.context.ids
        through[call.index] = prompt + call.sampled.ids
        yield call, prompt


def _decode_call(call: CallRecord, prompt: Sequence[int], renderer: Renderer | None) -> dict[str, Any]:
    if renderer is None:
        return {}
    shown, said = (renderer.decode(ids, special=True) for ids in (prompt, call.sampled.ids))
    return {"prompt_text": shown, "sampled_text": said, "message": read_message(renderer, shown, call.sampled.ids)}


_OF_THE_EPISODE = {"task_id", "stream", "kind", "state", "reason", "group", "step", "reward", "success", "code"}
_ROWS_A_GROUP = 256


class ParquetExport:
    """Writes one parquet file to an open binary file; `close` makes it whole."""

    def __init__(self, file: IO[bytes], renderer: Renderer | None = None) -> None:
        self._renderer = renderer
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InvalidRequest(
                "parquet needs pyarrow where the server runs: pip install 'ajet[export]'; or take format=openenv",
                param="format",
            ) from None
        self._arrow = pyarrow
        named = ("episode", "task_id", "stream", "kind", "owner", "state", "group", "reason", "code")
        text, whole, ids = pyarrow.string(), pyarrow.int32(), pyarrow.list_(pyarrow.int32())
        kinds = {
            **dict.fromkeys(named, text),
            "step": pyarrow.int64(),
            "reward": pyarrow.float64(),
            "success": pyarrow.bool_(),
            "call": whole,
            "parent": whole,
            "drift": text,
            "prompt_ids": ids,
            "sampled_ids": ids,
            "prompt_text": text,
            "sampled_text": text,
            "message": text,
            "logprobs": pyarrow.list_(pyarrow.float64()),
            "versions": ids,
            "trained": pyarrow.bool_(),
            "call_reward": pyarrow.float64(),
            "agent": text,
        }
        self._schema = pyarrow.schema(list(kinds.items()), metadata={"ajet_schema": "5"})
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, record: EpisodeRecord) -> None:
        shared = record.model_dump(exclude={"record", "id", "calls", "tokens", "refusals", "refusal"})
        for call, prompt in prompts(record):
            texts = _decode_call(call, prompt, self._renderer)
            self._rows.append(
                {
                    "episode": record.id,
                    **shared,
                    "call": call.index,
                    "parent": call.parent,
                    "drift": call.drift,
                    "prompt_ids": prompt,
                    "sampled_ids": call.sampled.ids,
                    **texts,
                    **({"message": json.dumps(texts["message"])} if texts else {}),
                    "logprobs": call.sampled.logprobs,
                    "versions": call.sampled.versions,
                    "trained": call.trained,
                    "call_reward": call.reward,
                    "agent": call.agent,
                }
            )
        if len(self._rows) >= _ROWS_A_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []


class LinesExport:
    """Writes a training trace a line."""

    def __init__(self, file: IO[bytes], renderer: Renderer | None = None) -> None:
        self._file = file
        self._renderer = renderer

    def write(self, record: EpisodeRecord) -> None:
        self._file.write(json.dumps(training_trace(record, self._renderer), separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.flush()


ExportFormat = Literal["openenv", "parquet"]
MEDIA: dict[ExportFormat, str] = {"openenv": "application/jsonl", "parquet": "application/vnd.apache.parquet"}
MOST_AT_ONCE = 2
"""Exports that are made or sent at once: each has its file in the folder for temporary ones."""
AGAIN_S = 10.0
"""After so long whoever was refused may try again."""
_PIECE = 1 << 18
STALLED_S = 300.0
"""A client that takes nothing of an export for so long is given up, so that others have its place."""


class Exporter:
    """Makes the exports of one server; holds a place for each until it is closed."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self.under_way = 0

    async def make(self, form: ExportFormat, episode: str | None) -> Export:
        """Return the export of one episode, or of all, of which those without a token are left out. Raises Throttled
        where enough are under way, and StoreUnavailable on a full disk, with nothing left there."""
        if self.under_way >= MOST_AT_ONCE:
            raise Throttled(
                f"expected fewer than {MOST_AT_ONCE} exports under way, found {self.under_way}; try again once one of "
                "them is sent",
                retry_after=AGAIN_S,
            )
        self.under_way += 1
        try:
            return Export(self, *await self._make(form, episode), MEDIA[form])
        except BaseException:
            self.under_way -= 1
            raise

    async def _make(self, form: ExportFormat, episode: str | None) -> tuple[ExportCounts, IO[bytes]]:
        kept = ExportableEpisodes([episode]) if episode is not None else await self._inspection.list_exportable()
        if episode is not None:
            record = await self._inspection.tokens(episode)
            if not any(call.sampled.ids for call in record.record):
                raise NotFound(
                    f"episode {record.id} has no tokens: it made no call, or they went with an old checkpoint"
                )
        counts = Counter(pruned=kept.pruned, no_tokens=kept.no_tokens)
        renderer = self._inspection.renderer
        file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its `Export`
        try:
            writer = ParquetExport(file, renderer) if form == "parquet" else LinesExport(file, renderer)
            async for record in self._read_records(kept.names, counts):
                await asyncio.to_thread(writer.write, record)
            await asyncio.to_thread(writer.close)
            file.seek(0)
        except BaseException as error:
            with contextlib.suppress(OSError):  # what it still holds is written at its end, and the disk is still full
                file.close()
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                folder = tempfile.gettempdir()
                raise StoreUnavailable(f"no room for the export in {folder}: free space there") from error
            raise
        return ExportCounts(**counts), file

    async def _read_records(self, names: Sequence[str], counts: Counter[str]) -> AsyncIterator[EpisodeRecord]:
        for name in names:
            try:
                record = await self._inspection.tokens(name)
            except NotFound:
                counts["withdrawn"] += 1
                continue
            if any(call.sampled.ids for call in record.record):
                counts["episodes"] += 1
                yield record
            else:
                counts["pruned" if record.tokens else "no_tokens"] += 1


class Export(StreamingResponse):
    """Sends one export. Its file and its place are free then, whatever becomes of the client."""

    def __init__(self, exports: Exporter, counts: ExportCounts, file: IO[bytes], media: str) -> None:
        super().__init__(self.pieces(), headers={EXPORT_HEADER: counts.model_dump_json()}, media_type=media)
        self._exports = exports
        self._file = file

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self._file.read, _PIECE):
            yield piece

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_timeout(message: Message) -> None:
            async with asyncio.timeout(STALLED_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_with_timeout)
        except TimeoutError:
            log.info("event=export_stalled seconds=%g", STALLED_S)
        finally:
            self._file.close()
            self._exports.under_way -= 1
