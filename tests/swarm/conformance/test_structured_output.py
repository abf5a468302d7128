"""Structured output from a real engine: a tiny random model, held to a schema by the SDKs' own helpers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from swarm.backends.local import LocalBackend
from swarm.job import TinyModel
from tests.lazily import lazy
from tests.swarm.server.support import Served, job, serving

anthropic = lazy("anthropic")
openai = lazy("openai")


class Weather(BaseModel):
    sky: Literal["sun", "rain"]
    windy: bool


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    tiny = TinyModel(hidden_size=16, layers=1, warm_start_steps=0)
    wanted = job(backend="local", model=tiny, max_context=512, max_tokens=150)
    backend = LocalBackend(wanted, tmp_path / "models")
    await backend.start()  # loading torch takes longer than a server's boot is waited for
    async with serving(tmp_path, wanted, backend=lambda _: backend) as running:
        yield running


async def test_all_three_protocols_hold_a_model_to_a_schema(served: Served) -> None:
    lease = await served.begin(kind="eval")
    ask: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    async with openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as sdk:
        chat = await sdk.chat.completions.parse(model=lease["model"], messages=ask, response_format=Weather)
        assert isinstance(chat.choices[0].message.parsed, Weather)
        response = await sdk.responses.parse(model=lease["model"], input=ask, text_format=Weather)
        assert isinstance(response.output_parsed, Weather)
        assert response.text is not None
        assert response.text.format is not None
        assert response.text.format.type == "json_schema"
    root = lease["base_url"].removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=root, api_key=lease["api_key"]) as claude:
        message = await claude.messages.parse(model=lease["model"], max_tokens=150, messages=ask, output_format=Weather)
        assert isinstance(message.parsed_output, Weather)
