"""The routes that only read: episodes and their export, checkpoints, metrics, events, and what describes all routes."""

from __future__ import annotations

import json
from typing import TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from swarm.server.core import SwarmServer
from swarm.server.event_stream import EVENT_ID
from swarm.server.export import MEDIA, ExportFormat, exported
from swarm.server.http import json_response, parsed
from swarm.server.inspection import LISTED, MOST_LISTED, Inspection
from swarm.server.keys import Role
from swarm.server.operations import ANYONE
from swarm.server.prometheus import MEDIA as PROMETHEUS
from swarm.server.prometheus import exposition
from swarm.server.schema import openapi

Q = TypeVar("Q", bound=BaseModel)


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


def reading_routes(server: SwarmServer, keep_alive_s: float) -> APIRouter:
    """Return the routes around one server; a silent stream of events sends a sign of life every `keep_alive_s`."""
    router = APIRouter(redirect_slashes=False)
    readers = _Readers(server, keep_alive_s)
    for path, handler in (
        ("/episodes", readers.episodes),
        ("/episodes/{episode_id}", readers.episode),
        ("/samples", readers.samples),
        ("/checkpoints", readers.checkpoints),
        ("/events", readers.events),
        ("/metrics", readers.metrics),
        ("/openapi.json", readers.openapi),
    ):
        router.add_route(path, handler, methods=["GET"])
    return router


class _Readers:
    def __init__(self, server: SwarmServer, keep_alive_s: float) -> None:
        self._server = server
        self._keep_alive_s = keep_alive_s
        self._inspection = Inspection(server)
        self._document = json.dumps(openapi()).encode()

    async def episodes(self, request: Request) -> Response:
        self._authorise(request, ANYONE)
        found = await self._inspection.episodes(_query(_ListQuery, request).limit)
        return json_response(found.model_dump_json().encode())

    async def episode(self, request: Request) -> Response:
        self._authorise(request, ANYONE)
        found = await self._inspection.episode(request.path_params["episode_id"])
        return json_response(found.model_dump_json().encode())

    async def samples(self, request: Request) -> Response:
        self._authorise(request, ("admin", "client"))
        asked = _query(_SamplesQuery, request)
        names = [asked.episode] if asked.episode is not None else await self._inspection.names()
        content = await exported(asked.format, self._inspection, names)
        return StreamingResponse(content, media_type=MEDIA[asked.format])

    async def checkpoints(self, request: Request) -> Response:
        self._authorise(request, ANYONE)
        return json_response((await self._server.checkpoints()).model_dump_json().encode())

    async def events(self, request: Request) -> Response:
        self._authorise(request, ANYONE)
        asked = _query(_EventsQuery, request)
        last = request.headers.get("last-event-id") or asked.after  # a browser that comes back repeats its old query
        wait_s = 0.0 if request.method == "HEAD" else asked.wait_s  # no body is sent that a client could leave
        content = self._server.events.stream(last, keep_alive_s=self._keep_alive_s, wait_s=wait_s)
        return StreamingResponse(content, headers={"cache-control": "no-cache"}, media_type="text/event-stream")

    async def metrics(self, request: Request) -> Response:
        self._authorise(request, ANYONE)
        return Response(exposition(self._server), media_type=PROMETHEUS)

    async def openapi(self, request: Request) -> Response:
        self._authorise(request, ANYONE)
        return json_response(self._document)

    def _authorise(self, request: Request, roles: tuple[Role, ...]) -> None:
        self._server.keys.authorise(request.headers.get("authorization"), roles=roles)


def _query(kind: type[Q], request: Request) -> Q:
    """Return the query's parameters; InvalidRequest names one that is wrong or not known."""
    return parsed(kind, to_json(dict(request.query_params)))
