"""Agents of pydantic-ai over all three protocols, by base URL and key alone, in training episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.lazily import lazy
from tests.swarm.conformance.support import THOUGHT, assert_trained_once, calls, roomy, saying
from tests.swarm.server.support import MODEL, serving

pydantic_ai = lazy("pydantic_ai")
anthropic_models = lazy("pydantic_ai.models.anthropic")
openai_models = lazy("pydantic_ai.models.openai")
anthropic_providers = lazy("pydantic_ai.providers.anthropic")
openai_providers = lazy("pydantic_ai.providers.openai")
TURN = THOUGHT + "let me see\n" + calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")
Make = Callable[[dict[str, Any]], Any]


class City(BaseModel):
    name: str


def chat(lease: dict[str, Any]) -> Any:
    return openai_models.OpenAIChatModel(
        MODEL, provider=openai_providers.OpenAIProvider(base_url=lease["base_url"], api_key=lease["api_key"])
    )


def responses(lease: dict[str, Any]) -> Any:
    return openai_models.OpenAIResponsesModel(
        MODEL, provider=openai_providers.OpenAIProvider(base_url=lease["base_url"], api_key=lease["api_key"])
    )


def messages(lease: dict[str, Any]) -> Any:
    root = lease["base_url"].removesuffix("/v1")
    return anthropic_models.AnthropicModel(
        MODEL, provider=anthropic_providers.AnthropicProvider(base_url=root, api_key=lease["api_key"])
    )


def guide(model: Any) -> Any:
    agent = pydantic_ai.Agent(model, instructions="be brief")

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tells the weather."""
        return f"{city}: sun"

    return agent


@pytest.mark.parametrize("make", [chat, responses, messages])
async def test_an_agent_plays_two_rounds_without_a_fork(tmp_path: Path, make: Make) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny", "welcome")) as served:
        lease = await served.begin()
        agent = guide(make(lease))
        first = await agent.run("hi")
        assert first.output == "both sunny"
        second = await agent.run("thanks", message_history=first.all_messages())
        assert second.output == "welcome"
        await assert_trained_once(served, lease, [TURN, "both sunny", "welcome"], start=1, clean=2)


@pytest.mark.parametrize("make", [chat, responses, messages])
async def test_a_streamed_run_plays_the_same(tmp_path: Path, make: Make) -> None:
    turn = THOUGHT + calls("weather", city="Bonn")
    async with serving(tmp_path, roomy(), script=saying(turn, "both sunny"), chunk_size=3) as served:
        lease = await served.begin()
        async with guide(make(lease)).run_stream("hi") as run:
            pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
        assert len(pieces) > 1
        assert "".join(pieces) == "both sunny"
        await assert_trained_once(served, lease, [turn, "both sunny"], start=1, clean=1)


@pytest.mark.parametrize("make", [chat, responses])
@pytest.mark.parametrize(
    ("output", "answer", "neutralised"),
    [
        (lambda: City, calls("final_result", name="Bonn"), "tool_choice"),
        (lambda: pydantic_ai.NativeOutput(City), '{"name": "Bonn"}', "response_format"),
    ],
    ids=["by a tool", "by a format"],
)
async def test_structured_output_is_neutralised_in_training_and_counted(
    tmp_path: Path, make: Make, output: Callable[[], Any], answer: str, neutralised: str
) -> None:
    async with serving(tmp_path, roomy(foreign_sampling="neutralise"), script=saying(answer)) as served:
        lease = await served.begin()
        agent = pydantic_ai.Agent(make(lease), output_type=output())
        assert (await agent.run("which?")).output == City(name="Bonn")
        assert served.server.training.rollout.counts[f"neutralised_{neutralised}"] == 1
        await assert_trained_once(served, lease, [answer], start=1)
