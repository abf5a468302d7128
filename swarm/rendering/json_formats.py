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
from collections.abc import Sequence
from functools import partial
from typing import Literal

from swarm.rendering.messages import AnswerFormat, Piece, Reader, Thinking, ToolCall, Words
from swarm.rendering.reading import (
    UnterminatedString,
    grammar,
    is_sendable,
    json_calls,
    members,
    parse_call,
    quote,
    split_values,
)
from swarm.rendering.tagged import Calls, TaggedFormat, Tools, read_json


def _read_python(body: str) -> Sequence[ToolCall] | None:
    calls: list[ToolCall] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = ast.parse(body.strip(), mode="eval").body
        for node in code.elts if isinstance(code, ast.List) else [code]:
            if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
                return None
            values = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            arguments = json.dumps(values, ensure_ascii=False, allow_nan=False)
            if not is_sendable(arguments):
                return None
            calls.append(ToolCall(ast.unparse(node.func), arguments))
    except SyntaxError as error:
        if "unterminated" in str(error.msg):
            raise UnterminatedString from error
        return None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return calls


class FencedFormat(TaggedFormat):
    """Calls in the language the template names; Python calls have no JSON grammar."""

    def __init__(self, language: Literal["tool_code", "json"]) -> None:
        read = _read_python if language == "tool_code" else partial(read_json, arguments=("arguments", "parameters"))
        super().__init__("fenced", None, lambda _: Calls(read, f"```{language}\n", "```"))

    def special(self, tools: Tools = ()) -> bool:
        return False


_TAG = "<|python_tag|>"
_ARGUMENT_KEYS = ("parameters", "arguments")
_KEYS = ('"name"', '"type"', '"function"', *(f'"{key}"' for key in _ARGUMENT_KEYS))
_opening = re.compile(r"\{\s*")


class _Llama3Reader(Reader):
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
        try:
            texts = split_values(self._text.strip().removeprefix(_TAG), ";") or []
            calls = [call for call in (parse_call(text, _ARGUMENT_KEYS) for text in texts) if call is not None]
        except UnterminatedString:
            texts, calls = [], []
        return calls if calls and len(calls) == len(texts) else (Words(self._text),)


def _may_call(text: str) -> bool:
    rest = text.lstrip()
    if _TAG.startswith(rest):
        return True
    opening = _opening.match(rest.removeprefix(_TAG).lstrip() or "{")
    key = opening.string[opening.end() :][: max(map(len, _KEYS))] if opening else ""
    return opening is not None and any(known.startswith(key) or key.startswith(known) for known in _KEYS)


class Llama3Format(AnswerFormat):
    """Llama 3.1 to 3.3."""

    name = "llama3"

    def special(self, tools: Tools = ()) -> bool:
        return True

    def reader(self, prompt: str, tools: Tools = ()) -> Reader:
        return _Llama3Reader() if tools else super().reader(prompt)

    def grammar(self, tools: Tools, prompt: str = "") -> str | None:
        return grammar(*json_calls(tools, '{"name": "', '", "parameters": ', "}"))


_ARGUMENTS_MARK = "[ARGS]"


def _read_mistral(body: str) -> Sequence[ToolCall] | None:
    body = body.strip()
    if body.startswith("["):
        texts = split_values(body[1:-1] if body.endswith("]") else body[1:])
        calls = [parse_call(text) for text in texts or ()]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(calls) else None
    head, mark, arguments = body.partition(_ARGUMENTS_MARK)
    name, given = head.partition("[CALL_ID]")[0].strip(), arguments.strip()
    if not name or not mark or body.startswith("{") or members(given) is None:
        return None
    return [ToolCall(name, given)]


_MISTRAL = Calls(_read_mistral, "[TOOL_CALLS]", "", "")


class MistralFormat(TaggedFormat):
    """A space before words; `thinks`: it knows `[THINK]`; `lists` calls: not `[ARGS]`."""

    def __init__(self, *, thinks: bool, lists: bool) -> None:
        marks = Thinking("[THINK]", "[/THINK]") if thinks else None
        super().__init__("mistral", marks, lambda _: _MISTRAL, leading=" ")
        self._lists = lists

    def grammar(self, tools: Tools, prompt: str = "") -> str | None:
        marks = {"open": quote(_MISTRAL.open)}
        if self._lists:
            choice, rules = json_calls(tools, '[{"name": "', '", "arguments": ', "}]")
        else:
            choice, rules = json_calls(tools, "", "", "", mark="arguments")
            marks["arguments"] = quote(_ARGUMENTS_MARK)
        return grammar(f"open ({choice})", {**rules, **marks}, self.thinking(prompt))
