"""The GLM format: a call is a name and pairs of `<arg_key>` and `<arg_value>`, between `<tool_call>` marks.

Strings stand there without quotes, so the tool's schema tells a number from a string that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.answer import Reader, ToolCall
from swarm.answers.objects import Cut
from swarm.answers.schemas import as_json, object_of, parameters
from swarm.answers.tagged import TaggedReader, Thinking

_pair = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_name = re.compile(r"\s*([^\s<]+)\s*")


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
        place, declared = name.end(), self._schemas.get(name[1], {}).get("properties", {})
        while pair := _pair.match(body, place):
            key = pair[1].strip()
            values[key] = as_json(pair[2], declared.get(key, {}))
            place = pair.end()
        return None if body[place:].strip() else [ToolCall(name[1], object_of(values))]


class GlmFormat:
    """Implements `AnswerFormat` for GLM-4.5 and later."""

    name = "glm"
    special = True

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`; the template puts line breaks before words."""
        thinking = Thinking()
        calls = _Calls(tools) if tools else None
        return TaggedReader(thinking, calls, opened=thinking.opened(prompt), leading="\n")

    def grammar(self, tools: Sequence[Mapping[str, Any]]) -> str | None:
        """Return None."""
        return None
