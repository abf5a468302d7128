"""What the operations do that only read: episodes and their export, checkpoints, metrics, events, the document."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from swarm.server.http.http import Presence, json_response
from swarm.server.http.prometheus import MEDIA as PROMETHEUS
from swarm.server.http.prometheus import exposition
from swarm.server.http.routes import Authorised, Handler
from swarm.server.http.schema import openapi
from swarm.server.service.core import SwarmServer
from swarm.server.service.export import MEDIA, Export, ExportFormat, Exports
from swarm.server.service.inspection import LISTED, MOST_LISTED, Inspection
from swarm.server.shared.event_stream import EVENT_ID
from swarm.server.watching.history import HistoryQuery, history
from swarm.server.watching.snapshots import snapshot_of
from swarm.snapshot import HistoryPage, Snapshot
from swarm.wire import EXPORT_HEADER, CheckpointList, EpisodeList, EpisodeRecord

log = logging.getLogger(__name__)

STALLED_S = 300.0
"""A client that takes nothing of an export for so long is given up, so that others have its place."""


class _Query(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _ListQuery(_Query):
    limit: int = Field(default=LISTED, ge=1, le=MOST_LISTED)


class _SamplesQuery(_Query):
    format: ExportFormat = "openenv"
    episode: str | None = None


class _EventsQuery(_Query):
    after: str | None = Field(default=None, pattern=EVENT_ID)
    wait_s: float | None = Field(default=None, ge=0, le=86_400, allow_inf_nan=False)


def reading_handlers(server: SwarmServer, keep_alive_s: float) -> Mapping[str, Handler]:
    """Return what serves these operations; a silent stream of events sends a sign of life every `keep_alive_s`."""
    readers = _Readers(server, keep_alive_s)
    return {
        "episodes": readers.episodes,
        "episode": readers.episode,
        "samples": readers.samples,
        "checkpoints": readers.checkpoints,
        "events": readers.events,
        "metrics": readers.metrics,
        "snapshot": readers.snapshot,
        "history": readers.history,
        "openapi": readers.openapi,
    }


class _Readers:
    def __init__(self, server: SwarmServer, keep_alive_s: float) -> None:
        self._server = server
        self._keep_alive_s = keep_alive_s
        self._inspection = Inspection(server)
        self._exports = Exports(self._inspection)

    async def episodes(self, asked: Authorised) -> EpisodeList:
        return await self._inspection.episodes(asked.query(_ListQuery).limit)

    async def episode(self, asked: Authorised) -> EpisodeRecord:
        return await self._inspection.episode(asked.request.path_params["episode_id"])

    async def samples(self, asked: Authorised) -> Response:
        wanted = asked.query(_SamplesQuery)
        presence = Presence(asked.request.receive)
        try:
            with presence.required():
                export = await self._exports.make(wanted.format, wanted.episode)
        except asyncio.CancelledError:
            if not presence.gone:
                raise
            return Response(status_code=499)  # nobody reads it
        return _ExportResponse(export, MEDIA[wanted.format])

    async def checkpoints(self, _: Authorised) -> CheckpointList:
        return await self._server.checkpoints()

    async def events(self, asked: Authorised) -> Response:
        request, wanted = asked.request, asked.query(_EventsQuery)
        last = request.headers.get("last-event-id") or wanted.after  # a browser that comes back repeats its old query
        wait_s = 0.0 if request.method == "HEAD" else wanted.wait_s  # no body is sent that a client could leave
        content = self._server.events.stream(last, keep_alive_s=self._keep_alive_s, wait_s=wait_s)
        return StreamingResponse(content, headers={"cache-control": "no-cache"}, media_type="text/event-stream")

    async def metrics(self, _: Authorised) -> Response:
        return Response(exposition(self._server), media_type=PROMETHEUS)

    async def snapshot(self, _: Authorised) -> Snapshot:
        return snapshot_of(self._server)

    async def history(self, asked: Authorised) -> HistoryPage:
        return await history(self._server, asked.query(HistoryQuery))

    async def openapi(self, _: Authorised) -> Response:
        return json_response(await asyncio.to_thread(_document))  # model calls do not wait for it


@cache
def _document() -> bytes:
    """Return the OpenAPI document, made when it is first asked for: no server starts later for it."""
    return json.dumps(openapi()).encode()


class _ExportResponse(StreamingResponse):
    """Sends an export, and frees its place whatever becomes of the client."""

    def __init__(self, export: Export, media: str) -> None:
        super().__init__(export.pieces(), headers={EXPORT_HEADER: export.counts.model_dump_json()}, media_type=media)
        self._export = export

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            async with asyncio.timeout(STALLED_S):
                await send(message)

        with self._export:
            try:
                await super().__call__(scope, receive, sent)
            except TimeoutError:
                log.info("event=export_stalled seconds=%g", STALLED_S)
