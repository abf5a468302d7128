"""The control plane's routes (see `swarm.wire`), and `/v1/models` and `/health`. Keys are judged before bodies."""

from __future__ import annotations

import asyncio
import json

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from swarm.errors import Forbidden
from swarm.job import Job
from swarm.server.core import SwarmServer
from swarm.server.dialects.chat import models
from swarm.server.episodes import Episode
from swarm.server.http import Presence, json_response, parsed, read_body
from swarm.server.keys import Claims, Role, Use
from swarm.server.training import Training
from swarm.wire import (
    AbortRequest,
    BeginRequest,
    EndRequest,
    Lease,
    PrepareRequest,
    ReleaseRequest,
    SharesRequest,
    TaskList,
)

_ANYONE: tuple[Role, ...] = ("admin", "client", "viewer")


def control_routes(server: SwarmServer) -> APIRouter:
    """Return the routes around one server."""
    router = APIRouter(redirect_slashes=False)
    handlers = _Handlers(server)
    for method, path, handler in (
        ("GET", "/health", handlers.health),
        ("POST", "/job", handlers.load),
        ("GET", "/job", handlers.job),
        ("POST", "/engine/start", handlers.start),
        ("POST", "/engine/stop", handlers.stop),
        ("GET", "/status", handlers.status),
        ("POST", "/episodes", handlers.begin),
        ("POST", "/episodes/{episode_id}/heartbeat", handlers.heartbeat),
        ("POST", "/episodes/{episode_id}/end", handlers.end),
        ("POST", "/episodes/{episode_id}/abort", handlers.abort),
        ("POST", "/episodes/{episode_id}/prepare", handlers.prepare),
        ("POST", "/episodes/{episode_id}/commit", handlers.commit),
        ("GET", "/episodes/{episode_id}/outcome", handlers.outcome),
        ("GET", "/streams", handlers.streams),
        ("POST", "/streams", handlers.share),
        ("POST", "/streams/tasks", handlers.list_tasks),
        ("POST", "/owners/release", handlers.release),
        ("GET", "/v1/models", handlers.models),
    ):
        router.add_route(path, handler, methods=[method])
    return router


class _Handlers:
    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    async def health(self, _: Request) -> Response:
        return json_response(b'{"status":"ok"}')

    async def load(self, request: Request) -> Response:
        self._authorise(request, roles=("admin",))
        return _answer(self._server.load(parsed(Job, await read_body(request.receive), Job.recorded)))

    async def job(self, request: Request) -> Response:
        self._authorise(request, roles=_ANYONE)
        return json_response(json.dumps(self._server.job.value()).encode())

    async def start(self, request: Request) -> Response:
        self._authorise(request, roles=("admin",))
        return _answer(await self._server.start())

    async def stop(self, request: Request) -> Response:
        self._authorise(request, roles=("admin",))
        return _answer(await asyncio.shield(asyncio.ensure_future(self._server.stop())))

    async def status(self, request: Request) -> Response:
        self._authorise(request, roles=_ANYONE)
        return _answer(self._server.status())

    async def begin(self, request: Request) -> Response:
        self._authorise(request, roles=("client", "admin"))
        asked = parsed(BeginRequest, await read_body(request.receive))
        training = self._server.training
        presence = Presence(request.receive)
        try:
            with presence.required():
                episode = await training.rollout.begin(asked)
        except asyncio.CancelledError:
            if not presence.gone:
                raise
            return Response(status_code=499)  # nobody reads it
        return _answer(self._lease(request, training, episode))

    async def heartbeat(self, request: Request) -> Response:
        claims = self._holder(request)
        return _answer(self._server.training.rollout.heartbeat(claims))

    async def end(self, request: Request) -> Response:
        claims = self._holder(request)
        ended = parsed(EndRequest, await read_body(request.receive))
        return _answer(await self._server.training.rollout.end(claims, ended))

    async def abort(self, request: Request) -> Response:
        claims = self._holder(request)
        asked = parsed(AbortRequest, await read_body(request.receive))
        return _answer(await self._server.training.rollout.abort(claims, asked.reason))

    async def prepare(self, request: Request) -> Response:
        claims = self._holder(request)
        prepared = parsed(PrepareRequest, await read_body(request.receive))
        return _answer(await self._server.training.rollout.teams.prepare(claims, prepared))

    async def commit(self, request: Request) -> Response:
        claims = self._holder(request)
        return _answer(await self._server.training.rollout.teams.commit(claims))

    async def outcome(self, request: Request) -> Response:
        claims = self._holder(request)
        return _answer(await self._server.training.rollout.teams.outcome(claims))

    async def streams(self, request: Request) -> Response:
        self._authorise(request, roles=_ANYONE)
        return _answer(self._server.training.rollout.streams())

    async def share(self, request: Request) -> Response:
        self._authorise(request, roles=("admin",))
        asked = parsed(SharesRequest, await read_body(request.receive))
        return _answer(await self._server.training.rollout.set_shares(asked.shares))

    async def list_tasks(self, request: Request) -> Response:
        self._authorise(request, roles=("client", "admin"))
        asked = parsed(TaskList, await read_body(request.receive))
        return _answer(await self._server.training.rollout.list_tasks(asked))

    async def release(self, request: Request) -> Response:
        self._authorise(request, roles=("client", "admin"))
        asked = parsed(ReleaseRequest, await read_body(request.receive))
        return _answer(self._server.training.rollout.release(asked))

    async def models(self, request: Request) -> Response:
        self._authorise(request, roles=_ANYONE, uses=("model",))
        return json_response(models(self._server.training.backend.model_name))

    def _authorise(self, request: Request, *, roles: tuple[Role, ...] = (), uses: tuple[Use, ...] = ()) -> Claims:
        return self._server.keys.authorise(request.headers.get("authorization"), roles=roles, uses=uses)

    def _holder(self, request: Request) -> Claims:
        """Return the claims of the lease token of the very episode the path names."""
        claims = self._authorise(request, uses=("lease",))
        if claims.episode != request.path_params["episode_id"]:
            raise Forbidden(f"this lease token is for episode {claims.episode}, not for the one in the path")
        return claims

    def _lease(self, request: Request, training: Training, episode: Episode) -> Lease:
        keys = self._server.keys
        return Lease(
            episode_id=episode.id,
            epoch=episode.epoch,
            task_id=episode.task_id,
            kind=episode.kind,
            api_key=keys.model(episode.id, episode.epoch),
            lease_token=keys.lease(episode.id, episode.epoch),
            base_url=f"{request.base_url}v1",  # the address the client came by, whatever lies between
            model=training.backend.model_name,
            ttl_s=min(training.job.lease_ttl_s, training.job.drain_timeout_s),
            policy_version=training.version,
        )


def _answer(value: BaseModel) -> Response:
    return json_response(value.model_dump_json().encode())
