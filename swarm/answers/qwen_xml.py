"""The XML format of Qwen3-Coder and Qwen3.5: `<function=name>` around `<parameter=key>` blocks is a call.

Strings stand there without quotes, so the tool's schema tells a number from a string that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.answer import Reader, Thinking, ToolCall
from swarm.answers.objects import Cut
from swarm.answers.schemas import as_json, object_of, parameters, properties
from swarm.answers.tagged import TaggedReader

_function = re.compile(r"\s*<function=([^\s<>]+)>(.*)</function>\s*", re.DOTALL)
_parameter = re.compile(r"\s*<parameter=([^\s<>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class _Calls:
    open = "<tool_call>"
    close = "</tool_call>"
    blank = "\n"

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = parameters(tools)

    def read(self, body: str) -> Sequence[ToolCall] | None:
        if body.rfind("<parameter=") > body.rfind("</parameter>"):
            raise Cut
        function = _function.fullmatch(body)
        if function is None:
            return None
        values: dict[str, str] = {}
        place, declared = 0, properties(self._schemas.get(function[1], {}))
        while pair := _parameter.match(function[2], place):
            values[pair[1]] = as_json(pair[2], declared.get(pair[1], {}))
            place = pair.end()
        return None if function[2][place:].strip() else [ToolCall(function[1], object_of(values))]


class QwenXmlFormat:
    """Implements `AnswerFormat`; `thinks` where the template writes thinking."""

    name = "qwen-xml"

    def __init__(self, *, thinks: bool) -> None:
        self._thinking = Thinking() if thinks else None

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return True: a tokenizer may have its marks as tokens."""
        return True

    def thinking(self, prompt: str) -> Thinking | None:
        """Return the marks of a thought that `prompt` opened."""
        return self._thinking if self._thinking and self._thinking.opened(prompt) else None

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`."""
        return TaggedReader(self._thinking, _Calls(tools) if tools else None, opened=self.thinking(prompt) is not None)

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return None: values without quotes have no JSON grammar."""
        return None
