"""Grammars of forced tool calls and JSON, compiled by llguidance for the model's tokenizer.

What a guide allows follows the grammar, and an end is allowed only where the grammar may end; one that does not compile
is a GrammarRefused that says why. A family's mark is a whole rule (`name: "mark"`) or a whole suffix
(`name[suffix="mark"]: /.../`), so that a special token can stand for it. A JSON schema stands on one line, and JSON has
one space after each colon and comma, as templates write it. The tokenizer is loaded at the first grammar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.rendering.messages import Thinking
from swarm.rendering.reading import UnterminatedString, is_broken, split_values

_ANY: Mapping[str, Any] = {"type": "object"}


def parameters(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters") or _ANY for function in functions}


def properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each member of an object; one that is no more than true or false says nothing."""
    declared = schema.get("properties")
    fields = declared.items() if isinstance(declared, Mapping) else ()
    return {name: field if isinstance(field, Mapping) else {} for name, field in fields}


def as_json(text: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON of a value without quotes: a string if `schema` says so, or it is no JSON of whole characters."""
    if is_text(schema):
        return quote(text)
    try:
        values = split_values(text)
    except UnterminatedString:
        values = None
    if values is None or len(values) != 1 or values[0].startswith('"') or is_broken(text):
        return quote(text)
    return values[0]


def is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", ["string"])


def quote(text: str) -> str:
    """Return `text` as a string of JSON, and of Lark."""
    return json.dumps(text, ensure_ascii=False)


def object_of(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{quote(key)}: {value}" for key, value in values.items()) + "}"


_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


def json_of(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _SPACING}, ensure_ascii=False)}"


def grammar(call: str, rules: Mapping[str, str], thinking: Thinking | None = None) -> str:
    """Return the grammar of one `call` (an expression over `rules`), after the rest of an opened thought if any."""
    lines = [f"{name}: {rule}" for name, rule in rules.items()]
    if thinking is None:
        return "\n".join([f"start: {call}", *lines])
    thought = f"thought[suffix={quote(thinking.close)}]: /(?s:.*)/"
    return "\n".join([f'start: thought "\\n\\n" ({call})', *lines, thought])


def json_answer(schema: Mapping[str, Any], thinking: Thinking | None = None) -> str:
    if thinking is None:
        return f"start: {json_of(schema)}"
    return grammar("json", {"json": json_of(schema)}, thinking)


def json_calls(
    tools: Sequence[Mapping[str, Any]], before: str, between: str, after: str, mark: str = ""
) -> tuple[str, dict[str, str]]:
    """Return the choice of one tool, and its rules: `before` name `between`, the rule `mark`, arguments, `after`."""
    rules: dict[str, str] = {}
    for number, (name, schema) in enumerate(parameters(tools).items()):
        parts = (quote(before + name + between), mark, f"args_{number}", quote(after) if after else "")
        rules[f"call_{number}"] = " ".join(filter(None, parts))
        rules[f"args_{number}"] = json_of(schema)
    return " | ".join(name for name in rules if name.startswith("call_")), rules
