"""The GLM format: a call is a name and pairs of `<arg_key>` and `<arg_value>`, between `<tool_call>` marks.

Strings stand there without quotes, so the tool's schema tells a number from a string that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.answer import Reader, Thinking, ToolCall
from swarm.answers.lark import grammar, json_of, literal
from swarm.answers.objects import Cut
from swarm.answers.schemas import as_json, is_text, object_of, parameters, properties
from swarm.answers.tagged import TaggedReader

_pair = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_name = re.compile(r"\s*([^\s<]+)\s*")

_THINKING = Thinking()


class _Calls:
    open = "<tool_call>"
    close = "</tool_call>"
    blank = "\n"

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = parameters(tools)

    def read(self, body: str) -> Sequence[ToolCall] | None:
        if body.rfind("<arg_value>") > body.rfind("</arg_value>"):
            raise Cut
        name = _name.match(body)
        if name is None:
            return None
        values: dict[str, str] = {}
        place, declared = name.end(), properties(self._schemas.get(name[1], {}))
        while pair := _pair.match(body, place):
            key = pair[1].strip()
            values[key] = as_json(pair[2], declared.get(key, {}))
            place = pair.end()
        return None if body[place:].strip() else [ToolCall(name[1], object_of(values))]


class GlmFormat:
    """Implements `AnswerFormat` for GLM-4.5 and later."""

    name = "glm"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return True: a tokenizer may have its marks as tokens."""
        return True

    def thinking(self, prompt: str) -> Thinking | None:
        """Return the marks of a thought that `prompt` opened."""
        return _THINKING if _THINKING.opened(prompt) else None

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`; the template puts line breaks before words."""
        calls = _Calls(tools) if tools else None
        return TaggedReader(_THINKING, calls, opened=self.thinking(prompt) is not None, leading="\n")

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return the grammar of one call: its arguments in the schema's order, strings without `<`."""
        rules = {name: literal(mark) for name, mark in _MARKS.items()}
        calls: list[str] = []
        for number, (name, schema) in enumerate(parameters(tools).items()):
            pairs = _pairs(f"arg_{number}", schema, rules)
            calls.append(" ".join([literal(f"{name}\n"), *pairs]))
        return grammar(f"open ({' | '.join(calls)}) close", rules, self.thinking(prompt))


_MARKS = {
    "open": "<tool_call>", "close": "</tool_call>", "key_open": "<arg_key>", "key_close": "</arg_key>",
    "value_open": "<arg_value>", "value_close": "</arg_value>",
}  # fmt: skip


def _pairs(prefix: str, schema: Mapping[str, Any], rules: dict[str, str]) -> list[str]:
    """Add the rule of each argument's value to `rules`; return the expressions of the pairs."""
    pairs: list[str] = []
    for number, (key, kind) in enumerate(properties(schema).items()):
        rules[f"{prefix}_{number}"] = _value(kind, schema)
        value = f'value_open {prefix}_{number} value_close "\\n"'
        pair = f'key_open {literal(key)} key_close "\\n" {value}'
        pairs.append(pair if key in schema.get("required", ()) else f"({pair})?")
    return pairs


def _value(kind: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if not is_text(kind):
        return json_of({**kind, **{key: schema[key] for key in ("$defs", "definitions") if key in schema}})
    return " | ".join(map(literal, kind["enum"])) if "enum" in kind else "/[^<]*/"
