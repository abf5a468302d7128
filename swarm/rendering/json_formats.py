"""Tool-call formats written as JSON or Python: Llama 3, Mistral, fenced blocks.

- Llama 3: an answer that is JSON as a whole, one call or several separated by `;`, maybe after `<|python_tag|>`. One
  that begins like a call is held back to its end; any other streams.
- Mistral: `[TOOL_CALLS]` before a JSON list (to v7) or before each call as `name[ARGS]{...}`. A call ends where the
  next begins or the answer does; a list of whole calls too, closed or cut. `[CALL_ID]` is left out: the client chooses
  it.
- Fenced (Gemma): `tool_code` holds Python, of which only literal keyword arguments are read; `json` holds JSON.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from swarm.rendering.grammars import grammar, json_calls, json_of, parameters, quote
from swarm.rendering.messages import Piece, Reader, Thinking, ToolCall, Words
from swarm.rendering.reading import UnterminatedString, is_sendable, members, parse_call, split_values
from swarm.rendering.tagged import Calls, PlainFormat, TaggedFormat


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
    if not is_sendable(arguments):
        raise ValueError("expected whole characters")
    return ToolCall(ast.unparse(node.func), arguments)


class _JsonCalls:
    open = "```json\n"
    close = "```"
    blank = "\n"

    def read(self, body: str) -> Sequence[ToolCall] | None:
        call = parse_call(body, ("arguments", "parameters"))
        return [call] if call else None


class FencedFormat(TaggedFormat):
    """Implements `AnswerFormat` for the language the template names; Python calls have no JSON grammar."""

    name = "fenced"

    def __init__(self, language: Literal["tool_code", "json"]) -> None:
        super().__init__()
        self._calls: Calls = _PythonCalls() if language == "tool_code" else _JsonCalls()

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> Calls:
        return self._calls

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        return False


_TAG = "<|python_tag|>"
_ARGUMENT_KEYS = ("parameters", "arguments")
_KEYS = ('"name"', '"type"', '"function"', *(f'"{key}"' for key in _ARGUMENT_KEYS))
_opening = re.compile(r"\{\s*")


class _Llama3Reader:
    def __init__(self) -> None:
        self._text = ""
        self._spoken = False

    def feed(self, text: str) -> Sequence[Piece]:
        if self._spoken:
            return (Words(text),) if text else ()
        self._text += text
        if _may_call(self._text):
            return ()
        self._spoken = True
        return (Words(self._text),)

    def finish(self) -> Sequence[Piece]:
        if self._spoken or not self._text:
            return ()
        return _calls(self._text.strip().removeprefix(_TAG)) or (Words(self._text),)


def _may_call(text: str) -> bool:
    rest = text.lstrip()
    if _TAG.startswith(rest):
        return True
    opening = _opening.match(rest.removeprefix(_TAG).lstrip() or "{")
    key = opening.string[opening.end() :][: max(map(len, _KEYS))] if opening else ""
    return opening is not None and any(known.startswith(key) or key.startswith(known) for known in _KEYS)


def _calls(text: str) -> Sequence[ToolCall] | None:
    try:
        texts = split_values(text, ";") or []
        found = [call for call in (parse_call(text, _ARGUMENT_KEYS) for text in texts) if call is not None]
    except UnterminatedString:
        return None
    return found if len(found) == len(texts) else None


class Llama3Format(PlainFormat):
    """Implements `AnswerFormat` for Llama 3.1 to 3.3."""

    name = "llama3"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        return True

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        return _Llama3Reader() if tools else super().reader(prompt)

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        return grammar(*json_calls(tools, '{"name": "', '", "parameters": ', "}"))


_ARGUMENTS_MARK = "[ARGS]"


class _MistralCalls:
    open = "[TOOL_CALLS]"
    close = ""
    blank = ""

    def read(self, body: str) -> Sequence[ToolCall] | None:
        inner = body.strip()
        return _parse_call_list(inner) if inner.startswith(("[", "{")) else _parse_named_call(inner)


def _parse_call_list(body: str) -> Sequence[ToolCall] | None:
    if not body.startswith("["):
        return None
    texts = split_values(body[1:-1] if body.endswith("]") else body[1:])
    calls = [parse_call(text) for text in texts or ()]
    found = [call for call in calls if call is not None]
    return found if len(found) == len(calls) else None


def _parse_named_call(body: str) -> Sequence[ToolCall] | None:
    head, mark, arguments = body.partition(_ARGUMENTS_MARK)
    name = head.partition("[CALL_ID]")[0].strip()
    given = arguments.strip()
    if not name or not mark or members(given) is None:
        return None
    return [ToolCall(name, given)]


class MistralFormat(TaggedFormat):
    """Implements `AnswerFormat`, a space before words; `thinks`: it knows `[THINK]`; `lists` calls: not `[ARGS]`."""

    name = "mistral"

    def __init__(self, *, thinks: bool, lists: bool) -> None:
        super().__init__(Thinking("[THINK]", "[/THINK]") if thinks else None, leading=" ")
        self._lists = lists

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> Calls:
        return _MistralCalls()

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        if self._lists:
            choice, rules = json_calls(tools, '[{"name": "', '", "arguments": ', "}]")
        else:
            rules = {"arguments": quote(_ARGUMENTS_MARK)}
            for number, (name, schema) in enumerate(parameters(tools).items()):
                rules[f"call_{number}"] = f"{quote(name)} arguments args_{number}"
                rules[f"args_{number}"] = json_of(schema)
            choice = " | ".join(name for name in rules if name.startswith("call_"))
        rules["open"] = quote(_MistralCalls.open)
        return grammar(f"open ({choice})", rules, self.thinking(prompt))
