"""The grammars of answers that must call a tool or be JSON, in llguidance's dialect of Lark.

Promises: a family's mark is always a whole rule (`name: "mark"`) or a whole suffix (`name[suffix="mark"]: /.../`),
so that an engine whose tokenizer has the mark as a special token can put its id there; a JSON schema stands on one
line; JSON has one space after each colon and comma, as templates write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.grammar.answer import Thinking
from swarm.answers.grammar.schemas import parameters

_SPACING = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


def literal(text: str) -> str:
    """Return `text` as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def json_of(schema: Mapping[str, Any]) -> str:
    """Return the directive that matches JSON of `schema`."""
    return f"%json {json.dumps({**schema, 'x-guidance': _SPACING}, ensure_ascii=False)}"


def grammar(call: str, rules: Mapping[str, str], thinking: Thinking | None = None) -> str:
    """Return the grammar of one `call` (an expression over `rules`), after the rest of an opened thought if any."""
    lines = [f"{name}: {rule}" for name, rule in rules.items()]
    if thinking is None:
        return "\n".join([f"start: {call}", *lines])
    thought = f"thought[suffix={literal(thinking.close)}]: /(?s:.*)/"
    return "\n".join([f'start: thought "\\n\\n" ({call})', *lines, thought])


def json_answer(schema: Mapping[str, Any], thinking: Thinking | None = None) -> str:
    """Return the grammar of words that are JSON of `schema`, after the rest of an opened thought if any."""
    if thinking is None:
        return f"start: {json_of(schema)}"
    return grammar("json", {"json": json_of(schema)}, thinking)


def json_calls(tools: Sequence[Mapping[str, Any]], before: str, between: str, after: str) -> tuple[str, dict[str, str]]:
    """Return the choice of one tool, and its rules: `before` name `between` arguments `after`."""
    rules: dict[str, str] = {}
    for number, (name, schema) in enumerate(parameters(tools).items()):
        rules[f"call_{number}"] = f"{literal(before + name + between)} args_{number} {literal(after)}"
        rules[f"args_{number}"] = json_of(schema)
    return " | ".join(name for name in rules if name.startswith("call_")), rules
