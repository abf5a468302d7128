"""The model's operations in the OpenAPI document: raw routes of three dialects, of which no signature tells.

A dialect takes more than is named here; a field that it does not take is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

JsonSchema = Mapping[str, Any]


def _object(required: str, **properties: JsonSchema) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


_OBJECTS: JsonSchema = {"type": "array", "items": {"type": "object"}}
_TEXT_OR_OBJECTS: JsonSchema = {"anyOf": [{"type": "string"}, _OBJECTS]}
_TEXT: JsonSchema = {"type": "string"}
_TEMPERATURE: JsonSchema = {"type": ["number", "null"], "minimum": 0, "maximum": 5}
_COUNT: JsonSchema = {"type": ["integer", "null"], "minimum": 1}
_FLAG: JsonSchema = {"type": ["boolean", "null"]}
_TOOLS: JsonSchema = {"type": ["array", "null"], "items": {"type": "object"}}
_ROLE: JsonSchema = {"type": "string", "enum": ["developer", "system", "user", "assistant", "tool"]}
_MESSAGES: JsonSchema = {"type": "array", "minItems": 1, "items": _object("role content", role=_ROLE, content=_TEXT)}
_COUNTED: dict[str, JsonSchema] = {
    "model": _TEXT,
    "messages": _MESSAGES,
    "system": _TEXT_OR_OBJECTS,
    "tools": _OBJECTS,
}

ANTHROPIC_ERROR = _object("type error", type={"const": "error"}, error=_object("type message", message=_TEXT))
KEY_SCHEMES: JsonSchema = {
    name: {"type": "http", "scheme": "bearer", "description": told}
    for name, told in (
        ("role", "a role token: admin, client or viewer"),
        ("model", "a lease's `api_key`"),
        ("lease", "a lease's `lease_token`"),
    )
}


def _post(name: str, summary: str, body: JsonSchema, answer: JsonSchema, *, error: str, streams: bool) -> JsonSchema:
    wrong = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    content: dict[str, Any] = {"application/json": {"schema": answer}, **({"text/event-stream": {}} if streams else {})}
    statuses = (400, 401, 403, 404, 409, 410, 413, 429, 500, 503)
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "security": [{"model": []}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": {"description": "done", "content": content},
                **{str(code): {"description": HTTPStatus(code).phrase, "content": wrong} for code in statuses},
            },
        }
    }


MODEL_PATHS: Mapping[str, JsonSchema] = {
    "/v1/chat/completions": _post(
        "chat",
        "OpenAI's chat completions.",
        _object(
            "model messages",
            model=_TEXT,
            messages=_MESSAGES,
            max_tokens=_COUNT,
            temperature=_TEMPERATURE,
            top_p={"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
            stop={"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]},
            seed={"type": ["integer", "null"]},
            n=_COUNT,
            logprobs=_FLAG,
            stream=_FLAG,
            tools=_TOOLS,
        ),
        _object(
            "id object created model choices usage",
            object={"const": "chat.completion"},
            choices={"type": "array", "minItems": 1},
        ),
        error="Error",
        streams=True,
    ),
    "/v1/responses": _post(
        "responses",
        "OpenAI's responses.",
        _object(
            "model input",
            model=_TEXT,
            input=_TEXT_OR_OBJECTS,
            instructions={"type": ["string", "null"]},
            max_output_tokens=_COUNT,
            temperature=_TEMPERATURE,
            stream=_FLAG,
            tools=_TOOLS,
        ),
        _object("id object model output status", object={"const": "response"}, output={"type": "array"}),
        error="Error",
        streams=True,
    ),
    "/v1/messages": _post(
        "messages",
        "Anthropic's messages.",
        _object(
            "model messages max_tokens",
            **_COUNTED,
            max_tokens={"type": "integer", "minimum": 1},
            temperature={"type": "number", "minimum": 0, "maximum": 1},
            stream={"type": "boolean"},
        ),
        _object("id type role model content stop_reason usage", type={"const": "message"}, role={"const": "assistant"}),
        error="AnthropicError",
        streams=True,
    ),
    "/v1/messages/count_tokens": _post(
        "count_tokens",
        "Count the tokens the model would read; nothing is recorded.",
        _object("model messages", **_COUNTED),
        _object("input_tokens", input_tokens={"type": "integer", "minimum": 1}),
        error="AnthropicError",
        streams=False,
    ),
}
