"""APIRouter: episodes, job, checkpoints, metrics (pydantic, Depends(role)).

Path, method and keys of an operation come from the table, its work from a handler. The key is judged before the body is
read. A lease token opens the routes of its own episode alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from swarm.dialects.chat import model_card, models
from swarm.errors import Forbidden, NotFound
from swarm.job import Job
from swarm.rollout.keys import Claims
from swarm.server.events import EVENT_ID
from swarm.server.export import MEDIA, Export, Exporter, ExportFormat
from swarm.server.http import DisconnectWatcher, authorize, json_response, parse_body, read_body
from swarm.server.inspection import LISTED, MOST_LISTED, Inspection
from swarm.server.openapi import Operation, openapi
from swarm.server.prometheus import MEDIA as PROMETHEUS
from swarm.server.prometheus import exposition
from swarm.server.service import SwarmServer
from swarm.server.watching import HistoryQuery, history, snapshot_of
from swarm.snapshot import HistoryPage, Snapshot
from swarm.wire import (
    EXPORT_HEADER,
    AbortRequest,
    Ack,
    BeginRequest,
    CheckpointList,
    EndRequest,
    EpisodeList,
    EpisodeRecord,
    EraseRequest,
    Erasure,
    Lease,
    PrepareRequest,
    Released,
    ReleaseRequest,
    SharesRequest,
    Status,
    StreamList,
    TaskList,
    TaskListKnown,
)

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class AuthorizedRequest:
    """A request whose key may make it; `claims` are None where none is needed."""

    request: Request
    claims: Claims | None

    async def body(self, kind: type[M], read: Callable[[bytes], M] | None = None) -> M:
        """Return the body as a wire type, by `read` or its own reading; InvalidRequest names a wrong field."""
        return parse_body(kind, await read_body(self.request.receive), read)

    def query(self, kind: type[M]) -> M:
        return parse_body(kind, to_json(dict(self.request.query_params)))

    @property
    def holder(self) -> Claims:
        assert self.claims is not None  # the table asks for a lease token
        return self.claims


Handler = Callable[[AuthorizedRequest], Awaitable[BaseModel | Response]]
"""Does the work of an operation; a model that it returns is answered as JSON."""


def make_route(operation: Operation, handler: Handler) -> Route:
    async def serve(request: Request) -> Response:
        answer = await handler(AuthorizedRequest(request, _claims(request, operation)))
        return answer if isinstance(answer, Response) else json_response(answer.model_dump_json().encode())

    return Route(operation.path, serve, methods=[operation.method])


def _claims(request: Request, operation: Operation) -> Claims | None:
    if not operation.roles and not operation.uses:
        return None
    claims = authorize(request.scope, roles=operation.roles, uses=operation.uses)
    if claims.use == "lease" and claims.episode != request.path_params["episode_id"]:
        raise Forbidden(f"this lease token is for episode {claims.episode}, not for the one in the path")
    return claims


def _by_name(handlers: object) -> Mapping[str, Handler]:
    """Return the methods of an object that serves operations: they are named as these are."""
    return {name: getattr(handlers, name) for name in vars(type(handlers)) if not name.startswith("_")}


def control_handlers(server: SwarmServer) -> Mapping[str, Handler]:
    return _by_name(_Handlers(server))


class _AbortQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    failed: bool = False


class _Handlers:
    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    async def health(self, _: AuthorizedRequest) -> Response:
        return json_response(b'{"status":"ok"}')

    async def load_job(self, asked: AuthorizedRequest) -> Status:
        return self._server.load(await asked.body(Job, Job.from_record))

    async def job(self, _: AuthorizedRequest) -> Response:
        return json_response(json.dumps(self._server.job.value()).encode())

    async def start_engine(self, _: AuthorizedRequest) -> Status:
        return await self._server.start()

    async def stop_engine(self, _: AuthorizedRequest) -> Status:
        return await asyncio.shield(asyncio.ensure_future(self._server.stop()))

    async def status(self, _: AuthorizedRequest) -> Status:
        return self._server.status()

    async def begin(self, asked: AuthorizedRequest) -> Lease:
        wanted = await asked.body(BeginRequest)
        training = self._server.training
        with DisconnectWatcher(asked.request.receive).cancel_on_disconnect():
            episode = await training.rollout.begin(wanted)
        keys = self._server.keys
        return Lease(
            episode_id=episode.id,
            epoch=episode.fencing_token,
            task_id=episode.task_id,
            kind=episode.kind,
            api_key=keys.model_key(episode.id, episode.fencing_token),
            lease_token=keys.lease_key(episode.id, episode.fencing_token),
            base_url=f"{asked.request.base_url}v1",  # the address the client came by, whatever lies between
            model=training.backend.model_name,
            ttl_s=min(training.job.lease_ttl_s, training.job.drain_timeout_s),
            policy_version=training.version,
        )

    async def heartbeat(self, asked: AuthorizedRequest) -> Ack:
        return self._server.training.rollout.heartbeat(asked.holder)

    async def end(self, asked: AuthorizedRequest) -> Response:
        ended = await self._server.training.rollout.end(asked.holder, await asked.body(EndRequest))
        return json_response(ended.model_dump_json(exclude_none=True).encode())

    async def abort(self, asked: AuthorizedRequest) -> Ack:
        aborted = await asked.body(AbortRequest)
        failed = asked.query(_AbortQuery).failed
        return await self._server.training.rollout.abort(asked.holder, aborted.reason, failed=failed)

    async def prepare(self, asked: AuthorizedRequest) -> Ack:
        prepared = await asked.body(PrepareRequest)
        return await self._server.training.rollout.teams.prepare(asked.holder, prepared)

    async def commit(self, asked: AuthorizedRequest) -> Ack:
        return await self._server.training.rollout.teams.commit(asked.holder)

    async def outcome(self, asked: AuthorizedRequest) -> Ack:
        return await self._server.training.rollout.teams.outcome(asked.holder)

    async def streams(self, _: AuthorizedRequest) -> StreamList:
        return self._server.training.rollout.streams()

    async def share_streams(self, asked: AuthorizedRequest) -> StreamList:
        wanted = await asked.body(SharesRequest)
        return await self._server.training.rollout.set_shares(wanted.shares)

    async def list_tasks(self, asked: AuthorizedRequest) -> TaskListKnown:
        listed = await asked.body(TaskList)
        return await self._server.training.rollout.list_tasks(listed)

    async def release(self, asked: AuthorizedRequest) -> Released:
        left = await asked.body(ReleaseRequest)
        return self._server.training.rollout.release(left)

    async def erase(self, asked: AuthorizedRequest) -> Erasure:
        return await self._server.erase(await asked.body(EraseRequest))

    async def models(self, _: AuthorizedRequest) -> Response:
        return json_response(models(self._server.training.backend.model_name))

    async def model(self, asked: AuthorizedRequest) -> Response:
        name, served = asked.request.path_params["model"], self._server.training.backend.model_name
        if name != served:
            raise NotFound(f"there is no model {name[:80]!r}; the one here is {served!r}", param="model")
        return json_response(to_json(model_card(served)))


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
    return _by_name(_Readers(server, keep_alive_s))


class _Readers:
    def __init__(self, server: SwarmServer, keep_alive_s: float) -> None:
        self._server = server
        self._keep_alive_s = keep_alive_s
        self._inspection = Inspection(server)
        self._exports = Exporter(self._inspection)

    async def episodes(self, asked: AuthorizedRequest) -> EpisodeList:
        return await self._inspection.episodes(asked.query(_ListQuery).limit)

    async def episode(self, asked: AuthorizedRequest) -> EpisodeRecord:
        return await self._inspection.episode(asked.request.path_params["episode_id"])

    async def samples(self, asked: AuthorizedRequest) -> Response:
        wanted = asked.query(_SamplesQuery)
        with DisconnectWatcher(asked.request.receive).cancel_on_disconnect():
            export = await self._exports.make(wanted.format, wanted.episode)
        return _ExportResponse(export, MEDIA[wanted.format])

    async def checkpoints(self, _: AuthorizedRequest) -> CheckpointList:
        return await self._server.checkpoints()

    async def events(self, asked: AuthorizedRequest) -> Response:
        request, wanted = asked.request, asked.query(_EventsQuery)
        last = request.headers.get("last-event-id") or wanted.after  # a browser that comes back repeats its old query
        wait_s = 0.0 if request.method == "HEAD" else wanted.wait_s  # no body is sent that a client could leave
        content = self._server.events.stream(last, keep_alive_s=self._keep_alive_s, wait_s=wait_s)
        return StreamingResponse(content, headers={"cache-control": "no-cache"}, media_type="text/event-stream")

    async def metrics(self, _: AuthorizedRequest) -> Response:
        return Response(exposition(self._server), media_type=PROMETHEUS)

    async def snapshot(self, _: AuthorizedRequest) -> Snapshot:
        return snapshot_of(self._server)

    async def history(self, asked: AuthorizedRequest) -> HistoryPage:
        return await history(self._server, asked.query(HistoryQuery))

    async def openapi(self, _: AuthorizedRequest) -> Response:
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
        async def send_with_timeout(message: Message) -> None:
            async with asyncio.timeout(STALLED_S):
                await send(message)

        with self._export:
            try:
                await super().__call__(scope, receive, send_with_timeout)
            except TimeoutError:
                log.info("event=export_stalled seconds=%g", STALLED_S)
