"""The Hermes format (Hermes 2 and 3, Qwen2.5, Qwen3): a call is JSON between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.families.tagged import Calls, TaggedFormat
from swarm.answers.grammar.answer import Thinking, ToolCall
from swarm.answers.grammar.lark import grammar, json_calls, literal
from swarm.answers.grammar.objects import call_of


class _HermesCalls:
    open = "<tool_call>"
    close = "</tool_call>"
    blank = "\n"

    def read(self, body: str) -> Sequence[ToolCall] | None:
        call = call_of(body)
        return [call] if call else None


class HermesFormat(TaggedFormat):
    """Implements `AnswerFormat`; `thinks` where the template writes thinking."""

    name = "hermes"

    def __init__(self, *, thinks: bool) -> None:
        super().__init__(Thinking() if thinks else None)

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> Calls:
        """Return how calls are written."""
        return _HermesCalls()

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return whether it reads any marks: a tokenizer may have them as tokens."""
        return self._thinking is not None or bool(tools)

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return the grammar of one call."""
        choice, rules = json_calls(tools, '\n{"name": "', '", "arguments": ', "}\n")
        marks = {"open": literal(_HermesCalls.open), "close": literal(_HermesCalls.close)}
        return grammar(f"open ({choice}) close", {**rules, **marks}, self.thinking(prompt))
