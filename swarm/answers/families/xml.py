"""Calls as XML-like marks around each argument: GLM-4.5 and later, and Qwen3-Coder and Qwen3.5.

Strings stand there without quotes, so the tool's schema tells a number from a string that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.answers.families.tagged import Calls, TaggedFormat
from swarm.answers.grammar.answer import Thinking, ToolCall
from swarm.answers.grammar.lark import grammar, json_of, literal
from swarm.answers.grammar.objects import UnterminatedString
from swarm.answers.grammar.schemas import as_json, is_text, object_of, parameters, properties


@dataclass(frozen=True, slots=True)
class _Syntax:
    """How a family writes a call: `call` matches its name and all arguments, `argument` a key and a value.

    A value is not whole while `before` stands in the text behind the last `after`.
    """

    call: re.Pattern[str]
    argument: re.Pattern[str]
    before: str
    after: str


_GLM = _Syntax(
    re.compile(r"\s*([^\s<]+)\s*(.*)", re.DOTALL),
    re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    "<arg_value>",
    "</arg_value>",
)
_QWEN = _Syntax(
    re.compile(r"\s*<function=([^\s<>]+)>(.*)</function>\s*", re.DOTALL),
    re.compile(r"\s*<parameter=([^\s<>]+)>\n?(.*?)\n?</parameter>", re.DOTALL),
    "<parameter=",
    "</parameter>",
)


class _XmlCalls:
    open = "<tool_call>"
    close = "</tool_call>"
    blank = "\n"

    def __init__(self, syntax: _Syntax, tools: Sequence[Mapping[str, Any]]) -> None:
        self._syntax = syntax
        self._schemas = parameters(tools)

    def read(self, body: str) -> Sequence[ToolCall] | None:
        syntax = self._syntax
        if body.rfind(syntax.before) > body.rfind(syntax.after):
            raise UnterminatedString
        call = syntax.call.fullmatch(body)
        if call is None:
            return None
        values: dict[str, str] = {}
        place, declared = 0, properties(self._schemas.get(call[1], {}))
        while pair := syntax.argument.match(call[2], place):
            key = pair[1].strip()
            values[key] = as_json(pair[2], declared.get(key, {}))
            place = pair.end()
        return None if call[2][place:].strip() else [ToolCall(call[1], object_of(values))]


class QwenXmlFormat(TaggedFormat):
    """Implements `AnswerFormat`: `<function=name>` around `<parameter=key>` blocks; calls cannot be forced."""

    name = "qwen-xml"

    def __init__(self, *, thinks: bool) -> None:
        super().__init__(Thinking() if thinks else None)

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> Calls:
        """Return how calls of `tools` are written."""
        return _XmlCalls(_QWEN, tools)


class GlmFormat(TaggedFormat):
    """Implements `AnswerFormat`: a name, then pairs of `<arg_key>` and `<arg_value>`; line breaks before words."""

    name = "glm"

    def __init__(self) -> None:
        super().__init__(Thinking(), leading="\n")

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> Calls:
        """Return how calls of `tools` are written."""
        return _XmlCalls(_GLM, tools)

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
