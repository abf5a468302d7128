"""A fake engine that is guided, a tool, and what the fake model writes to call it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from swarm.backends.fake import FakeBackend, FakeEngine, FakeLearner, FakeRenderer, Script
from swarm.backends.protocols import Chunk, GenerationRequest, Sampling
from swarm.job import Job
from swarm.rendering.messages import GrammarRefused, Tool

ADD: Tool = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def called(**arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


class GuidedEngine(FakeEngine):
    """Takes grammars, and keeps what it was asked; refuses those that name `unfit`."""

    guided = True

    def __init__(self, renderer: FakeRenderer, seed: int, script: Script, chunk_size: int) -> None:
        super().__init__(renderer, seed, script, chunk_size)
        self.asked: list[Sampling] = []

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        sampling = request.sampling
        self.asked.append(sampling)
        if "unfit" in (sampling.grammar or ""):
            raise GrammarRefused("unfit")
        async for chunk in super().generate(request):
            yield chunk


class GuidedBackend(FakeBackend):
    engine: GuidedEngine

    def __init__(self, job: Job, *, script: Script, chunk_size: int = 8, guided: bool = True) -> None:
        super().__init__(job)
        self.engine = GuidedEngine(self.renderer, job.seed, script, chunk_size)
        self.engine.guided = guided
        self.learner = FakeLearner(self.engine)
