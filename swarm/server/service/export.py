"""Exports episodes as a stream of bytes; the formats are in `swarm.exports`.

Promises that what makes an export impossible (no such episode, its tokens gone, a missing package) is refused
before the first byte, and that memory holds one episode, or a few for parquet, whatever the whole is.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import IO, Literal

from swarm.errors import NotFound
from swarm.exports import ParquetExport, training_trace
from swarm.server.service.inspection import Inspection
from swarm.wire import EpisodeRecord

ExportFormat = Literal["openenv", "parquet"]
MEDIA: dict[ExportFormat, str] = {"openenv": "application/jsonl", "parquet": "application/vnd.apache.parquet"}
_PIECE = 1 << 18


async def exported(form: ExportFormat, inspection: Inspection, names: Sequence[str]) -> AsyncIterator[bytes]:
    """Return the pieces of the file. Episodes without a token (none sampled, or gone) are left out of many."""
    if len(names) == 1:
        _check(await inspection.tokens(names[0]))
    records = _records(inspection, names)
    return _pieces(await _parquet(records)) if form == "parquet" else _lines(records)


def _check(record: EpisodeRecord) -> None:
    if not any(call.sampled.ids for call in record.record):
        raise NotFound(f"episode {record.id} has no tokens: it made no call, or they went with an old checkpoint")


async def _records(inspection: Inspection, names: Sequence[str]) -> AsyncIterator[EpisodeRecord]:
    for name in names:
        try:
            record = await inspection.tokens(name)
        except NotFound:  # an open one that was given up since it was listed
            continue
        if any(call.sampled.ids for call in record.record):
            yield record


async def _lines(records: AsyncIterator[EpisodeRecord]) -> AsyncIterator[bytes]:
    async for record in records:
        trace = await asyncio.to_thread(training_trace, record)
        yield json.dumps(trace, separators=(",", ":")).encode() + b"\n"


async def _parquet(records: AsyncIterator[EpisodeRecord]) -> IO[bytes]:
    """Return the whole file, rewound: the footer of a parquet file is written last, and a reader wants it first."""
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was sent
    try:
        export = ParquetExport(file)
        async for record in records:
            await asyncio.to_thread(export.write, record)
        await asyncio.to_thread(export.close)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
