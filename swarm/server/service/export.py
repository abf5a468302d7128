"""Exports episodes as a stream of bytes; the formats are in `swarm.exports`.

Promises that what makes an export impossible (no such episode, its tokens gone, a missing package) is refused
before the first byte, and that memory holds one episode, or a few for parquet, whatever the whole is: a file on disk is
made first, so that what was left out can be told before it. So few are made or sent at once that their files stay few;
others are told to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import IO, Literal, Self

from swarm.backends.protocols import NO_ROOM
from swarm.errors import NotFound, StoreUnavailable, Throttled
from swarm.exports import ParquetExport, TokenReading, training_trace
from swarm.server.calls.generation import read_message
from swarm.server.service.inspection import Inspection
from swarm.store import Kept
from swarm.wire import EpisodeRecord, ExportCounts

ExportFormat = Literal["openenv", "parquet"]
MEDIA: dict[ExportFormat, str] = {"openenv": "application/jsonl", "parquet": "application/vnd.apache.parquet"}
MOST_AT_ONCE = 2
"""Exports that are made or sent at once: each has its file in the folder for temporary ones."""
AGAIN_S = 10.0
"""After so long whoever was refused may try again."""
_PIECE = 1 << 18


class Exports:
    """Makes the exports of one server; holds a place for each until it is closed."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self.under_way = 0

    async def make(self, form: ExportFormat, episode: str | None) -> Export:
        """Return the export of one episode, or of all, of which those without a token are left out.

        Raises Throttled where enough are under way, and StoreUnavailable on a full disk, with nothing left there.
        """
        if self.under_way >= MOST_AT_ONCE:
            raise Throttled(
                f"expected fewer than {MOST_AT_ONCE} exports under way, found {self.under_way}; try again once one of "
                "them is sent",
                retry_after=AGAIN_S,
            )
        self.under_way += 1
        try:
            return Export(self, *await self._made(form, episode))
        except BaseException:
            self.under_way -= 1
            raise

    async def _made(self, form: ExportFormat, episode: str | None) -> tuple[ExportCounts, IO[bytes]]:
        kept = Kept([episode]) if episode is not None else await self._inspection.kept()
        if episode is not None:
            _check(await self._inspection.tokens(episode))
        found = Counter(pruned=kept.pruned, no_tokens=kept.no_tokens)
        records = _records(self._inspection, kept.names, found)
        write, renderer = _parquet if form == "parquet" else _lines, self._inspection.renderer
        reading = None
        if renderer is not None:
            reading = TokenReading(partial(renderer.decode, special=True), partial(read_message, renderer))
        content = await _whole(lambda file: write(records, file, reading))
        return ExportCounts(**found), content


class Export:
    """One export: `counts` says what is in it. Its file and its place are free once it is left."""

    def __init__(self, exports: Exports, counts: ExportCounts, file: IO[bytes]) -> None:
        self._exports = exports
        self.counts = counts
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._exports.under_way -= 1

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield its bytes."""
        while piece := await asyncio.to_thread(self._file.read, _PIECE):
            yield piece


def _check(record: EpisodeRecord) -> None:
    if not any(call.sampled.ids for call in record.record):
        raise NotFound(f"episode {record.id} has no tokens: it made no call, or they went with an old checkpoint")


async def _records(inspection: Inspection, names: Sequence[str], found: Counter[str]) -> AsyncIterator[EpisodeRecord]:
    for name in names:
        try:
            record = await inspection.tokens(name)
        except NotFound:
            found["withdrawn"] += 1
            continue
        if any(call.sampled.ids for call in record.record):
            found["episodes"] += 1
            yield record
        elif record.tokens:
            found["pruned"] += 1
        else:
            found["no_tokens"] += 1


async def _lines(records: AsyncIterator[EpisodeRecord], file: IO[bytes], reading: TokenReading | None) -> None:
    def write(record: EpisodeRecord) -> None:
        file.write(json.dumps(training_trace(record, reading), separators=(",", ":")).encode() + b"\n")

    async for record in records:
        await asyncio.to_thread(write, record)


async def _parquet(records: AsyncIterator[EpisodeRecord], file: IO[bytes], reading: TokenReading | None) -> None:
    export = ParquetExport(file, reading)
    async for record in records:
        await asyncio.to_thread(export.write, record)
    await asyncio.to_thread(export.close)


async def _whole(write: Callable[[IO[bytes]], Awaitable[None]]) -> IO[bytes]:
    """Return the whole file, rewound: what was left out stands before it, and the footer of parquet at its end."""
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its `Export`
    try:
        await write(file)
        file.seek(0)
    except OSError as error:
        _discard(file)
        if error.errno in NO_ROOM:
            raise StoreUnavailable(f"no room for the export in {tempfile.gettempdir()}: free space there") from error
        raise
    except BaseException:
        _discard(file)
        raise
    return file


def _discard(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what it still holds is written at its end, and the disk is still full
        file.close()
