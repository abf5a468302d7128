"""Agents of the openai-agents package, by base URL and key alone, in training episodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazy
from tests.swarm.conformance.support import THOUGHT, assert_trained_once, calls, roomy, saying
from tests.swarm.server.support import MODEL, serving

agents = lazy("agents")
openai = lazy("openai")
TURN = "let me see\n" + calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")


def weather(city: str) -> str:
    """Tells the weather."""
    return f"{city}: sun"


@contextlib.asynccontextmanager
async def model(kind: str, lease: dict[str, Any]) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as client:
        yield getattr(agents, kind)(model=MODEL, openai_client=client)


@pytest.mark.parametrize(
    ("kind", "thought"),
    [("OpenAIChatCompletionsModel", ""), ("OpenAIResponsesModel", ""), ("OpenAIResponsesModel", THOUGHT)],
    ids=["chat", "responses", "responses-thinking"],
)
async def test_an_agent_plays_two_rounds_without_a_fork(tmp_path: Path, kind: str, thought: str) -> None:
    async with serving(tmp_path, roomy(), script=saying(thought + TURN, "both sunny", "welcome")) as served:
        lease = await served.begin()
        async with model(kind, lease) as policy:
            agent = agents.Agent(
                name="guide", instructions="be brief", tools=[agents.function_tool(weather)], model=policy
            )
            first = await agents.Runner.run(agent, "hi")
            assert first.final_output == "both sunny"
            second = await agents.Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "thanks"}])
            assert second.final_output == "welcome"
        await assert_trained_once(served, lease, [thought + TURN, "both sunny", "welcome"], start=1, clean=2)


async def test_thinking_that_the_framework_drops_over_chat_is_a_fork(tmp_path: Path) -> None:
    async with serving(tmp_path, roomy(), script=saying(THOUGHT + TURN, "both sunny")) as served:
        lease = await served.begin()
        async with model("OpenAIChatCompletionsModel", lease) as policy:
            await agents.Runner.run(
                agents.Agent(name="guide", tools=[agents.function_tool(weather)], model=policy), "hi"
            )
        await assert_trained_once(served, lease, [THOUGHT + TURN, "both sunny"], start=1, fork=1)


@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"], ids=["chat", "responses"])
async def test_a_streamed_run_plays_the_same(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, roomy(), script=saying(TURN, "both sunny"), chunk_size=3) as served:
        lease = await served.begin()
        async with model(kind, lease) as policy:
            agent = agents.Agent(
                name="guide", instructions="be brief", tools=[agents.function_tool(weather)], model=policy
            )
            run = agents.Runner.run_streamed(agent, "hi")
            deltas = [
                event.data.delta
                async for event in run.stream_events()
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
            ]
        assert "".join(deltas) == "let me seeboth sunny"
        assert run.final_output == "both sunny"
        await assert_trained_once(served, lease, [TURN, "both sunny"], start=1, clean=1)


async def test_a_handoff_starts_a_conversation_of_its_own(tmp_path: Path) -> None:
    script = saying(calls("transfer_to_poet"), "a poem")
    async with serving(tmp_path, roomy(), script=script) as served:
        lease = await served.begin()
        async with model("OpenAIResponsesModel", lease) as policy:
            poet = agents.Agent(name="poet", instructions="rhyme", model=policy)
            desk = agents.Agent(name="desk", instructions="pass on", handoffs=[poet], model=policy)
            assert (await agents.Runner.run(desk, "hi")).final_output == "a poem"
        # the poet has another system prompt and other tools: what was said is its history, but no continuation
        await assert_trained_once(served, lease, [calls("transfer_to_poet"), "a poem"], start=1, fork=1)
