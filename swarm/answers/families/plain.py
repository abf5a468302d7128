"""The plain format: an answer is its words, and nothing else is read into it. Other formats begin with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.grammar.answer import Piece, Reader, Thinking, Words


class _PlainReader:
    def feed(self, text: str) -> Sequence[Piece]:
        return (Words(text),) if text else ()

    def finish(self) -> Sequence[Piece]:
        return ()


class PlainFormat:
    """Implements `AnswerFormat` for models without thinking or tools; others override what they read besides words."""

    name = "plain"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return False: it reads no marks."""
        return False

    def thinking(self, prompt: str) -> Thinking | None:
        """Return None: a prompt opens no thought."""
        return None

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader that passes all text on."""
        return _PlainReader()

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return None: there is no way to write a call."""
        return None


PLAIN = PlainFormat()
