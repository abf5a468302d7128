"""Routes of the server: who may call, what goes in and what comes out; the OpenAPI document is made of them."""

import asyncio
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Path, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, PlainValidator
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from swarm import wire
from swarm.dialects.chat import CHAT, model_card
from swarm.dialects.messages import MESSAGES
from swarm.dialects.responses import RESPONSES
from swarm.errors import NotFound
from swarm.job import Job
from swarm.rollout.keys import Claims
from swarm.server import http, watching
from swarm.server.connections import FailureLimiter
from swarm.server.http import ControlRoute, Guard, Permission, error_responses, json_response
from swarm.server.model_endpoint import CHAT_PATH, PLAYING, BundleAnswer, CountEndpoint, ModelEndpoint, lease_of
from swarm.server.service import SwarmServer
from swarm.server.watching import LISTED, MOST_LISTED, Inspection
from swarm.snapshot import HistoryPage, Snapshot


async def served(request: Request) -> SwarmServer:
    server: SwarmServer = request.app.state.server
    return server


Server = Annotated[SwarmServer, Depends(served)]
Holder = Annotated[Claims, Depends(Permission(uses=("lease",)))]
"""What the lease token of the episode in the path says."""
ADMIN = [Depends(Permission("admin"))]
PLAYERS = [Depends(Permission(*PLAYING))]
BUNDLERS = [Depends(Permission(*PLAYING, uses=("model", "lease")))]
ANYONE = [Depends(Permission("admin", "client", "viewer"))]
READERS = [Depends(Permission("admin", "client", "viewer", uses=("model",)))]
JSON_LINES = "application/jsonl"
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {JSON_LINES: {}}}}
CONFLICT, LOST = error_responses(409), error_responses(409, 410)


router = APIRouter(
    route_class=ControlRoute,
    responses=error_responses(400, 401, 403, 404, 413, 429, 500, 503),
    generate_unique_id_function=lambda route: route.name,
)


class Health(BaseModel):
    """The process lives."""

    status: Literal["ok"]


class ModelList(BaseModel):
    """As OpenAI lists models."""

    object: Literal["list"]
    data: tuple[dict[str, Any], ...]


@router.get("/health")
async def health() -> Health:
    """Tell that the process lives."""
    return Health(status="ok")


def _parse_job(value: Any) -> Job:
    return Job.from_record(value) if isinstance(value, dict) else Job.model_validate(value)


@router.post("/job", dependencies=ADMIN, responses=CONFLICT)
async def load_job(
    body: Annotated[Job, PlainValidator(_parse_job, json_schema_input_type=Job)], server: Server
) -> wire.Status:
    """Load a job; nothing happens yet."""
    return server.load(body)


@router.get("/job", dependencies=ANYONE, response_model=Job)
async def job(server: Server) -> Response:
    """Return the loaded job."""
    return json_response(json.dumps(server.job.value()).encode())


@router.post("/engine/start", dependencies=ADMIN, responses=CONFLICT)
async def start_engine(server: Server) -> wire.Status:
    """Boot the engine."""
    return await server.start()


@router.post("/engine/stop", dependencies=ADMIN, responses=CONFLICT)
async def stop_engine(server: Server) -> wire.Status:
    """Stop the engine."""
    return await asyncio.shield(asyncio.ensure_future(server.stop()))


@router.get("/status", dependencies=ANYONE)
async def status(server: Server) -> wire.Status:
    """Return what the server does now."""
    return server.status()


@router.post("/episodes", dependencies=PLAYERS, responses=LOST)
async def begin(body: wire.BeginRequest, request: Request, server: Server) -> wire.Lease:
    """Ask for a lease on one episode of a task."""
    with http.cancel_on_disconnect(request.scope):
        return await lease_of(server, body, request)


@router.post("/episodes/{episode_id}/heartbeat", responses=LOST)
async def heartbeat(claims: Holder, server: Server) -> wire.Ack:
    """Renew a lease."""
    return server.training.rollout.heartbeat(claims)


@router.post("/episodes/{episode_id}/end", responses=LOST, response_model_exclude_none=True)
async def end(body: wire.EndRequest, claims: Holder, server: Server) -> wire.EndAck:
    """End an episode with its reward; the same end again changes nothing."""
    return await server.training.rollout.end(claims, body)


@router.post("/episodes/{episode_id}/abort", responses=LOST)
async def abort(body: wire.AbortRequest, claims: Holder, server: Server, *, failed: bool = False) -> wire.Ack:
    """Give an episode up; `failed` says that its agent failed the task, which is skipped after three failures."""
    return await server.training.rollout.abort(claims, body.reason, failed=failed)


@router.post("/episodes/{episode_id}/prepare", responses=LOST)
async def prepare(body: wire.PrepareRequest, claims: Holder, server: Server) -> wire.Ack:
    """End an episode of a team, subject to the team's common decision."""
    return await server.training.rollout.teams.prepare(claims, body)


@router.post("/episodes/{episode_id}/commit", responses=LOST)
async def commit(claims: Holder, server: Server) -> wire.Ack:
    """Decide that a prepared episode counts."""
    return await server.training.rollout.teams.commit(claims)


@router.get("/episodes/{episode_id}/outcome", responses=LOST)
async def outcome(claims: Holder, server: Server) -> wire.Ack:
    """Return what became of an episode."""
    return await server.training.rollout.teams.outcome(claims)


@router.get("/episodes", dependencies=ANYONE)
async def episodes(server: Server, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = LISTED) -> wire.EpisodeList:
    """List the newest episodes."""
    return await Inspection(server).episodes(limit)


@router.get("/episodes/{episode_id}", dependencies=ANYONE)
async def episode(episode_id: Annotated[str, Path(min_length=1)], server: Server) -> wire.EpisodeRecord:
    """Return one episode with every token."""
    return await Inspection(server).episode(episode_id)


@router.get("/samples", dependencies=PLAYERS, response_class=StreamingResponse, responses=LINES)
async def samples(server: Server, episode: str | None = None) -> Response:
    """Export one episode, or all that are known, with every token, a JSON line each."""
    counts, lines = await Inspection(server).export(episode)
    return StreamingResponse(lines, headers={wire.EXPORT_HEADER: counts.model_dump_json()}, media_type=JSON_LINES)


@router.get("/checkpoints", dependencies=ANYONE)
async def checkpoints(server: Server) -> wire.CheckpointList:
    """List the kept checkpoints with their sizes."""
    return await server.checkpoints()


@router.delete("/checkpoints", dependencies=ADMIN)
async def release_training(
    training: Annotated[str, Query(pattern="^[0-9a-f]{12,64}$")], server: Server
) -> wire.FileList:
    """Remove what only going on with a training would read: of its checkpoints all but the last weights."""
    return await server.release(training)


@router.get("/files", dependencies=ADMIN)
async def files(server: Server, under: Annotated[str, Query(max_length=1000)] = "tracking") -> wire.FileList:
    """List the files of checkpoints and of trackers' logs below a folder of the server's."""
    return await asyncio.to_thread(server.list_files, under)


@router.get("/file", dependencies=ADMIN, response_class=StreamingResponse)
async def file(path: Annotated[str, Query(max_length=1000)], server: Server) -> Response:
    """Return one of these files, with its sha256 as a header."""
    pieces, sha256 = await asyncio.to_thread(server.read_file, path)
    return StreamingResponse(pieces, media_type="application/octet-stream", headers={wire.FILE_HASH: sha256})


@router.post("/keys", dependencies=ADMIN)
async def make_key(body: wire.KeyRequest, server: Server) -> wire.RoleKey:
    """Sign a key of a role that may do less."""
    return wire.RoleKey(key=server.keys.role_key(body.role))


@router.get(
    "/metrics", dependencies=ANYONE, response_class=StreamingResponse, responses={200: {"content": {"text/plain": {}}}}
)
async def metrics(server: Server) -> Response:
    """Return Prometheus' text format."""
    return Response(watching.exposition(server), media_type=watching.PROMETHEUS)


@router.get("/snapshot", dependencies=ANYONE)
async def snapshot(server: Server) -> Snapshot:
    """Return what the server does at a glance, bounded."""
    return watching.snapshot_of(server)


@router.get("/history", dependencies=ANYONE, name="history")
async def finished_steps(query: Annotated[watching.HistoryQuery, Query()], server: Server) -> HistoryPage:
    """Return what finished steps measured, page by page."""
    return await watching.history(server, query)


@router.get("/streams", dependencies=ANYONE)
async def streams(server: Server) -> wire.StreamList:
    """Return where each stream stands."""
    return server.training.rollout.streams()


@router.post("/streams", dependencies=ADMIN, responses=CONFLICT)
async def share_streams(body: wire.SharesRequest, server: Server) -> wire.StreamList:
    """Give streams new shares."""
    return await server.training.rollout.set_shares(body.shares)


@router.post("/streams/tasks", dependencies=PLAYERS, responses=CONFLICT)
async def list_tasks(body: wire.TaskList, server: Server) -> wire.TaskListKnown:
    """Name the tasks of a stream, whose places the server then hands out."""
    return await server.training.rollout.list_tasks(body)


@router.get("/advantages", dependencies=PLAYERS)
async def awaited_advantages(server: Server) -> wire.AwaitedAdvantages:
    """Return the batch with which training waits for advantages; an empty one where it does not."""
    return server.training.awaited_advantages


@router.post("/advantages", dependencies=PLAYERS)
async def give_advantages(body: wire.GivenAdvantages, server: Server) -> wire.AwaitedAdvantages:
    """Give the advantages of the batch's episodes; return what training waits for then."""
    return server.training.take_advantages(body)


@router.post("/owners/release", dependencies=PLAYERS)
async def release(body: wire.ReleaseRequest, server: Server) -> wire.Released:
    """Give the open episodes of a dead client up."""
    return server.training.rollout.release(body)


@router.post("/owners/erase", dependencies=PLAYERS)
async def erase(body: wire.EraseRequest, server: Server) -> wire.Erasure:
    """Delete the tokens of an owner's episodes, by its secret."""
    return await server.erase(body)


@router.get("/v1/models", dependencies=READERS, name="models")
async def list_models(server: Server) -> ModelList:
    """List the one model."""
    return ModelList(object="list", data=(model_card(server.training.backend.model_name),))


@router.get("/v1/models/{model}", dependencies=READERS, name="model")
async def describe_model(model: Annotated[str, Path(min_length=1)], server: Server) -> dict[str, Any]:
    """Return the one model."""
    served_model = server.training.backend.model_name
    if model != served_model:
        raise NotFound(f"there is no model {model[:80]!r}; the one here is {served_model!r}", param="model")
    return model_card(served_model)


@router.post(wire.BUNDLE, dependencies=BUNDLERS, response_class=StreamingResponse, responses=LINES)
async def bundle(body: wire.Bundle, request: Request, server: Server) -> Response:
    """Answer requests of several episodes that came as one, each by a line once it is done."""
    return BundleAnswer(body, request, server)


JsonSchema = Mapping[str, Any]
_MODEL_CALLS: JsonSchema = tomllib.loads(FilePath(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""What OpenAPI's document says of model calls. What their bodies hold is told by OpenAI and Anthropic, and by
docs/protocols.md."""


def _post(operation: str, summary: str, error: str) -> JsonSchema:
    wrong = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    whole: JsonSchema = {"application/json": {"schema": {"type": "object"}}}
    answer = whole if operation == "count_tokens" else {**whole, "text/event-stream": {}}
    statuses = (400, 401, 403, 404, 409, 410, 413, 429, 500, 503)
    return {
        "post": {
            "operationId": operation,
            "summary": summary,
            "security": [{"model": []}],
            "requestBody": {"required": True, "content": whole},
            "responses": {
                "200": {"description": "done", "content": answer},
                **{str(code): {"description": HTTPStatus(code).phrase, "content": wrong} for code in statuses},
            },
        }
    }


@router.get("/openapi.json", dependencies=ANYONE, name="openapi", response_model=dict[str, Any])
async def describe_api() -> Response:
    """Return this document."""
    return json_response(await asyncio.to_thread(lambda: to_json(openapi())))  # model calls do not wait for it


@cache
def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of all that is served, made when it is first asked for."""
    document = get_openapi(title="ajet swarm server", version=version("ajet"), routes=router.routes)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own; a refusal here is a 400
            if "security" not in operation:  # nobody is refused
                operation["responses"] = {"200": operation["responses"]["200"]}
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(_MODEL_CALLS["schemas"])
    document["components"]["securitySchemes"] = _MODEL_CALLS["keys"]
    document["paths"].update({path: _post(**told) for path, told in _MODEL_CALLS["paths"].items()})
    return document


def make_app(server: SwarmServer) -> FastAPI:
    """Return the application around a server; no documentation pages, which would answer without a key."""
    app = _App(openapi_url=None, redirect_slashes=False)
    app.state.server = server
    app.state.chat = chat = ModelEndpoint(server, CHAT)
    for kind, handler in http.REFUSALS.items():
        app.add_exception_handler(kind, handler)
    app.state.failures = failures = FailureLimiter()
    app.add_middleware(Guard, keys=server.keys, failures=failures)
    app.router.routes += router.routes  # not included: that would match each request twice
    endpoints: tuple[tuple[str, ModelEndpoint | CountEndpoint], ...] = (
        (CHAT_PATH, chat),
        ("/v1/responses", ModelEndpoint(server, RESPONSES)),
        ("/v1/messages", ModelEndpoint(server, MESSAGES)),
        ("/v1/messages/count_tokens", CountEndpoint(server)),
    )
    for path, endpoint in endpoints:
        anthropic = path.startswith("/v1/messages")
        key_header = http.KEY_HEADER if anthropic else None
        app.lean[path] = Guard(endpoint, server.keys, failures, endpoint.tell, key_header)
        app.router.routes.append(Route(path, endpoint=app.lean[path], methods=["POST"]))
        if anthropic:  # its client may have been given a base URL with `/v1`
            app.lean[f"/v1{path}"] = app.lean[path]
    return app


class _App(FastAPI):
    """Sends model calls past the framework's router and telemetry, which cost a few percent of such a call."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lean: dict[str, Guard] = {}
        """What answers a POST to a path, all by itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lean = self.lean.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if lean is None:
            await super().__call__(scope, receive, send)
        else:
            await lean(scope, receive, send)
