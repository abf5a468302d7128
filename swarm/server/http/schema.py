"""The OpenAPI 3.1 document, made of the table of operations and the wire types' own JSON schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from swarm.server.http.operations import OPERATIONS, JsonSchema, Operation

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
_ANTHROPIC_ERROR: JsonSchema = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"], "properties": {"message": {"type": "string"}}},
    },
}
_KEYED = (400, 401, 403, 404, 413, 429, 500, 503)
_KEYS: JsonSchema = {
    "role": {"type": "http", "scheme": "bearer", "description": "a role token: admin, client or viewer"},
    "model": {"type": "http", "scheme": "bearer", "description": "a lease's `api_key`"},
    "lease": {"type": "http", "scheme": "bearer", "description": "a lease's `lease_token`"},
}
Schemas = Mapping[Any, JsonSchema]
"""By wire type and mode."""


def openapi(operations: Iterable[Operation] = OPERATIONS) -> dict[str, Any]:
    """Return the document."""
    table = tuple(operations)
    schemas, definitions = _schemas(table)
    paths: dict[str, dict[str, Any]] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schemas)
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


def _described(operation: Operation, schemas: Schemas) -> dict[str, Any]:
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
