"""Agents of LangGraph, openai-agents, pydantic-ai and smolagents, by base URL and key alone, in training episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazy
from tests.swarm.conformance.support import (
    PAIR,
    THOUGHT,
    assert_trained_once,
    calls,
    drifts,
    roomy,
    saying,
    spoken,
    tree,
)
from tests.swarm.server.support import MODEL, serving

agents = lazy("agents")
anthropic_models = lazy("pydantic_ai.models.anthropic")
anthropic_providers = lazy("pydantic_ai.providers.anthropic")
langchain_openai = lazy("langchain_openai")
openai = lazy("openai")
openai_models = lazy("pydantic_ai.models.openai")
openai_providers = lazy("pydantic_ai.providers.openai")
prebuilt = lazy("langgraph.prebuilt")
pydantic_ai = lazy("pydantic_ai")
smolagents = lazy("smolagents")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*create_react_agent.*")]
TURN = "let me see\n" + PAIR
Lease = dict[str, Any]


def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: where
    """
    return f"{city}: sun"


def graph(lease: Lease, **how: Any) -> Any:
    model = langchain_openai.ChatOpenAI(model=MODEL, base_url=lease["base_url"], api_key=lease["api_key"], **how)
    return prebuilt.create_react_agent(model, [weather])


async def langgraph(lease: Lease, *texts: str, responses: bool = False, streaming: bool = False) -> list[str]:
    agent, messages, answers = graph(lease, use_responses_api=responses, streaming=streaming), [("system", "brief")], []
    for text in texts:
        messages = (await agent.ainvoke({"messages": [*messages, ("user", text)]}))["messages"]
        answers.append(messages[-1].text)
    return answers


async def openai_agents(lease: Lease, *texts: str, responses: bool = False, streaming: bool = False) -> list[str]:
    kind = "OpenAIResponsesModel" if responses else "OpenAIChatCompletionsModel"
    history, answers, deltas = [], [], []
    async with openai.AsyncOpenAI(base_url=lease["base_url"], api_key=lease["api_key"]) as client:
        model = getattr(agents, kind)(model=MODEL, openai_client=client)
        agent = agents.Agent(name="a", instructions="brief", tools=[agents.function_tool(weather)], model=model)
        for text in texts:
            asked = [*history, {"role": "user", "content": text}]
            if streaming:
                run = agents.Runner.run_streamed(agent, asked)
                async for event in run.stream_events():
                    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                        deltas.append(event.data.delta)
            else:
                run = await agents.Runner.run(agent, asked)
            history = run.to_input_list()
            answers.append(run.final_output)
    assert not streaming or "".join(deltas).endswith("".join(answers))
    return answers


def policy(protocol: str, lease: Lease) -> Any:
    """Return the model of pydantic-ai that speaks a protocol."""
    if protocol == "messages":
        root = lease["base_url"].removesuffix("/v1")
        provider = anthropic_providers.AnthropicProvider(base_url=root, api_key=lease["api_key"])
        return anthropic_models.AnthropicModel(MODEL, provider=provider)
    kind = openai_models.OpenAIChatModel if protocol == "chat" else openai_models.OpenAIResponsesModel
    provider = openai_providers.OpenAIProvider(base_url=lease["base_url"], api_key=lease["api_key"])
    return kind(MODEL, provider=provider)


async def pydantic(lease: Lease, *texts: str, protocol: str, streaming: bool = False) -> list[str]:
    agent = pydantic_ai.Agent(policy(protocol, lease), instructions="be brief", tools=[weather])
    history, answers = [], []
    for text in texts:
        if streaming:
            async with agent.run_stream(text, message_history=history) as run:
                pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
            assert len(pieces) > 1
            answers.append("".join(pieces))
        else:
            run = await agent.run(text, message_history=history)
            answers.append(run.output)
        history = run.all_messages()
    return answers


CLEAN, FORKS = {"start": 1, "clean": 2}, {"start": 1, "fork": 1, "clean": 1}
STREAMED_PYDANTIC = THOUGHT + calls("weather", city="Bonn")  # it ends a streamed run with the first words


@pytest.mark.parametrize(
    ("play", "turn", "drift"),
    [
        (langgraph, TURN, CLEAN),
        (partial(langgraph, streaming=True), TURN, CLEAN),
        (langgraph, THOUGHT + TURN, FORKS),  # over chat it drops what was thought
        (partial(langgraph, responses=True), TURN, CLEAN),
        (partial(langgraph, responses=True), THOUGHT + TURN, CLEAN),
        (partial(langgraph, responses=True, streaming=True), TURN, CLEAN),
        (partial(langgraph, responses=True, streaming=True), THOUGHT + TURN, CLEAN),
        (openai_agents, TURN, CLEAN),
        (partial(openai_agents, streaming=True), TURN, CLEAN),
        (openai_agents, THOUGHT + TURN, FORKS),
        (partial(openai_agents, responses=True), TURN, CLEAN),
        (partial(openai_agents, responses=True), THOUGHT + TURN, CLEAN),
        (partial(openai_agents, responses=True, streaming=True), TURN, CLEAN),
        *((partial(pydantic, protocol=name), THOUGHT + TURN, CLEAN) for name in ("chat", "responses", "messages")),
        *(
            (partial(pydantic, protocol=name, streaming=True), STREAMED_PYDANTIC, CLEAN)
            for name in ("chat", "responses", "messages")
        ),
    ],
)
async def test_an_agent_plays_two_rounds_that_are_captured_as_the_engine_saw_them(
    tmp_path: Path, play: Callable[..., Any], turn: str, drift: dict[str, int]
) -> None:
    async with serving(tmp_path, roomy(), script=saying(turn, "both sunny", "welcome"), chunk_size=3) as served:
        lease = await served.begin()
        assert await play(lease, "hi", "thanks") == ["both sunny", "welcome"]
        await assert_trained_once(served, lease, [turn, "both sunny", "welcome"], **drift)


CODE = [f"Thought: so.\n<code>\n{code}\n</code>" for code in ('print(weather("Bonn"))', 'final_answer("sunny")')]


@pytest.mark.parametrize(
    ("kind", "turns", "job", "forced"),
    [
        (
            "ToolCallingAgent",
            [calls("weather", city="Bonn"), calls("final_answer", answer="sunny")],
            {"foreign_sampling": "neutralise"},
            2,
        ),
        ("CodeAgent", CODE, {}, 0),
    ],
)
async def test_smolagents_writes_its_history_anew_and_its_forced_tools_are_neutralised(
    tmp_path: Path, kind: str, turns: list[str], job: dict[str, str], forced: int
) -> None:
    """Its calls come back as text, and its code with what became of it: another history than the one served."""

    def play(lease: Lease) -> Any:
        model = smolagents.OpenAIModel(MODEL, api_base=lease["base_url"], api_key=lease["api_key"])
        return getattr(smolagents, kind)(tools=[smolagents.tool(weather)], model=model, verbosity_level=0).run("hi")

    async with serving(tmp_path, roomy(**job), script=saying(*turns)) as served:
        lease = await served.begin()
        assert await asyncio.to_thread(play, lease) == "sunny"
        assert served.server.training.rollout.counts["neutralised_tool_choice"] == forced
        found = tree(served, lease)
        assert (spoken(found), drifts(found)) == (turns, {"start": 1, "fork": 1})  # through its stop string `</code>`
        assert (await served.end(lease)).status == 200
