"""Operations of the control plane and the OpenAPI document of them.

Every call the server answers, in one table: path, who may make it, what goes in and what comes out; `swarm.server.app`
makes the routes of it. Tests hold it against what is served: a route that is not here, an entry that is not served, or
a key that is accepted where the table does not name it fails them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from swarm.job import Job
from swarm.rollout.keys import Role, Use
from swarm.server.events import EVENT_ID
from swarm.snapshot import HistoryPage, Snapshot
from swarm.wire import (
    AbortRequest,
    Ack,
    BeginRequest,
    CheckpointList,
    EndAck,
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

ANYONE: tuple[Role, ...] = ("admin", "client", "viewer")
Method = Literal["GET", "POST"]
JsonSchema = Mapping[str, Any]

_OBJECT: JsonSchema = {"type": "object"}
_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call.

    roles, uses: the kinds of key that may make it; none at all for a call anybody may make. body: what it takes;
    answer: what it gives as JSON (None: no JSON). media: what else it may give. query: parameters, by name.
    fails: statuses besides those every call may have (400 malformed, 401, 403, 404, 405, 413, 429, 500, 503).
    """

    name: str
    method: Method
    path: str
    summary: str
    roles: tuple[Role, ...] = ()
    uses: tuple[Use, ...] = ()
    body: type[BaseModel] | JsonSchema | None = None
    answer: type[BaseModel] | JsonSchema | None = None
    media: tuple[str, ...] = ()
    query: Mapping[str, JsonSchema] = field(default_factory=dict)
    fails: tuple[int, ...] = ()


def _object(required: str, **properties: JsonSchema) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


_MESSAGES: JsonSchema = {
    "type": "array",
    "minItems": 1,
    "items": _object(
        "role content",
        role={"type": "string", "enum": ["developer", "system", "user", "assistant", "tool"]},
        content={"type": "string"},
    ),
}
_CHAT = _object(
    "model messages",
    model={"type": "string"},
    messages=_MESSAGES,
    max_tokens={"type": ["integer", "null"], "minimum": 1},
    temperature={"type": ["number", "null"], "minimum": 0, "maximum": 5},
    top_p={"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    stop={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    seed={"type": ["integer", "null"]},
    n={"type": ["integer", "null"], "minimum": 1},
    logprobs={"type": ["boolean", "null"]},
    stream={"type": ["boolean", "null"]},
    tools={"type": ["array", "null"], "items": _OBJECT},
)
_RESPONSES = _object(
    "model input",
    model={"type": "string"},
    input={"anyOf": [{"type": "string"}, {"type": "array", "items": _OBJECT}]},
    instructions={"type": ["string", "null"]},
    max_output_tokens={"type": ["integer", "null"], "minimum": 1},
    temperature={"type": ["number", "null"], "minimum": 0, "maximum": 5},
    stream={"type": ["boolean", "null"]},
    tools={"type": ["array", "null"], "items": _OBJECT},
)
_ANTHROPIC = _object(
    "model messages max_tokens",
    model={"type": "string"},
    max_tokens={"type": "integer", "minimum": 1},
    messages=_MESSAGES,
    system={"anyOf": [{"type": "string"}, {"type": "array", "items": _OBJECT}]},
    temperature={"type": "number", "minimum": 0, "maximum": 1},
    stream={"type": "boolean"},
    tools={"type": "array", "items": _OBJECT},
)
_COUNTED = _object(
    "model messages", **{name: _ANTHROPIC["properties"][name] for name in ("model", "messages", "system", "tools")}
)
_COUNT = _object("input_tokens", input_tokens={"type": "integer", "minimum": 1})
_COMPLETION = _object(
    "id object created model choices usage",
    object={"const": "chat.completion"},
    choices={"type": "array", "minItems": 1},
)
_RESPONSE = _object("id object model output status", object={"const": "response"}, output={"type": "array"})
_ANTHROPIC_MESSAGE = _object(
    "id type role model content stop_reason usage", type={"const": "message"}, role={"const": "assistant"}
)
_MODELS = _object("object data", object={"const": "list"}, data={"type": "array", "items": _OBJECT})
_HEALTH = _object("status", status={"const": "ok"})
_LIMIT: JsonSchema = {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100}
_SAMPLES: Mapping[str, JsonSchema] = {
    "format": {"type": "string", "enum": ["openenv", "parquet"], "default": "openenv"},
    "episode": {"type": "string", "description": "one episode; all that are known when left out"},
}

_HEARD: Mapping[str, JsonSchema] = {
    "after": {
        "type": "string",
        "pattern": EVENT_ID,
        "description": "the last event seen; `Last-Event-ID` goes before it",
    },
    "wait_s": {"type": "number", "minimum": 0, "maximum": 86_400, "description": "end then; never when left out"},
}

_HISTORY: Mapping[str, JsonSchema] = {
    "after": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0, "description": "steps above it"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100},
    "newest": {"type": "boolean", "default": False, "description": "the newest of them, not the first"},
    "keys": {
        "type": "string",
        "minLength": 1,
        "maxLength": 4000,
        "description": "metrics to tell, with commas between; `stream/*` names all that begin so; all when left out",
    },
}

_MODEL: tuple[Use, ...] = ("model",)
_of_lease = partial(Operation, uses=("lease",), fails=(409, 410))
_of_model = partial(Operation, uses=_MODEL, fails=(409, 410))

OPERATIONS: tuple[Operation, ...] = (
    Operation("health", "GET", "/health", "Tell that the process lives.", answer=_HEALTH),
    Operation(
        "load_job",
        "POST",
        "/job",
        "Load a job; nothing happens yet.",
        ("admin",),
        body=Job,
        answer=Status,
        fails=(409,),
    ),
    Operation("job", "GET", "/job", "Return the loaded job.", ANYONE, answer=Job),
    Operation("start_engine", "POST", "/engine/start", "Boot the engine.", ("admin",), answer=Status, fails=(409,)),
    Operation("stop_engine", "POST", "/engine/stop", "Stop the engine.", ("admin",), answer=Status, fails=(409,)),
    Operation("status", "GET", "/status", "Return what the server does now.", ANYONE, answer=Status),
    Operation(
        "begin",
        "POST",
        "/episodes",
        "Ask for a lease on one episode of a task.",
        ("client", "admin"),
        body=BeginRequest,
        answer=Lease,
        fails=(409, 410),
    ),
    _of_lease("heartbeat", "POST", "/episodes/{episode_id}/heartbeat", "Renew a lease.", answer=Ack),
    _of_lease(
        "end",
        "POST",
        "/episodes/{episode_id}/end",
        "End an episode with its reward; the same end again changes nothing.",
        body=EndRequest,
        answer=EndAck,
    ),
    _of_lease(
        "abort",
        "POST",
        "/episodes/{episode_id}/abort",
        "Give an episode up; `failed` says that its agent failed the task, which is skipped after three failures.",
        body=AbortRequest,
        answer=Ack,
        query={"failed": {"type": "boolean", "default": False}},
    ),
    _of_lease(
        "prepare",
        "POST",
        "/episodes/{episode_id}/prepare",
        "End an episode of a team, subject to the team's common decision.",
        body=PrepareRequest,
        answer=Ack,
    ),
    _of_lease("commit", "POST", "/episodes/{episode_id}/commit", "Decide that a prepared episode counts.", answer=Ack),
    _of_lease("outcome", "GET", "/episodes/{episode_id}/outcome", "Return what became of an episode.", answer=Ack),
    Operation(
        "episodes", "GET", "/episodes", "List the newest episodes.", ANYONE, answer=EpisodeList, query={"limit": _LIMIT}
    ),
    Operation(
        "episode", "GET", "/episodes/{episode_id}", "Return one episode with every token.", ANYONE, answer=EpisodeRecord
    ),
    Operation(
        "samples",
        "GET",
        "/samples",
        "Export episodes: OpenEnv training traces (a JSON line each), or parquet (a row per call).",
        ("admin", "client"),
        media=("application/jsonl", "application/vnd.apache.parquet"),
        query=_SAMPLES,
    ),
    Operation(
        "checkpoints",
        "GET",
        "/checkpoints",
        "List the kept checkpoints with their sizes.",
        ANYONE,
        answer=CheckpointList,
    ),
    Operation(
        "events",
        "GET",
        "/events",
        "Tell what is kept of what happened to the server, then what happens, as server-sent events.",
        ANYONE,
        media=(_EVENTS,),
        query=_HEARD,
    ),
    Operation("metrics", "GET", "/metrics", "Return Prometheus' text format.", ANYONE, media=("text/plain",)),
    Operation(
        "snapshot", "GET", "/snapshot", "Return what the server does at a glance, bounded.", ANYONE, answer=Snapshot
    ),
    Operation(
        "history",
        "GET",
        "/history",
        "Return what finished steps measured, page by page; `/events` tells it as it happens.",
        ANYONE,
        answer=HistoryPage,
        query=_HISTORY,
    ),
    Operation("streams", "GET", "/streams", "Return where each stream stands.", ANYONE, answer=StreamList),
    Operation(
        "share_streams",
        "POST",
        "/streams",
        "Give streams new shares.",
        ("admin",),
        body=SharesRequest,
        answer=StreamList,
        fails=(409,),
    ),
    Operation(
        "list_tasks",
        "POST",
        "/streams/tasks",
        "Name the tasks of a stream, whose places the server then hands out.",
        ("client", "admin"),
        body=TaskList,
        answer=TaskListKnown,
        fails=(409,),
    ),
    Operation(
        "release",
        "POST",
        "/owners/release",
        "Give the open episodes of a dead client up.",
        ("client", "admin"),
        body=ReleaseRequest,
        answer=Released,
    ),
    Operation(
        "erase",
        "POST",
        "/owners/erase",
        "Delete the tokens of an owner's episodes, by its secret.",
        ("client", "admin"),
        body=EraseRequest,
        answer=Erasure,
    ),
    _of_model(
        "chat",
        "POST",
        "/v1/chat/completions",
        "OpenAI's chat completions.",
        body=_CHAT,
        answer=_COMPLETION,
        media=(_EVENTS,),
    ),
    _of_model(
        "responses", "POST", "/v1/responses", "OpenAI's responses.", body=_RESPONSES, answer=_RESPONSE, media=(_EVENTS,)
    ),
    _of_model(
        "messages",
        "POST",
        "/v1/messages",
        "Anthropic's messages.",
        body=_ANTHROPIC,
        answer=_ANTHROPIC_MESSAGE,
        media=(_EVENTS,),
    ),
    _of_model(
        "count_tokens",
        "POST",
        "/v1/messages/count_tokens",
        "Count the tokens the model would read; nothing is recorded.",
        body=_COUNTED,
        answer=_COUNT,
    ),
    Operation("models", "GET", "/v1/models", "List the one model.", ANYONE, _MODEL, answer=_MODELS),
    Operation("model", "GET", "/v1/models/{model}", "Return the one model.", ANYONE, _MODEL, answer=_OBJECT),
    Operation("openapi", "GET", "/openapi.json", "Return this document.", ANYONE, answer=_OBJECT),
)


def paths_of(operation: Operation) -> tuple[str, ...]:
    """Return where a model's operation is served: Anthropic's also where its client was given a base URL with `/v1`."""
    twice = operation.path.startswith("/v1/messages")
    return (operation.path, f"/v1{operation.path}") if twice else (operation.path,)


_ERROR: JsonSchema = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string", "description": "expected, found, and what to do"},
                "type": {"type": "string"},
                "code": {"type": "string", "description": "the error by name: the protocol"},
                "param": {"type": ["string", "null"], "description": "the field that is wrong"},
            },
        }
    },
}
_ANTHROPIC_ERROR = _object(
    "type error", type={"const": "error"}, error=_object("type message", message={"type": "string"})
)
_KEYED = (400, 401, 403, 404, 413, 429, 500, 503)
_KEYS: JsonSchema = {
    "role": {"type": "http", "scheme": "bearer", "description": "a role token: admin, client or viewer"},
    "model": {"type": "http", "scheme": "bearer", "description": "a lease's `api_key`"},
    "lease": {"type": "http", "scheme": "bearer", "description": "a lease's `lease_token`"},
}
Schemas = Mapping[Any, JsonSchema]
"""By wire type and mode."""


def openapi(operations: Iterable[Operation] = OPERATIONS) -> dict[str, Any]:
    table = tuple(operations)
    schemas, definitions = _schemas(table)
    paths: dict[str, dict[str, Any]] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ajet swarm server", "version": version("ajet")},
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), "Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR},
            "securitySchemes": _KEYS,
        },
    }


def _schemas(table: tuple[Operation, ...]) -> tuple[Schemas, dict[str, Any]]:
    taken = [(op.body, "validation") for op in table if isinstance(op.body, type)]
    given = [(op.answer, "serialization") for op in table if isinstance(op.answer, type)]
    models: Any = list(dict.fromkeys([*taken, *given]))
    return models_json_schema(models, ref_template="#/components/schemas/{model}")


def _describe_operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
              for name in re.findall(r"{(\w+)}", operation.path)),
            *({"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()),
        ],
        "responses": _responses(operation, schemas),
    }  # fmt: skip
    if operation.roles or operation.uses:
        found["security"] = [*({"role": list(operation.roles)} for _ in operation.roles[:1]),
                             *({use: []} for use in operation.uses)]  # fmt: skip
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": _json(operation.body, schemas, "validation")}
    return found


def _responses(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {media: {} for media in operation.media}
    if operation.answer is not None:
        content = {**_json(operation.answer, schemas, "serialization"), **content}
    found: dict[str, Any] = {"200": {"description": "done", "content": content}}
    error: JsonSchema = {"$ref": "#/components/schemas/Error"}
    if operation.path.startswith("/v1/messages"):
        error = {"$ref": "#/components/schemas/AnthropicError"}
    wrong = {"application/json": {"schema": error}}
    for status in sorted({*_KEYED, *operation.fails}) if operation.roles or operation.uses else ():
        found[str(status)] = {"description": HTTPStatus(status).phrase, "content": wrong}
    return found


def _json(
    kind: type[BaseModel] | JsonSchema, schemas: Schemas, mode: Literal["validation", "serialization"]
) -> dict[str, Any]:
    schema = schemas[kind, mode] if isinstance(kind, type) else kind
    return {"application/json": {"schema": schema}}
