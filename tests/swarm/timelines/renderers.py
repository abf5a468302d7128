"""Renderers for timeline tests: the fake one, and templates that change what they render."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.backends.fake.backend import FakeRenderer
from swarm.backends.protocols import Message, Tool


class TrimmingRenderer(FakeRenderer):
    """Trims every content, as many chat templates do."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        trimmed = [{**message, "content": message["content"].strip()} for message in messages]
        return super().render(trimmed, tools=tools, generation_prompt=generation_prompt)


class ForgettingRenderer(FakeRenderer):
    """Leaves thinking out of all answers but a last one: Qwen3's way."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        last = len(messages) - 1
        kept = [
            m if n == last else {**m, "content": m["content"].split("</think>")[-1]} for n, m in enumerate(messages)
        ]
        return super().render(kept, tools=tools, generation_prompt=generation_prompt)


class ThoughtlessRenderer(FakeRenderer):
    """Leaves thinking out of all answers: DeepSeek-R1's way."""

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        kept = [{**message, "content": message["content"].split("</think>")[-1]} for message in messages]
        return super().render(kept, tools=tools, generation_prompt=generation_prompt)
