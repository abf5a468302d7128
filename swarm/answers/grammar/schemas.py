"""What the tools of a request say about their calls: names and the JSON schemas of their arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.grammar.objects import UnterminatedString, broken, listed

_ANY: Mapping[str, Any] = {"type": "object"}


def parameters(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each tool's arguments, by its name, in the order of `tools`."""
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters") or _ANY for function in functions}


def properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each member of an object; one that is no more than true or false says nothing."""
    declared = schema.get("properties")
    fields = declared.items() if isinstance(declared, Mapping) else ()
    return {name: field if isinstance(field, Mapping) else {} for name, field in fields}


def as_json(text: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON of a value that was written without quotes: a string where the schema says so.

    Elsewhere text that is JSON (of whole characters) is taken as it is, and what is none is a string.
    """
    if is_text(schema):
        return quoted(text)
    try:
        values = listed(text)
    except UnterminatedString:
        values = None
    if values is None or len(values) != 1 or values[0].startswith('"') or broken(text):
        return quoted(text)
    return values[0]


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema allows strings only."""
    return schema.get("type") in ("string", ["string"])


def quoted(text: str) -> str:
    """Return `text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def object_of(values: Mapping[str, str]) -> str:
    """Return the JSON object whose members have these texts of JSON as values."""
    return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in values.items()) + "}"
