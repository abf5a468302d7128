"""The format of models that think and call no tools, such as DeepSeek-R1's: thought between marks, then words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.answer import Reader, Thinking
from swarm.answers.tagged import TaggedReader

_THINKING = Thinking()


class ThinkFormat:
    """Implements `AnswerFormat`."""

    name = "think"

    def special(self, tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Return True: a tokenizer may have its marks as tokens."""
        return True

    def thinking(self, prompt: str) -> Thinking | None:
        """Return the marks of a thought that `prompt` opened."""
        return _THINKING if _THINKING.opened(prompt) else None

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`."""
        return TaggedReader(_THINKING, opened=self.thinking(prompt) is not None)

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return None: there is no way to write a call."""
        return None
