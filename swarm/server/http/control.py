"""What the control plane's operations do (see `swarm.wire`), and `/v1/models` and `/health`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from swarm.errors import NotFound
from swarm.job import Job
from swarm.server.dialects.chat.dialect import model_card, models
from swarm.server.episodes.episodes import LeasedEpisode
from swarm.server.http.http import Presence, json_response
from swarm.server.http.routes import Authorised, Handler
from swarm.server.service.core import SwarmServer
from swarm.server.training.training import Training
from swarm.wire import (
    AbortRequest,
    Ack,
    BeginRequest,
    EndRequest,
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


def control_handlers(server: SwarmServer) -> Mapping[str, Handler]:
    """Return what serves the control plane's operations, by their names."""
    handlers = _Handlers(server)
    return {
        "health": handlers.health,
        "load_job": handlers.load,
        "job": handlers.job,
        "start_engine": handlers.start,
        "stop_engine": handlers.stop,
        "status": handlers.status,
        "begin": handlers.begin,
        "heartbeat": handlers.heartbeat,
        "end": handlers.end,
        "abort": handlers.abort,
        "prepare": handlers.prepare,
        "commit": handlers.commit,
        "outcome": handlers.outcome,
        "streams": handlers.streams,
        "share_streams": handlers.share,
        "list_tasks": handlers.list_tasks,
        "release": handlers.release,
        "erase": handlers.erase,
        "models": handlers.models,
        "model": handlers.model,
    }


class _AbortQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    failed: bool = False


class _Handlers:
    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    async def health(self, _: Authorised) -> Response:
        return json_response(b'{"status":"ok"}')

    async def load(self, asked: Authorised) -> Status:
        return self._server.load(await asked.body(Job, Job.recorded))

    async def job(self, _: Authorised) -> Response:
        return json_response(json.dumps(self._server.job.value()).encode())

    async def start(self, _: Authorised) -> Status:
        return await self._server.start()

    async def stop(self, _: Authorised) -> Status:
        return await asyncio.shield(asyncio.ensure_future(self._server.stop()))

    async def status(self, _: Authorised) -> Status:
        return self._server.status()

    async def begin(self, asked: Authorised) -> Lease | Response:
        wanted = await asked.body(BeginRequest)
        training = self._server.training
        presence = Presence(asked.request.receive)
        try:
            with presence.required():
                episode = await training.rollout.begin(wanted)
        except asyncio.CancelledError:
            if not presence.gone:
                raise
            return Response(status_code=499)  # nobody reads it
        return self._lease(asked.request, training, episode)

    async def heartbeat(self, asked: Authorised) -> Ack:
        return self._server.training.rollout.heartbeat(asked.holder)

    async def end(self, asked: Authorised) -> Response:
        ended = await self._server.training.rollout.end(asked.holder, await asked.body(EndRequest))
        return json_response(ended.model_dump_json(exclude_none=True).encode())

    async def abort(self, asked: Authorised) -> Ack:
        aborted = await asked.body(AbortRequest)
        failed = asked.query(_AbortQuery).failed
        return await self._server.training.rollout.abort(asked.holder, aborted.reason, failed=failed)

    async def prepare(self, asked: Authorised) -> Ack:
        prepared = await asked.body(PrepareRequest)
        return await self._server.training.rollout.teams.prepare(asked.holder, prepared)

    async def commit(self, asked: Authorised) -> Ack:
        return await self._server.training.rollout.teams.commit(asked.holder)

    async def outcome(self, asked: Authorised) -> Ack:
        return await self._server.training.rollout.teams.outcome(asked.holder)

    async def streams(self, _: Authorised) -> StreamList:
        return self._server.training.rollout.streams()

    async def share(self, asked: Authorised) -> StreamList:
        wanted = await asked.body(SharesRequest)
        return await self._server.training.rollout.set_shares(wanted.shares)

    async def list_tasks(self, asked: Authorised) -> TaskListKnown:
        listed = await asked.body(TaskList)
        return await self._server.training.rollout.list_tasks(listed)

    async def release(self, asked: Authorised) -> Released:
        left = await asked.body(ReleaseRequest)
        return self._server.training.rollout.release(left)

    async def erase(self, asked: Authorised) -> Erasure:
        return await self._server.erase(await asked.body(EraseRequest))

    async def models(self, _: Authorised) -> Response:
        return json_response(models(self._server.training.backend.model_name))

    async def model(self, asked: Authorised) -> Response:
        name, served = asked.request.path_params["model"], self._server.training.backend.model_name
        if name != served:
            raise NotFound(f"there is no model {name[:80]!r}; the one here is {served!r}", param="model")
        return json_response(to_json(model_card(served)))

    def _lease(self, request: Request, training: Training, episode: LeasedEpisode) -> Lease:
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
