"""A fake backend whose model thinks and calls tools, for tests of what agents get."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from swarm.answers import AnswerFormat
from swarm.answers.hermes import HermesFormat
from swarm.backends.fake import EOS_TEXT, FakeBackend, FakeEngine, FakeLearner, FakeRenderer, Script
from swarm.backends.protocols import Chunk, GrammarRefused, Message, Sampling, Tool
from swarm.job import Job

ADD: Tool = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def called(**arguments: Any) -> str:
    """Return what the model writes to call `add`."""
    return f'<tool_call>\n{{"name": "add", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


class ToolRenderer(FakeRenderer):
    """Renders tools first, thinking and calls as Hermes models write them."""

    answers: AnswerFormat = HermesFormat(thinks=True)

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        told = f"<|tools|>{json.dumps(list(tools))}{EOS_TEXT}" if tools else ""
        return told + super().render([_plain(message) for message in messages], generation_prompt=generation_prompt)


class GuidedEngine(FakeEngine):
    """Takes grammars, and keeps what it was asked; refuses those that name `unfit`."""

    guided = True

    def __init__(self, renderer: FakeRenderer, seed: int, script: Script, chunk_size: int) -> None:
        super().__init__(renderer, seed, script, chunk_size)
        self.asked: list[Sampling] = []

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[Chunk, None]:
        self.asked.append(sampling)
        if "unfit" in (sampling.grammar or ""):
            raise GrammarRefused("unfit")
        async for chunk in super().generate(request_id, prompt_ids, sampling):
            yield chunk


class ToolBackend(FakeBackend):
    """A fake backend of these."""

    engine: GuidedEngine

    def __init__(self, job: Job, *, script: Script, chunk_size: int = 8, guided: bool = True) -> None:
        super().__init__(job)
        self.renderer = ToolRenderer()
        self.engine = GuidedEngine(self.renderer, job.seed, script, chunk_size)
        self.engine.guided = guided
        self.learner = FakeLearner(self.engine)


def _plain(message: Message) -> Message:
    thought = message.get("reasoning_content")
    calls = [call["function"] for call in message.get("tool_calls", ())]
    parts = [
        f"<think>\n{thought}\n</think>\n\n" if thought else "",
        message.get("content") or "",
        *(
            f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>'
            for call in calls
        ),
    ]
    return {"role": message["role"], "content": "".join(parts)}
