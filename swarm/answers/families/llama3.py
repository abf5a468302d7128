"""The Llama 3 format: an answer that is JSON as a whole, one call or several separated by `;`, is calls.

`<|python_tag|>` may stand before them. An answer that begins like a call is held back to its end, for only then
is it certain that nothing else follows; any other answer streams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.families.plain import PlainFormat
from swarm.answers.grammar.answer import Piece, Reader, ToolCall, Words
from swarm.answers.grammar.lark import grammar, json_calls
from swarm.answers.grammar.objects import UnterminatedString, call_of, listed

_TAG = "<|python_tag|>"
_ARGUMENTS = ("parameters", "arguments")
_KEYS = ('"name"', '"type"', '"function"', *(f'"{key}"' for key in _ARGUMENTS))
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
    """Return whether an answer that begins with `text` may be calls."""
    rest = text.lstrip()
    if _TAG.startswith(rest):
        return True
    opening = _opening.match(rest.removeprefix(_TAG).lstrip() or "{")
    key = opening.string[opening.end() :][: max(map(len, _KEYS))] if opening else ""
    return opening is not None and any(known.startswith(key) or key.startswith(known) for known in _KEYS)


def _calls(text: str) -> Sequence[ToolCall] | None:
    try:
        texts = listed(text, ";") or []
        found = [call for call in (call_of(text, _ARGUMENTS) for text in texts) if call is not None]
    except UnterminatedString:
        return None
    return found if len(found) == len(texts) else None


class Llama3Format(PlainFormat):
    """Implements `AnswerFormat` for Llama 3.1 to 3.3."""

    name = "llama3"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return True: a tokenizer may have its marks as tokens."""
        return True

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`."""
        return _Llama3Reader() if tools else super().reader(prompt)

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return the grammar of one call."""
        return grammar(*json_calls(tools, '{"name": "', '", "parameters": ', "}"))
