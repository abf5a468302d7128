"""The format of models that think and call no tools, such as DeepSeek-R1's: thought between marks, then words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.answers.answer import Reader
from swarm.answers.tagged import TaggedReader, Thinking


class ThinkFormat:
    """Implements `AnswerFormat`."""

    name = "think"
    special = True

    def reader(self, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reader:
        """Return a reader for the answer to `prompt`."""
        thinking = Thinking()
        return TaggedReader(thinking, opened=thinking.opened(prompt))

    def grammar(self, tools: Sequence[Mapping[str, Any]], prompt: str = "") -> str | None:
        """Return None: there is no way to write a call."""
        return None
