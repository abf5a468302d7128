"""The Hermes format (Hermes 2 and 3, Qwen2.5, Qwen3): a call is JSON between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.answer import Reader, Thinking, ToolCall
from swarm.answers.lark import grammar, json_calls, literal
from swarm.answers.objects import call_of
from swarm.answers.tagged import TaggedReader


class _Calls:
    open = "<tool_call>"
    close = "</tool_call>"
    blank = "\n"

    def read(self, body: str) -> Sequence[ToolCall] | None:
        call = call_of(body)
        return [call] if call else None


class HermesFormat:
    """Implements `AnswerFormat`; `thinks` where the template writes thinking."""

    name = "hermes"

    def __init__(self, *, thinks: bool) -> None:
        self._thinking = Thinking() if thinks else None

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return whether it reads any marks: a tokenizer may have them as tokens."""
        return self._thinking is not None or bool(tools)

    def thinking(self, prompt: str) -> Thinking | None:
        """Return the marks of a thought that `prompt` opened."""
        return self._thinking if self._thinking and self._thinking.opened(prompt) else None

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`."""
        return TaggedReader(self._thinking, _Calls() if tools else None, opened=self.thinking(prompt) is not None)

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return the grammar of one call."""
        choice, rules = json_calls(tools, '\n{"name": "', '", "arguments": ', "}\n")
        marks = {"open": literal(_Calls.open), "close": literal(_Calls.close)}
        return grammar(f"open ({choice}) close", {**rules, **marks}, self.thinking(prompt))
