"""Calls in fenced blocks, as prompt-made tool templates teach them (Gemma): `tool_code` holds Python, `json` JSON.

In Python only literal keyword arguments are read: what would have to be run is no call.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from swarm.answers.families.tagged import Calls, TaggedFormat
from swarm.answers.grammar.answer import ToolCall
from swarm.answers.grammar.objects import UnterminatedString, call_of, sendable


class _PythonCalls:
    open = "```tool_code\n"
    close = "```"
    blank = "\n"

    def read(self, body: str) -> Sequence[ToolCall] | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                code = ast.parse(body.strip(), mode="eval").body
            return [_python_call(node) for node in (code.elts if isinstance(code, ast.List) else [code])]
        except SyntaxError as error:
            if "unterminated" in str(error.msg):
                raise UnterminatedString from error
            return None
        except (ValueError, TypeError, RecursionError, MemoryError):
            return None


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise ValueError("expected a call with keyword arguments")
    values = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
    arguments = json.dumps(values, ensure_ascii=False, allow_nan=False)
    if not sendable(arguments):
        raise ValueError("expected whole characters")
    return ToolCall(ast.unparse(node.func), arguments)


class _JsonCalls:
    open = "```json\n"
    close = "```"
    blank = "\n"

    def read(self, body: str) -> Sequence[ToolCall] | None:
        call = call_of(body, ("arguments", "parameters"))
        return [call] if call else None


class FencedFormat(TaggedFormat):
    """Implements `AnswerFormat` for the language the template names; Python calls have no JSON grammar."""

    name = "fenced"

    def __init__(self, language: Literal["tool_code", "json"]) -> None:
        super().__init__()
        self._calls: Calls = _PythonCalls() if language == "tool_code" else _JsonCalls()

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> Calls:
        """Return how calls are written in the language."""
        return self._calls

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return False: its marks are plain text."""
        return False
